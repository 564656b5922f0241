"""The audit of a run from its directory: honest runs pass, noise of another scale and other files are found."""

import io
import json
import shutil
import zlib

import numpy as np
import pytest
import yaml

import server.state
from experiments.audit.__main__ import AuditSettings, audit
from experiments.audit.recorded import MODELS, NOISE, SUMS, recorded_findings
from experiments.audit.sabotage import patched
from experiments.run_files.directory import CONFIG, MODEL, MODEL_INITIAL, RELEASES, read_releases
from experiments.settings.compose import compose
from fedmf.errors import RunDirectoryError, SettingError
from fedmf.mechanisms.noise import NoiseRow, next_noise
from runs import run
from server import journal

pytestmark = pytest.mark.long

SMALL = (
    "population.cohort_size=8", "population.rounds_per_epoch=3", "population.epochs=2", "run.keep_releases=true",
    "privacy.epsilon=2", "run.reproducible=true",
)  # fmt: skip


def verdicts(directory, **options):
    _, findings = recorded_findings(directory, **options)
    return {finding.test: finding.verdict for finding in findings}


def noise_times(factor):
    def broken(*arguments, **options):
        row, after = next_noise(*arguments, **options)
        return NoiseRow(0 * row.mean, 1.0, factor * (row.mean + row.own * row.fresh)), after

    return patched((server.state, "next_noise", broken))


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("compression.rotation=identity", "compression.keep_probability=0.05"),
        ("compression.keep_probability=1", "mechanism=binary_tree"),
        ("optimizer=adam", "compression.value_type=int8"),
    ],
    ids=" ".join,
)
def test_an_honest_run_passes(tmp_path, overrides):
    directory = run(tmp_path / "run", *SMALL, *overrides)
    assert verdicts(directory) == dict.fromkeys((MODELS, SUMS, NOISE), "nothing found")


@pytest.mark.parametrize("factor", [0.958, 0.0, -1.0])
def test_noise_of_another_scale_is_refuted_by_what_is_left_of_it(tmp_path, factor):
    with noise_times(factor):
        directory = run(
            tmp_path / "run", *SMALL, "compression.rotation=identity", "compression.keep_probability=0.05"
        )
    found = verdicts(directory)
    assert (found[MODELS], found[SUMS], found[NOISE]) == ("nothing found", "refuted", "refuted")


def test_without_masks_a_factor_is_refuted_by_the_noise_alone(tmp_path):
    with noise_times(0.97):
        directory = run(tmp_path / "run", *SMALL, "compression.keep_probability=1")
    found = verdicts(directory)
    assert (found[SUMS], found[NOISE]) == ("nothing found", "refuted")


def test_a_sum_that_its_clients_cannot_have_sent_is_refuted(tmp_path):
    directory = run(tmp_path / "run", *SMALL, "compression.keep_probability=1")
    releases = read_releases(directory)
    (directory / RELEASES).unlink()
    for release in releases:
        changed = release.noisy_sum.copy()
        changed += 1.0 if release.round == 4 else 0.0
        journal.append(directory / RELEASES, type(release)(release.round, changed, (), release.cohort_size))
    found = verdicts(directory)
    assert (found[MODELS], found[SUMS]) == ("refuted", "refuted")


def test_another_model_than_the_releases_lead_to_is_refuted(tmp_path):
    directory = run(tmp_path / "run", *SMALL)
    with np.load(directory / MODEL) as file:
        arrays = dict(file)
    name = min(arrays)
    arrays[name].flat[0] = np.nextafter(arrays[name].flat[0], np.float32(9))
    np.savez(directory / MODEL, **arrays)
    assert verdicts(directory)[MODELS] == "refuted"


def test_of_a_private_run_only_its_models_can_be_asked(tmp_path):
    directory = run(tmp_path / "run", *SMALL[:-1])
    assert verdicts(directory) == {MODELS: "nothing found", SUMS: "inconclusive", NOISE: "inconclusive"}
    assert "its secrets are erased" in recorded_findings(directory)[1][1].where


def test_what_cannot_be_audited_is_refused(tmp_path):
    directory = run(tmp_path / "run", *SMALL[:3])
    with pytest.raises(RunDirectoryError, match=r"run\.keep_releases=true"):
        recorded_findings(directory)
    kept = run(tmp_path / "kept", *SMALL)
    config = kept / "config.yaml"
    config.write_text(config.read_text().replace("name: logistic", "name: mine:model"))
    with pytest.raises(SettingError, match="trust_code=true"):
        recorded_findings(kept)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that is copied and damaged."""
    return run(tmp_path_factory.mktemp("finished") / "run", *SMALL)


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copied")


def pickled():
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}], object), allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize("file", [MODEL, MODEL_INITIAL, RELEASES, CONFIG])
@pytest.mark.parametrize(
    "damage", [b"", b"hello\n", "cut", pickled()], ids=["empty", "a text", "cut", "pickle"]
)
def test_a_damaged_file_is_refused_in_a_sentence_and_leaves_nothing_behind(copied, tmp_path, file, damage):
    whole = (copied / file).read_bytes()
    cut = whole[: 100 if file == RELEASES else len(whole) // 2]
    (copied / file).write_bytes(cut if damage == "cut" else damage)
    settings = compose("audit", [f"run_directory={copied}", f"directory={tmp_path / 'audit'}"], AuditSettings)
    with pytest.raises((RunDirectoryError, SettingError), match=r"copied|settings"):
        audit(settings)
    assert not (tmp_path / "audit").exists()


def test_a_model_of_other_arrays_is_another_model(copied):
    with np.load(copied / MODEL) as file:
        arrays = dict(file)
    name = min(arrays)
    for other in (arrays[name].ravel()[:3], np.array(["a"])):
        np.savez(copied / MODEL, **arrays | {name: other})
        assert verdicts(copied)[MODELS] == "refuted"
    np.savez(copied / MODEL, **arrays, further=np.zeros(3))
    assert verdicts(copied)[MODELS] == "refuted"


def record(release, payload=None, **fields):
    """A record of a journal whose checksum is right, with other fields than the product writes."""
    payload = release.noisy_sum.astype("<f4").tobytes() if payload is None else payload
    head = {
        "format": journal.FORMAT,
        "round": release.round,
        "answered": [],
        "cohort_size": release.cohort_size,
    }
    head = {key: value for key, value in (head | fields).items() if value != "none"} | {"bytes": len(payload)}
    line = json.dumps(head).encode()
    return b"%08x %s\n" % (zlib.crc32(payload, zlib.crc32(line)), line) + payload


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"round": "none"}, "no release: KeyError"),
        ({"round": 2.0}, "round is 2.0"),
        ({"cohort_size": "8"}, "cohort_size is '8'"),
        ({"payload": b"abc"}, "no release: ValueError"),
        ({"payload": bytes(4 * 651)}, "it must hold 1 to 6 rounds of 650 numbers"),
        ({"round": 3}, "each must be there once"),
    ],
)
def test_releases_that_are_none_of_this_run_are_refused(copied, fields, words):
    releases = read_releases(copied)
    records = [record(release, **(fields if release.round == 2 else {})) for release in releases]
    (copied / RELEASES).write_bytes(b"".join(records))
    with pytest.raises(RunDirectoryError, match=words):
        recorded_findings(copied)
    (copied / RELEASES).write_bytes(b"".join(map(record, releases)) + record(releases[-1], round=7))
    with pytest.raises(RunDirectoryError, match="it must hold 1 to 6 rounds"):
        recorded_findings(copied)


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("rounds", [{2}, {1, 2, 3, 4, 5, 6}])
def test_a_release_that_is_not_finite_is_refuted_also_where_its_model_is_not_either(copied, number, rounds):
    records = []
    for release in read_releases(copied):
        changed = release.noisy_sum.copy()
        changed[7] = number if release.round in rounds else changed[7]
        records.append(record(release, payload=changed.astype("<f4").tobytes()))
    (copied / RELEASES).write_bytes(b"".join(records))
    found = verdicts(copied)
    assert found[SUMS] == "refuted"
    assert found[NOISE] == ("nothing found" if rounds == {2} else "inconclusive")


def test_settings_with_numbers_beyond_all_memory_are_refused(copied):
    document = yaml.safe_load((copied / CONFIG).read_text())
    document["population"]["epochs"] = 10**30
    (copied / CONFIG).write_text(yaml.safe_dump(document))
    with pytest.raises(RunDirectoryError, match=r"config\.yaml cannot be those of a run"):
        recorded_findings(copied)

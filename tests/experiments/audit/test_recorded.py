"""The audit of a run from its directory: honest runs pass, noise of another scale and other files are found."""

import numpy as np
import pytest

import server.state
from experiments.audit.recorded import MODELS, NOISE, SUMS, recorded_rows
from experiments.audit.row import Verdict
from experiments.audit.sabotage import patched
from experiments.run_files.directory import MODEL, RELEASES
from experiments.run_files.releases import read_releases
from fedmf.errors import RunDirectoryError, SettingError
from fedmf.mechanisms.noise import next_noise
from runs import run
from server import journal

SMALL = (
    "population.cohort_size=8", "population.rounds_per_epoch=3", "population.epochs=2", "run.keep_releases=true",
    "privacy.epsilon=2", "run.reproducible=true",
)  # fmt: skip


def verdicts(directory, **options):
    return {row.test: row.verdict.name for row in recorded_rows(directory, **options)}


def noise_times(factor):
    def broken(*arguments, **options):
        row, after = next_noise(*arguments, **options)
        return np.asarray(factor * row, np.float32), after

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
    assert verdicts(directory) == dict.fromkeys((MODELS, SUMS, NOISE), "nothing_found")


def test_coordinates_that_no_mask_kept_hold_nothing_but_noise(tmp_path):
    directory = run(
        tmp_path / "run", *SMALL, "compression.rotation=identity", "compression.keep_probability=0.05"
    )
    (row,) = (row for row in recorded_rows(directory) if row.test == SUMS)
    bare = int(row.note.split(";")[1].split()[0])
    assert bare == pytest.approx(6 * 650 * 0.95**8, rel=0.1)


@pytest.mark.parametrize("factor", [0.958, 0.0, -1.0])
def test_noise_of_another_scale_is_refuted_by_what_is_left_of_it(tmp_path, factor):
    with noise_times(factor):
        directory = run(
            tmp_path / "run", *SMALL, "compression.rotation=identity", "compression.keep_probability=0.05"
        )
    found = verdicts(directory)
    assert (found[MODELS], found[SUMS], found[NOISE]) == ("nothing_found", "refuted", "refuted")


def test_without_masks_a_factor_is_refuted_by_the_noise_alone(tmp_path):
    with noise_times(0.97):
        directory = run(tmp_path / "run", *SMALL, "compression.keep_probability=1")
    found = verdicts(directory)
    assert (found[SUMS], found[NOISE]) == ("nothing_found", "refuted")


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
        arrays = {name: file[name] for name in file.files}
    name = min(arrays)
    arrays[name].flat[0] = np.nextafter(arrays[name].flat[0], np.float32(9))
    np.savez(directory / MODEL, **arrays)
    assert verdicts(directory)[MODELS] == "refuted"


def test_of_a_private_run_only_its_models_can_be_asked(tmp_path):
    directory = run(tmp_path / "run", *SMALL[:-1])
    rows = recorded_rows(directory)
    assert {row.test: row.verdict for row in rows} == {
        MODELS: Verdict.nothing_found,
        SUMS: Verdict.inconclusive,
        NOISE: Verdict.inconclusive,
    }
    assert "its secrets are erased" in rows[1].note


def test_what_cannot_be_audited_is_refused(tmp_path):
    directory = run(tmp_path / "run", *SMALL[:3])
    with pytest.raises(RunDirectoryError, match=r"run\.keep_releases=true"):
        recorded_rows(directory)
    kept = run(tmp_path / "kept", *SMALL)
    config = kept / "config.yaml"
    config.write_text(config.read_text().replace("name: logistic", "name: mine:model"))
    with pytest.raises(SettingError, match="trust_code=true"):
        recorded_rows(kept)

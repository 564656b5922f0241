"""Users' data: each kind of file makes a run, held-out clients, a bad file is one sentence; `fedmf data import SOURCE OUT`."""

import json
import resource
import stat
from pathlib import Path

import h5py
import huggingface_hub
import numpy as np
import pytest

import small_files
import users_own
import written_data
from client.data import conversion, load
from client.data.clients import digest_clients
from client.data.limits import CheckedClients, readable
from experiments.cli.command import guard
from experiments.data import import_data, main
from experiments.deployment.node import node_settings
from experiments.run_files.reader import read_config
from experiments.settings.recorded import restored
from fedmf.errors import DataError, FedmfError, SettingError
from fedmf.randomness import SecretKey
from runs import composed, refused, run, simulate, statement, summary

SMALL = (
    "population.cohort_size=2",
    "population.rounds_per_epoch=1",
    "population.epochs=1",
    "privacy.delta=1e-2",
)


@pytest.mark.long
@pytest.mark.parametrize("form", ["own_csv", "own_parquet", "own_hub", "own_pictures", "own_texts", "dealt"])
def test_every_kind_of_file_makes_a_run_whose_statement_names_the_unit_and_which_records_its_settings(
    tmp_path, form
):
    given = small_files.settings(form, tmp_path)
    settings = [f"dataset={given.pop('name')}"]
    settings += [f"dataset.{key}={json.dumps(value).replace(chr(34), '')}" for key, value in given.items()]
    model = (
        ["model=lstm", "model.embedding=2", "model.hidden=2"] if form == "own_texts" else ["model=logistic"]
    )
    directory = run(tmp_path / "run", *SMALL, *settings, *model)
    unit = statement(directory)["unit_of_privacy"]
    assert "made-up client" in unit if form == "dealt" else unit == "one user = one client"
    assert restored(read_config(directory)).dataset == composed(*settings).dataset  # lists survive


SMALL_BAD = (
    "population.cohort_size=1",
    "population.rounds_per_epoch=3",
    "population.epochs=1",
    "model=logistic",
)


def of(form, folder):
    """Write the files of a form; return the overrides that choose them."""
    folder.mkdir(exist_ok=True)
    given = small_files.settings(form, folder)
    return [f"dataset={given.pop('name')}", *(f"dataset.{key}={value}" for key, value in given.items())]


def spoil_bob(folder, split):
    """Give bob labels that no class has, in TFF's files."""
    with h5py.File(folder / "hdf5" / f"fed_emnist_{split}.h5", "r+") as file:
        file["examples/bob/label"][:] = 77


@pytest.mark.long
def test_a_broken_file_or_a_bad_test_set_leaves_no_run(tmp_path, capsys):
    broken = of("femnist_sqlite", tmp_path / "a")
    (tmp_path / "a" / "emnist_all.sqlite").write_bytes(b"SQLite format 3\0" + bytes(5000))
    spoilt = of("femnist_hdf5", tmp_path / "b")
    spoil_bob(tmp_path / "b", "test")
    table = [*of("own_csv", tmp_path / "c"), "dataset.user=writer"]
    for overrides, sentence in (
        (broken, "cannot be read as a sqlite file of TFF"),
        (spoilt, "the test set of dataset femnist"),
        (table, "has no column 'writer'; set dataset.user to one of the 5 columns"),
    ):
        assert sentence in refused(capsys, tmp_path / "run", *SMALL_BAD, *overrides)
        assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_one_users_values_do_not_decide_whether_a_run_happens(tmp_path, capsys):
    overrides = [*SMALL_BAD, "seed=3", "run.reproducible=true"]
    good = run(tmp_path / "good", *overrides, *of("femnist_hdf5", tmp_path / "right"))
    assert "clients failed" not in capsys.readouterr().err
    spoilt = of("femnist_hdf5", tmp_path / "wrong")
    spoil_bob(tmp_path / "wrong", "train")
    bad = run(tmp_path / "bad", *overrides, *spoilt)
    said = capsys.readouterr().err
    assert "1 of 3 clients failed and count as zeros; the first in round" in said
    assert "holds the label 77; with classes=62 it must be 0 to 61" in said
    for name in ("epsilon", "rounds", "clients", "noise_multiplier"):
        assert summary(good)[name] == summary(bad)[name]
    assert statement(good) == statement(bad)


SMALL_HELD = ("population.epochs=2", "population.cohort_size=20", "dataset=synthetic", "dataset.clients=100")
HELD = {2, 10, 13, 20, 39, 41, 48, 52, 74, 82}


@pytest.fixture
def read(monkeypatch):
    """The numbers of the clients whose examples are read."""
    numbers, real = set(), CheckedClients.client
    monkeypatch.setattr(CheckedClients, "client", lambda self, i: numbers.add(i) or real(self, i))
    return numbers


def test_the_model_is_scored_on_held_out_clients_only_where_it_says_so():
    whole = load("digits")
    given = {use: load("digits", held_out=0.1, held_out_use=use) for use in ("score", "train", "none")}
    held = np.concatenate([one.x for one in given["train"].clients])
    np.testing.assert_array_equal(given["score"].test.x, held)
    assert len(load("digits", held_out=0.1, max_test_examples=50).test) == 50
    assert (
        given["score"]
        .uncovered[0]
        .startswith("143 of 1,437 clients are held out: they do not train, the model is scored")
    )
    for use in ("train", "none"):
        assert given[use].uncovered == ()
        np.testing.assert_array_equal(given[use].test.x, whole.test.x)


@pytest.mark.parametrize(("use", "asked"), [("none", {*range(100)} - HELD), ("train", HELD)])
def test_a_held_out_client_is_never_asked(tmp_path, read, use, asked):
    held_out = ("dataset.held_out=0.109", f"dataset.held_out_use={use}", "population.cohort_size=5")
    found = summary(run(tmp_path / "run", *SMALL_HELD, *held_out))
    assert found["clients"] == len(asked)
    assert found["rounds_per_epoch"] == len(asked) // 5
    assert read == asked


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("dataset.held_out=0.9", "population.cohort_size is 20, but there are only 10 clients"),
        ("dataset.held_out=0.001", "dataset.held_out is 0.001, which is none of 100 clients"),
        ("dataset.held_out=0.1 engine=deployment", "clients of a deployment are its nodes'"),
    ],
)  # fmt: skip
def test_what_cannot_be_held_out_is_refused_in_one_sentence(tmp_path, given, said):
    with pytest.raises(FedmfError, match=said):
        simulate(composed(f"run.directory={tmp_path / 'run'}", *SMALL_HELD, *given.split()))
    assert not (tmp_path / "run").exists()
    if "engine" in given:
        with pytest.raises(SettingError, match=said):
            node_settings("clients=3 dataset=digits dataset.held_out=0.1")


def test_a_held_out_client_that_cannot_be_read_is_not_scored():
    clients = users_own.people(clients=6, unreadable=True).clients
    assert len(readable(clients, "mine")) == 5
    with pytest.raises(DataError, match="No held-out client of dataset mine can be read"):
        readable(clients[:0], "mine")


def test_the_command_writes_the_folder_says_how_it_is_used_and_writes_nothing_over(tmp_path, capsys):
    path = small_files.npz(tmp_path / "data.npz")
    given = ["import", str(path), str(tmp_path / "out")]
    assert guard(lambda: main(given)) == 0
    said = capsys.readouterr()
    assert f"dataset=by_user_npz dataset.path={tmp_path / 'out'}" in said.err
    assert said.out == ""
    assert len(load("by_user_npz", path=str(tmp_path / "out")).clients) == 3
    assert guard(lambda: main(given)) == 2
    assert "exists already; name a new folder" in capsys.readouterr().err
    inside = small_files.leaf(tmp_path / "leaf", "femnist") / "out"
    assert guard(lambda: main(["import", str(inside.parent), str(inside)])) == 2
    assert "out is inside /" in capsys.readouterr().err
    assert not inside.exists()
    assert guard(lambda: main(["import"])) == 2


def imported(source, out):
    import_data(str(source), out, lambda count: None)
    return out


IMPORTED = sorted(
    form for form, (name, *_) in small_files.FORMS.items() if name in ("femnist", "shakespeare", "stackoverflow")
)  # fmt: skip


def assert_same(one, other):
    key = SecretKey.reproducible(0)
    assert digest_clients(one.clients, key) == digest_clients(other.clients, key)
    for a, b in zip([*one.clients, one.test], [*other.clients, other.test], strict=True):
        assert (a.x.dtype, np.asarray(a.x).tobytes()) == (b.x.dtype, np.asarray(b.x).tobytes())
        np.testing.assert_array_equal(a.y, b.y)
    assert (one.unit, one.uncovered, one.classes) == (other.unit, other.uncovered, other.classes)


@pytest.mark.parametrize("form", [*IMPORTED, "npz"])
def test_an_imported_folder_holds_what_its_files_hold(tmp_path, monkeypatch, form):
    monkeypatch.setattr(conversion, "AT_ONCE", 4)  # several parts of each split
    given = small_files.settings(form, tmp_path)
    told = []
    source = Path(given["path"])
    if form.endswith(("_leaf", "_sqlite")):  # which are known by their content
        source = source.rename(tmp_path / "own")
    assert import_data(str(source), tmp_path / "out", told.append) == given["name"]
    assert sum(told) > 0 or form == "npz"
    given["path"] = str(source.rename(given["path"]))
    for more in ({}, {"examples_per_client": 2, "max_examples_per_user": 3}):
        whole, out = load(**given, **more), load(**given | {"path": str(tmp_path / "out")}, **more)
        assert_same(whole, out)
    for path in (tmp_path / "out").rglob("*.npy"):
        assert isinstance(np.load(path, mmap_mode="r"), np.memmap)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
    with pytest.raises(DataError, match="exists already"):
        imported(given["path"], tmp_path / "out")


def test_a_table_of_ones_own_is_told_that_it_needs_no_import(tmp_path):
    (tmp_path / "mine.csv").write_text("user,label,a\nann,0,1\n")
    with pytest.raises(DataError, match="needs no import: set dataset=by_user_csv"):
        imported(tmp_path / "mine.csv", tmp_path / "out")


def test_a_download_is_imported_by_its_natural_users_and_pictures_are_left_to_our_decoder(
    tmp_path, monkeypatch
):
    postscript = {"bytes": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 28 28\n%%EOF\n", "path": None}
    pictures = [postscript, *[small_files.png()] * (len(small_files.USERS) * small_files.ROWS - 1)]
    held = {"flwrlabs/femnist": small_files.parquet(tmp_path / "hub" / "data", image=pictures).parent}
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, repo_type: str(held.pop(name)))
    assert import_data("flwrlabs/femnist", tmp_path / "out", lambda count: None) == "femnist"
    y, x = (np.load(tmp_path / "out" / "all" / f"{name}.npy") for name in "yx")
    assert sorted({*y.tolist()}) == [-1, 3]
    np.testing.assert_array_equal(x[y == 3], 7)
    with pytest.raises(DataError, match=r"could not be downloaded \(KeyError.*put its files .*name that"):
        imported("flwrlabs/femnist", tmp_path / "other")
    with pytest.raises(DataError, match="exists already"):  # before anything is downloaded
        imported("flwrlabs/femnist", tmp_path / "out")


def test_files_too_big_to_be_converted_at_every_start_say_the_command(tmp_path, monkeypatch):
    given = small_files.settings("femnist_sqlite", tmp_path)
    whole = load(**given)
    monkeypatch.setattr(conversion, "SMALL", 0)
    said = r"emnist_all\.sqlite holds 0 MB, .*`fedmf data import /.*sqlite FOLDER`"
    with pytest.raises(DataError, match=said):
        load(**given)
    assert_same(load("femnist", path=str(imported(given["path"], tmp_path / "out"))), whole)
    with pytest.raises(DataError, match="holds femnist, not shakespeare"):
        load("shakespeare", path=str(tmp_path / "out"))
    small_files.hdf5(tmp_path / "h5", "femnist")
    imported(tmp_path / "h5", tmp_path / "letters")
    with pytest.raises(DataError, match="holds no split digits_train"):
        load("femnist", path=str(tmp_path / "letters"), only_digits=True)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("bounds", np.array([0, 10**6, 12, 18])),
        ("bounds", np.array([0, 6, 18])),
        ("bounds", np.array([0.0, 6.0, 12.0, 18.0])),
        ("bounds", np.array([0, 6, 12, 19])),
        ("y", np.zeros(17, np.int64)),
        ("order", np.array(0)),
    ],
)
def test_an_imported_folder_that_was_altered_is_answered_with_a_sentence(tmp_path, name, array):
    out = imported(small_files.leaf(tmp_path / "leaf", "femnist"), tmp_path / "out")
    np.save(out / "train" / f"{name}.npy", array)
    with pytest.raises(DataError, match=r"out/train (holds arrays that do not fit together|cannot be read)"):
        load("femnist", path=str(out))


def test_nothing_is_kept_of_files_that_are_refused_and_of_a_disk_without_room(tmp_path):
    path = small_files.leaf(tmp_path / "leaf", "femnist")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
    try:
        with pytest.raises(DataError, match=r"out cannot be written \(File too large\)"):
            imported(path, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(DataError, match="no is no folder"):
        imported(path, tmp_path / "no" / "out")
    file = next((path / "train").glob("*.json"))
    file.write_text(file.read_text()[:-9])
    with pytest.raises(DataError, match=r"\.json cannot be read as JSON"):
        imported(path, tmp_path / "out")
    for wrong in ("none", str(small_files.own_csv(tmp_path / "a.csv"))):
        with pytest.raises(DataError, match=r"does not exist|lacks the column"):
            imported(wrong, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "leaf"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "count", "most"),
    # Megabytes beyond the libraries': the float arrays are 440 MB, of which a copy of a fifth was converted and held; of
    # lists of pixels, 90 MB, parquet makes ten times as much where it decodes all of them at once.
    [("leaf", 40_000, 200), ("npy", 140_000, 60), ("lists", 80_000, 400)],
)
def test_a_big_file_takes_little_memory(tmp_path, what, count, most):
    written_data.WRITES[what](tmp_path / what, count, 200)
    base = written_data.measured("npy", small_files.npz(tmp_path / "small.npz"))
    path = imported(tmp_path / what, tmp_path / "out") if what == "leaf" else tmp_path / what
    assert written_data.measured(what, path) - base < most

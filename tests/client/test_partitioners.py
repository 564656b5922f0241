"""Arrays dealt out by flwr-datasets' partitioners: every row once, from the seed alone; and raw files without users, header or split."""

import gzip
import logging
import struct
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from flwr_datasets.partitioner import IidPartitioner

import small_files
from client.data import load
from client.data.partitioned import deal
from client.settings import PARTITIONERS
from experiments.data import import_data
from fedmf.errors import DataError, FedmfError, SettingError

LABELS = np.repeat(np.arange(5), 40)
USERS = np.arange(200) % 20
# What each needs besides its name, for ten clients.
SETTINGS = {
    "dirichlet": {"alpha": 0.5},
    "shards": {"num_shards_per_partition": 2},
    "inner_dirichlet": {"alpha": 0.5, "partition_sizes": [20] * 10},
    "sizes": {"partition_sizes": [11, 29] * 5},
    "distribution": {
        "distribution_array": np.ones((5, 4)).tolist(),
        "num_unique_labels_per_partition": 2,
        "preassigned_num_samples_per_label": 1,
    },
    "grouped": {"group_size": 2},
}
CLIENTS = {"square": 4, "exponential": 4}  # of 200 rows the first of ten would get none


def dealt(name, seed=0, clients=None, **settings):
    """Deal `LABELS` to ten clients, or to as many as the partitioner can."""
    given = {**SETTINGS.get(name, {}), **settings}
    return deal(name, clients or CLIENTS.get(name, 10), given, seed, LABELS, USERS)


def classes_seen(parts):
    """Return how many classes each client has examples of."""
    return [len(set(LABELS[part])) for part in parts]


@pytest.mark.parametrize("name", PARTITIONERS)
def test_dealing_gives_every_row_to_one_client_and_depends_on_the_seed_alone(name):
    parts, again, other = dealt(name), dealt(name), dealt(name, seed=1)
    named = dealt(PARTITIONERS[name], clients=CLIENTS.get(name), **SETTINGS.get(name, {}))
    assert sorted(np.concatenate(parts).tolist()) == list(range(200))
    assert all((a == b).all() and (a == c).all() for a, b, c in zip(parts, again, named, strict=True))
    if name not in ("grouped", "distribution"):  # of which nothing is drawn here
        assert any(a.tolist() != b.tolist() for a, b in zip(parts, other, strict=False))


def test_partitioners_are_those_that_their_names_promise(caplog):
    seen = {name: np.mean(classes_seen(dealt(name))) for name in ("iid", "shards")}
    assert seen["shards"] <= 2
    assert np.mean(classes_seen(dealt("dirichlet", alpha=0.1))) < 4 < seen["iid"]
    assert classes_seen(dealt("pathological")) == [2] * 10
    three = {"num_classes_per_partition": 3, "class_assignment_mode": "deterministic"}
    assert classes_seen(dealt("pathological", **three)) == [3] * 10
    assert [len(part) for part in dealt("sizes")] == [11, 29] * 5
    assert [len(part) for part in dealt("linear", clients=4)] == [20, 40, 60, 80]
    assert [len(set(USERS[part])) for part in dealt("grouped")] == [2] * 10
    with caplog.at_level(logging.WARNING):
        dealt("sizes", partition_sizes=[1] * 10)
    assert "leaves 190 of 200 training examples to no client" in caplog.text


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("sizes", {"partition_sizes": [5, 5]}, "deals to 2 clients, but clients is 10; set clients to 2"),
        ("iid", {"num_partitions": 3}, "holds num_partitions; leave it out: set clients instead"),
        ("dirichlet", {"shuffle": True}, "holds shuffle; leave it out: it is chosen here"),
        ("exponential", {}, "cannot deal 200 examples to 10 clients .* not greater than 0"),
        ("pathological", {"classes": 2}, "unexpected keyword argument 'classes'"),
        (
            "pathological",
            {"num_classes_per_partition": 9},
            "cannot deal 200 examples .* greater than the number",
        ),
        ("SizePartitioner", {}, "missing 1 required positional argument: 'partition_sizes'"),
        (
            "shards",
            {"num_shards_per_partition": 99999},
            "cannot deal 200 examples to 10 clients with num_shards_per_partition=99999",
        ),
        ("grouped", {"group_size": 0}, "with group_size=0"),
    ],
)
def test_a_partitioner_that_cannot_deal_says_why(name, settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        dealt(name, clients=10, **settings)


def test_a_row_that_two_clients_would_get_is_refused(monkeypatch):
    monkeypatch.setattr(IidPartitioner, "load_partition", lambda self, number: self.dataset)
    with pytest.raises(SettingError, match="deals 2000 rows, some of them twice"):
        dealt("iid")


def loaded(folder, name, settings=None, **arrays):
    """Return 200 rows of twenty users, of each of whom a row is in the test set, dealt out to five clients."""
    held = {
        "x": np.arange(200, dtype=np.uint8)[:, None],
        "y": LABELS,
        "user": USERS,
        "split": np.arange(200) % 40 >= 20,
    }
    np.savez(
        folder / "data.npz", **{key: value for key, value in (held | arrays).items() if value is not None}
    )
    path = str(folder / "data.npz")
    return load("partitioned", path=path, partitioner=name, partitioner_settings=settings, clients=5)


def test_settings_of_a_partitioner_reach_it_and_test_rows_stay_apart(tmp_path):
    one = {"num_classes_per_partition": 1, "class_assignment_mode": "deterministic"}
    dataset = loaded(tmp_path, "pathological", one, split=None, y=LABELS.astype(">i8"))
    assert [sorted(set(client.y)) for client in dataset.clients] == [[0], [1], [2], [3], [4]]
    held = np.concatenate([client.x for client in dataset.clients] + [dataset.test.x])
    assert sorted(np.rint(held[:, 0] * 255).astype(int)) == list(range(200))
    assert (len(dataset.test), dataset.classes) == (40, 5)


@pytest.mark.parametrize(
    ("name", "said"), [("dirichlet", True), ("shards", True), ("pathological", True), ("iid", False), ("linear", False)]
)  # fmt: skip
def test_clients_dealt_by_label_say_that_labels_of_all_decide_about_each(tmp_path, name, said):
    dataset = loaded(tmp_path, name)
    assert ("labels of all training rows" in " ".join(dataset.uncovered)) is said
    assert f"made-up client ({name} partition)" in dataset.unit
    assert not dataset.warnings


def test_clients_that_get_nothing_are_counted_in_a_warning(tmp_path):
    dataset = loaded(tmp_path, "dirichlet", {"alpha": 1e-3})
    left = len(dataset.clients)
    assert left < 5
    assert dataset.warnings == (
        f"The partitioner dirichlet gave no example to {5 - left} of 5 clients: {left} are left.",
    )


def test_groups_of_users_are_the_unit_and_users_in_both_splits_are_counted(tmp_path):
    """In a file whose rows are in no order of users: row r is of user r % 20."""
    dataset = loaded(tmp_path, "grouped", {"group_size": 4}, split=np.arange(200) >= 160)
    assert [len({*np.rint(client.x[:, 0] * 255) % 20}) for client in dataset.clients] == [4] * 5
    assert dataset.unit == "one group of users, each whole in it (grouped partition) = one client"
    assert dataset.uncovered[0].startswith("20 of 20 users of the test split also train")


@pytest.mark.parametrize(
    ("name", "settings", "arrays", "sentence"),
    [
        ("random", None, {}, "iid, dirichlet, shards"),
        ("grouped", {"group_size": 2}, {"user": None}, "lacks user; .* without users choose"),
        ("iid", None, {"split": np.arange(200) > 2}, "one for each of 5 clients"),
        ("iid", None, {"y": None}, "lacks y"),
    ],
)
def test_files_that_cannot_be_dealt_are_sentences(tmp_path, name, settings, arrays, sentence):
    with pytest.raises(FedmfError, match=sentence):
        loaded(tmp_path, name, settings, **arrays)


# raw files as they are found


X, Y = np.arange(60, dtype=np.uint8).reshape(30, 2), np.arange(30) % 3
NAMES = {"a": X[:, 0] * 1.5, "b": -(X[:, 1].astype(float) ** 2), "label": Y}


def idx(folder):
    """Write four idx files, of which one part is packed."""
    folder.mkdir()
    for part, rows in (("train", slice(24)), ("t10k", slice(24, 30))):
        count = len(Y[rows])
        images = struct.pack(">BBBBii", 0, 0, 8, 2, count, 2) + X[rows].tobytes()
        labels = struct.pack(">BBBBi", 0, 0, 8, 1, count) + Y[rows].astype(np.uint8).tobytes()
        (folder / f"{part}-images-idx2-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{part}-labels.idx1-ubyte").write_bytes(labels)
    return folder


def write(folder, form):
    """Write thirty examples without users, and return the settings that read them."""
    path, given = folder / form, dict[str, Any](features=["a", "b"])
    if form == "idx":
        idx(path)
        given = {}
    elif form == "data.tra":
        rows = np.column_stack(list(NAMES.values()))
        np.savetxt(path, rows, delimiter=",", fmt="%d", header="from the net\nby hand")
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines[:9], "# 4,5,6", "# seven", *lines[9:]]))
        given = {"header": False, "comment": "#", "label": "f2", "features": ["f0", "f1"]}
    elif form == "data.parquet":
        pyarrow.parquet.write_table(pyarrow.table(NAMES), path)
    elif form == "saved":
        datasets.Dataset.from_dict(NAMES).save_to_disk(str(path))
    elif form == "pictures":
        for row, label in enumerate(Y):
            file = path / str(label) / f"{row}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(small_files.png((8, 8))["bytes"])
        given = {}
    else:
        path.write_text('{"text": "to be"}\n' * 30)
        given = {"level": "characters"}
    return {"path": str(path), **given}


FORMS = ["idx", "data.tra", "data.parquet", "saved", "pictures", "texts.jsonl"]


@pytest.mark.parametrize("form", FORMS)
def test_examples_of_any_form_without_users_are_dealt_out(tmp_path, form):
    given = write(tmp_path, form)
    dataset = load("partitioned", clients=4, **given)
    assert (len(dataset.clients), sum(map(len, dataset.clients)), len(dataset.test)) == (4, 24, 6)
    assert dataset.unit == "one made-up client (iid partition) = one client"
    assert not [sentence for sentence in dataset.uncovered if "users of the test split" in sentence]
    if form == "idx":
        np.testing.assert_allclose(dataset.test.x * 255, X[24:], rtol=1e-6)
        assert dataset.test.y.tolist() == Y[24:].tolist()
        assert import_data(given["path"], tmp_path / "out", print) == "partitioned"
        same = load("partitioned", clients=4, path=str(tmp_path / "out"))
        np.testing.assert_array_equal(same.clients[0].x, dataset.clients[0].x)
        return
    half = load("partitioned", clients=4, test_share=0.5, **given)
    assert (sum(map(len, half.clients)), len(half.test)) == (15, 15)


def test_what_a_form_does_not_use_or_lacks_is_an_error(tmp_path):
    given, texts, less = write(tmp_path, "idx"), write(tmp_path, "texts.jsonl"), idx(tmp_path / "less")
    (less / "train-labels.idx1-ubyte").unlink()
    for name, settings, error, sentence in (
        ("partitioned", {**given, "features": ["a"]}, SettingError, "read as dataset by_user_npz, does not use it"),
        ("partitioned", {**given, "test_share": 0.5}, SettingError, "test_share is 0.5, but the data have a split"),
        ("by_user_npz", given, DataError, "lacks user; .* without users choose dataset=partitioned"),
        ("partitioned", {"path": str(less)}, DataError, "holds 3 idx files; it must hold images and labels"),
        ("partitioned", {**texts, "partitioner": "dirichlet", "clients": 4}, SettingError, "deals by classes, which the task next_token lacks"),
    ):  # fmt: skip
        with pytest.raises(error, match=sentence):
            load(name, **settings)


def test_a_share_of_the_users_is_the_test_set_whoever_else_is_in_the_file(tmp_path):
    def read(first, **given):
        user = np.arange(200)[first:].repeat(2)
        np.savez(tmp_path / "a.npz", x=user[:, None] / 200, y=np.arange(len(user)) % 2, user=user)
        return load("by_user_npz", path=str(tmp_path / "a.npz"), **given)

    whole, some = (read(first, test="users", test_share=0.25) for first in (0, 100))
    held = {round(200 * float(x)) for x in whole.test.x[:, 0]}
    assert len(whole.test) == 2 * len(held) == 400 - 2 * len(whole.clients)
    assert abs(len(held) - 50) < 25  # four standard deviations
    assert {round(200 * float(x)) for x in some.test.x[:, 0]} == {user for user in held if user >= 100}
    assert whole.uncovered == ()
    with pytest.raises(DataError, match=r"the share 1e-09 is the test set, .* no test example; set another"):
        read(0, test="users", test_share=1e-9)

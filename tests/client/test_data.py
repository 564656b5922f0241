"""Datasets that ship or come as arrays: what a client is, how much of it is used, and which examples are the test set."""

import json

import numpy as np
import pytest
import torch

from client.data import Examples, from_arrays, load
from client.data.clients import digest_clients
from client.data.own import fifth_of_each
from fedmf.errors import DataError, SettingError
from plans import KEY


def arrays(count=30, users=4, *, split=True):
    """Return arrays of a small well-formed file; x[i] holds i, so that rows can be told apart. The last six are test rows."""
    x = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None], (count, 3, 2)).copy()
    user = np.random.default_rng(3).integers(0, users, count)
    held = {"x": x, "y": np.arange(count) % 5, "user": user, "split": (np.arange(count) >= count - 6)}
    return held if split else {name: held[name] for name in ("x", "y", "user")}


def save(folder, **contents):
    np.savez(folder / "data.npz", **contents)
    return str(folder / "data.npz")


def rows(dataset):
    """Return which rows of `arrays` each client holds."""
    return [np.rint(client.x[:, 0, 0] * 255).astype(int).tolist() for client in dataset.clients]


def test_digits_are_1437_clients_of_one_image_each_scaled_by_public_constants():
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=360, stratify=y, random_state=0)
    dataset = load("digits")
    assert (len(dataset.clients), dataset.classes, dataset.input_shape, dataset.uncovered) == (
        1437, 10, (8, 8), (),
    )  # fmt: skip
    assert (dataset.clients[0].x.dtype, dataset.test.y.dtype) == (np.float32, np.int64)
    np.testing.assert_allclose(dataset.test.x.reshape(360, -1), x_test / 16 - 0.3, atol=1e-6)
    np.testing.assert_array_equal(dataset.test.y, y_test)
    np.testing.assert_allclose(dataset.clients[77].x.reshape(1, -1), x_train[77:78] / 16 - 0.3, atol=1e-6)
    assert dataset.clients[77].y.tolist() == [y_train[77]]


def test_clients_of_an_npz_file_are_its_users_and_keep_every_training_row_once(tmp_path):
    contents = arrays()
    dataset = load("by_user_npz", path=save(tmp_path, **contents))
    expected = [np.flatnonzero(contents["user"][:24] == user).tolist() for user in range(4)]
    assert rows(dataset) == expected
    assert dataset.clients[1].y.tolist() == [row % 5 for row in expected[1]]
    np.testing.assert_allclose(dataset.test.x[:, 0, 0], np.arange(24, 30) / 255, rtol=1e-6)
    assert dataset.unit == "one user = one client"
    (tmp_path / "folder").mkdir()
    for name, array in contents.items():
        np.save(tmp_path / "folder" / f"{name}.npy", array)
    mapped = load("by_user_npz", path=str(tmp_path / "folder"))
    assert isinstance(mapped.clients.held.x, np.memmap)
    assert rows(mapped) == expected


def test_without_a_split_a_fifth_of_each_user_is_the_test_set(tmp_path):
    contents = arrays(60, split=False)
    dataset = load("by_user_npz", path=save(tmp_path, **contents))
    counts = np.bincount(contents["user"])
    assert [len(client) for client in dataset.clients] == (counts - counts // 5).tolist()
    assert any("treated as public" in sentence for sentence in dataset.uncovered)
    split = np.isin(contents["user"], [0]).astype(np.uint8)
    disjoint = load("by_user_npz", path=save(tmp_path, **contents, split=split))
    assert (len(disjoint.clients), disjoint.uncovered) == (3, ())


def test_arrays_in_memory_are_the_data_of_their_file(tmp_path):
    contents = arrays(60, split=False)
    x, y, user = (contents[name] for name in ("x", "y", "user"))
    there, here = (
        load("by_user_npz", path=save(tmp_path, **contents)),
        from_arrays(x, torch.from_numpy(y), [*user]),
    )
    assert rows(here) == rows(there) == rows(from_arrays(x, y, user.astype(object)))
    np.testing.assert_array_equal(here.test.x, there.test.x)
    assert (here.unit, here.classes, here.uncovered) == (there.unit, there.classes, there.uncovered)
    with_test = from_arrays(x, y, user, test=(x[:7], y[:7]))
    assert (sum(map(len, with_test.clients)), len(with_test.test), with_test.uncovered) == (60, 7, ())
    np.testing.assert_array_equal(with_test.test.y, y[:7])
    for wrong, says in (
        ((x, y[:3], user), r"y in from_arrays has the shape \(3,\)"),
        ((x, y.astype(float), user), "y in from_arrays holds whole numbers as floats"),
        ((x, y, None), r"user in from_arrays has the shape \(\)"),
    ):
        with pytest.raises(DataError, match=says):
            from_arrays(*wrong)
    with pytest.raises(DataError, match="x in test is float64"):
        from_arrays(x, y, user, test=(x[:7] / 255, y[:7]))


def test_the_number_of_classes_comes_from_public_labels_only(tmp_path):
    contents = arrays()
    contents["y"][24:] = [0, 1, 2, 1, 0, 0]
    path = save(tmp_path, **contents)
    assert load("by_user_npz", path=path).classes == 3
    with pytest.raises(DataError, match=r"label 2 .* 2 classes.* at least 3"):
        load("by_user_npz", path=path, classes=2)
    assert load("by_user_npz", path=path, classes=6).classes == 6


def test_unknown_names_and_settings_that_do_not_apply_are_refused():
    for name, settings, sentence in (
        ("mnist", {}, "digits, synthetic, by_user_npz"),
        ("digits", {"path": "somewhere"}, "digits does not use it"),
        ("by_user_npz", {}, r"^path is missing"),
        ("users_own:load_cutting", {"max_examples_per_user": 3, "examples_per_client": 2}, "cuts its users itself; let it"),
        ("digits", {"examples_per_client": 2}, r"^examples_per_client is 2, but the clients of dataset .* cannot be cut"),
        ("users_own:load", {"examples_per_client": 2}, "cannot be cut"),
        ("digits", {"max_examples_per_user": 0}, "^max_examples_per_user is 0; it must be a whole number of at least 1"),
        ("users_own:load", {"max_test_examples": 0}, "^max_test_examples is 0"),
        ("synthetic", {"clients": 10**9 + 1}, "at most 1,000,000,000"),
        ("synthetic", {"features": 0}, r"^features is 0"),
        ("synthetic", {"shift": -1.0}, r"^shift is -1"),
    ):  # fmt: skip
        with pytest.raises(SettingError, match=sentence):
            load(name, **settings)


def test_clients_behave_like_a_sequence_and_examples_have_one_length():
    clients = load("digits").clients
    assert len(clients[3:6]) == 3
    np.testing.assert_array_equal(clients[-1].x, clients[1436].x)
    with pytest.raises(IndexError):
        clients[1437]
    with pytest.raises(DataError, match="2 inputs but 3 targets"):
        Examples(np.zeros((2, 1), np.float32), np.zeros(3, np.int64))


# Which examples of a user are the test set, where the file does not say it.


@pytest.mark.parametrize("kind", [int, str], ids=["numbers", "names"])
def test_the_split_of_a_user_depends_on_the_seed_and_not_on_what_other_users_have(kind):
    def split(first, seed=0):
        users = np.repeat(np.arange(50), [first, *[10] * 49])
        return fifth_of_each(users.astype(kind), seed=seed)[first:]

    np.testing.assert_array_equal(split(10), split(11))
    assert (split(10) != split(10, seed=1)).any()
    without = fifth_of_each(np.repeat(np.arange(1, 50), 10).astype(kind), seed=0)
    np.testing.assert_array_equal(split(10), without)


def test_places_among_names_are_drawn_for_as_the_names():
    users = np.random.default_rng(0).integers(0, 3, 60)
    for names in (["ann", "bob", "cat"], [-3, 7, 2**63 - 1], [2**63 + 1, 2**63 + 2, 2**64 - 1]):
        expected = fifth_of_each(np.array(names)[users], seed=0)
        np.testing.assert_array_equal(fifth_of_each(users, seed=0, names=names), expected)


def test_a_small_number_or_a_text_among_the_names_changes_nothing_for_large_numbers():
    large, users = [2**63 + 1 + 3 * place for place in range(40)], np.repeat(np.arange(41), 10)
    alone = fifth_of_each(users[:-10], seed=0, names=large)
    for other in (5, "ann"):
        np.testing.assert_array_equal(fifth_of_each(users, seed=0, names=[*large, other])[:-10], alone)


def test_the_split_chooses_every_place_of_a_user_as_often():
    chosen = fifth_of_each(np.repeat(np.arange(20_000), 10), seed=0).reshape(-1, 10)
    assert (chosen.sum(axis=1) == 2).all()
    assert np.abs(chosen.mean(axis=0) - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 20_000)
    pairs = chosen.T.astype(float) @ chosen / 20_000  # of ten places two: each pair once in 45
    off = pairs[~np.eye(10, dtype=bool)]
    assert np.abs(off - 1 / 45).max() < 5 * np.sqrt(1 / 45 / 20_000)
    neighbours = (chosen[1:] & chosen[:-1]).mean()  # of one user and the next
    assert abs(neighbours - 0.04) < 5 * np.sqrt(0.04 / 200_000)


LINES = {
    "by_user_csv": ("user,x,label\n", lambda user, row: f"{user},{row},0", {}),
    "by_user_text": (
        "",
        lambda user, row: json.dumps({"user": user, "text": chr(97 + row)}),
        {"level": "characters", "length": 2},
    ),
    "shakespeare": ("character_id,x,y\n", lambda user, row: f"{user},{'x' * 80},{chr(97 + row)}", {}),
}


@pytest.mark.parametrize("name", LINES)
def test_what_a_user_trains_on_does_not_depend_on_who_else_is_in_the_file(tmp_path, name):
    head, line, settings = LINES[name]
    path = tmp_path / ("data.csv" if head else "data.jsonl")

    def clients(*users):
        path.write_text(head + "\n".join(line(user, row) for user in users for row in range(20)))
        return load(name, path=str(path), **settings).clients[-2:]

    for held, alone in zip(clients("ann", "bob", "cat"), clients("bob", "cat"), strict=True):
        assert len(held) == 16
        np.testing.assert_array_equal(held.x, alone.x)
        np.testing.assert_array_equal(held.y, alone.y)


# How much of a dataset is used: the first examples of a user, users that are cut, part of the test set.


@pytest.mark.parametrize(
    ("limits", "unit"),
    [
        ({"max_examples_per_user": 2}, "one user = one client, with at most the user's first 2 examples"),
        (
            {"examples_per_client": 2},
            "one user cut into clients of at most 2 examples: the unit of privacy is the cut client, not the user",
        ),
        (
            {"max_examples_per_user": 3, "examples_per_client": 2},
            "one user, of whose examples at most the first 3 are used, cut into clients of at most 2 examples (at most 2 of "
            "one user): the unit of privacy is the cut client, not the user",
        ),
    ],
)
def test_users_are_capped_first_and_then_cut(tmp_path, limits, unit):
    path = save(tmp_path, **arrays())
    dataset = load("by_user_npz", path=path, **limits)
    cap, piece = limits.get("max_examples_per_user", 99), limits.get("examples_per_client", 99)
    whole = [own[:cap] for own in rows(load("by_user_npz", path=path))]
    assert rows(dataset) == [own[i : i + piece] for own in whole for i in range(0, len(own), piece)]
    assert dataset.unit == unit


def test_a_test_set_is_cut_to_a_public_draw_that_a_larger_one_contains(tmp_path):
    path = save(tmp_path, **arrays(200) | {"split": np.arange(200) >= 160})
    few, more, whole = (
        load("by_user_npz", path=path, max_test_examples=count).test.x[:, 0, 0].tolist()
        for count in (5, 20, 99)
    )
    assert (len(few), len(more), len(whole)) == (5, 20, 40)
    assert set(few) < set(more) < set(whole)
    assert few != whole[:5]  # not the beginning of the file, which may hold one user alone
    assert few == sorted(few)


def test_a_loader_of_ones_own_is_limited_too_and_its_clients_are_others():
    whole, three, again, two = (load("users_own:load", max_examples_per_user=n) for n in (None, 3, 3, 2))
    assert [client.y.tolist() for client in three.clients] == [[0, 1, 2]] * 3
    keys = [digest_clients(one.clients, KEY) for one in (whole, three, again, two)]
    assert (len(set(keys)), keys[1]) == (3, keys[2])
    assert three.unit.endswith("= one client, with at most the first 3 examples of each")
    itself = load("users_own:load_capping", max_examples_per_user=3, examples_per_client=2)
    assert [len(client) for client in itself.clients] == [4, 4, 4]  # the loader's affair
    people = load("users_own:load_of_people", max_examples_per_user=4, examples_per_client=3)
    assert [client.y.tolist() for client in people.clients] == [[0, 1, 2], [3], [1, 2]]
    assert people.unit.endswith(
        "(at most 2 of one child): the unit of privacy is the cut client, not the child"
    )


def test_a_made_up_client_is_a_function_of_the_seed_and_its_number_alone():
    few, many = load("synthetic", clients=5), load("synthetic", clients=10**9)
    np.testing.assert_array_equal(few.clients[3].x, many.clients[3].x)
    np.testing.assert_array_equal(many.clients[999_999_999].x, many.clients[999_999_999].x)
    assert all((few.clients[i].x != few.clients[j].x).all() for i in range(5) for j in range(i))
    assert (load("synthetic", clients=5, seed=1).clients[3].x != few.clients[3].x).all()


def test_made_up_points_are_around_the_centre_of_their_class_moved_for_the_client():
    given = {
        "clients": 1,
        "examples_per_client": 20_000,
        "classes": 2,
        "features": 3,
        "shift": 5.0,
    }
    dataset = load("synthetic", **given)
    client = dataset.clients[0]
    centres = np.array([client.x[client.y == label].mean(axis=0) for label in range(2)])
    true = dataset.clients.held.centres
    # Means of 10,000 points with standard deviation 1: 0.06 is six of theirs.
    np.testing.assert_allclose(centres[1] - centres[0], true[1] - true[0], atol=0.06)
    assert np.linalg.norm(centres[0] - true[0]) > 1
    assert client.x.std(axis=0) == pytest.approx(np.sqrt(1 + true.std(axis=0) ** 2), abs=0.05)

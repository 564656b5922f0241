"""A digest of the clients changes with who they are and with their order, and with nothing else."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from client.data import ArrayClients, Examples, Public, clients as arrays, load
from client.data.benchmarks import Sentences
from client.data.clients import Fingerprint, LazyClients, check_clients_repeat, digest_clients
from fedmf.errors import DataError
from plans import KEY
from written_data import write_hdf5

PUBLIC = Public.of({"shape": [20], "classes": 6, "task": "next_token"})
RNG = np.random.default_rng(0)
X, Y = RNG.random((12, 3)).astype("f4"), RNG.integers(0, 2, 12)
CLIENTS = ArrayClients(X, Y, RNG.permutation(12), np.array([0, 2, 3, 7, 12]))


def other(array, place=(3,)):
    """A copy of an array with one number changed."""
    changed = array.copy()
    changed[place] += 1
    return changed


def swapped(clients):
    """The same clients with the first two in the other order."""
    order = np.concatenate([clients.order[2:3], clients.order[:2], clients.order[3:]])
    return replace(clients, order=order, bounds=np.array([0, 1, 3, 7, 12]))


CHANGED = {
    "an input": replace(CLIENTS, x=other(X)),
    "a label": replace(CLIENTS, y=other(Y)),
    "the type of the labels": replace(CLIENTS, y=Y.view("u8")),
    "their shape": replace(CLIENTS, x=X.reshape(12, 3, 1)),
    "a row that another client owns": replace(CLIENTS, bounds=np.array([0, 1, 3, 7, 12])),
    "the order of the clients": swapped(CLIENTS),
    "one client less": replace(CLIENTS, bounds=CLIENTS.bounds[:-1]),
}


@pytest.mark.parametrize("what", CHANGED)
def test_the_digest_changes_with(what):
    changed = CHANGED[what]
    assert digest_clients(CLIENTS, KEY) != digest_clients(changed, KEY)
    if "type" not in what:  # which `convert` makes the same
        assert digest_clients(list(CLIENTS), KEY) != digest_clients(list(changed), KEY)
    assert digest_clients(list(CLIENTS), KEY) == digest_clients(list(CLIENTS), KEY)


def test_clients_that_own_the_same_rows_of_another_file_order_are_the_same():
    """Only what the clients hold counts, not where the file keeps it."""
    moved = replace(CLIENTS, x=X[::-1], y=Y[::-1], order=11 - CLIENTS.order)
    assert digest_clients(moved, KEY) == digest_clients(CLIENTS, KEY)


def test_every_row_counts_where_a_file_is_read_in_parts(monkeypatch):
    monkeypatch.setattr(arrays, "_AT_ONCE", 5 * X[:1].nbytes)
    digests = {digest_clients(replace(CLIENTS, x=other(X, (row, 0))), KEY) for row in range(12)}
    assert len(digests | {digest_clients(CLIENTS, KEY)}) == 13


def test_the_digest_of_a_nodes_own_clients_leaves_out_the_others():
    mine = digest_clients(CLIENTS, KEY, 1, 3)
    for row in range(12):
        is_mine = row in CLIENTS.order[2:7]
        assert (digest_clients(replace(CLIENTS, x=other(X, (row, 0))), KEY, 1, 3) != mine) == is_mine
    assert digest_clients(CLIENTS, KEY, 0, 2) != mine
    assert digest_clients(CLIENTS, KEY, 3, 99) == digest_clients(CLIENTS, KEY, 3)


def test_cut_and_shortened_clients_are_the_rows_that_they_own():
    for clients, count in ((CLIENTS.first(2), 7), (CLIENTS.cut(2), 12), (CLIENTS.first(3).cut(2), 9)):
        held = ArrayClients(X, Y, clients.owned(range(len(clients)))[1], np.cumsum([0, *map(len, clients)]))
        assert sum(map(len, clients)) == count
        for a, b in zip(clients, held, strict=True):
            np.testing.assert_array_equal(a.x, b.x)
        assert digest_clients(clients, KEY) == digest_clients(held, KEY)
        assert digest_clients(clients, KEY, 1, 3) == digest_clients(held, KEY, 1, 3)


def test_of_sentences_the_users_numbers_and_lengths_count_and_none_is_read(tmp_path, monkeypatch):
    def digest(*users, **settings):
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        path.mkdir()
        data = {str(n): {"tokens": [text.encode() for text in texts]} for n, texts in enumerate(users)}
        write_hdf5(path, {f"stackoverflow_{split}": data for split in ("train", "test")})
        (path / "words").write_text("to\nbe\n")
        given = {"path": str(path), "vocabulary": str(path / "words"), "public": PUBLIC, **settings}
        return digest_clients(load("stackoverflow", **given).clients, KEY)

    monkeypatch.setattr(Sentences, "take", None)
    one = digest(["to", "be or"], ["not"])
    assert one == digest(["to", "be or"], ["not"])
    for other in ([["to", "be"], ["not"]], [["to"], ["be or", "not"]], [["not"], ["to", "be or"]]):
        assert one != digest(*other)
    assert one != digest(["to", "be or"], ["not"], examples_per_client=1)


def test_made_up_clients_are_what_they_are_drawn_from():
    one = load("synthetic", clients=1000).clients
    assert digest_clients(one, KEY) == digest_clients(load("synthetic", clients=1000).clients, KEY)
    for change in ({"seed": 1}, {"shift": 0.4}, {"examples_per_client": 9}, {"classes": 9}, {"clients": 999}):
        other = load("synthetic", **{"clients": 1000, **change}).clients
        assert digest_clients(other, KEY) != digest_clients(one, KEY)
    assert digest_clients(replace(one.held, seed=1), KEY) != digest_clients(
        one.held, KEY
    )  # around the same centres


class Own(LazyClients):
    """As many clients as `CLIENTS`, made by `read`."""

    def __init__(self, read):
        self.client = read

    def __len__(self):
        return len(CLIENTS)

    client = None


def damaged(last):
    """Clients of whom the second cannot be read, and the last holds `last`."""
    return Own(lambda i: Examples(np.full((1, 2), last if i == 3 else i / (i != 1)), np.zeros(1, int)))


def test_a_client_that_cannot_be_read_hides_no_other():
    assert digest_clients(damaged(1.0), KEY) == digest_clients(damaged(1.0), KEY)
    assert digest_clients(damaged(1.0), KEY) != digest_clients(damaged(2.0), KEY)


def test_texts_do_not_run_into_each_other_and_without_its_key_a_digest_says_nothing():
    def digest(*texts):
        fingerprint = Fingerprint(KEY)
        for text in texts:
            fingerprint.text(text)
        return fingerprint.hexdigest()

    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc"), digest("a", "b", "c")}) == 4
    assert digest_clients(CLIENTS, KEY) != digest_clients(CLIENTS, KEY.ratchet())


def augmented(from_client=0):
    """Clients whose inputs are other ones at every access, from one of them on."""
    draws = itertools.count()
    return Own(lambda i: Examples(CLIENTS[i].x + next(draws) * (i >= from_client), CLIENTS[i].y))


@pytest.mark.parametrize("from_client", [0, 3])
def test_clients_that_change_at_each_reading_are_refused_unless_they_say_who_they_are(from_client):
    with pytest.raises(DataError, match=rf"client {from_client} .* at each reading.* a method identify"):
        check_clients_repeat(augmented(from_client))
    named = augmented()
    named.identify = lambda fingerprint, numbers: fingerprint.text(str(numbers))
    for clients in (named, CLIENTS, list(CLIENTS), []):
        check_clients_repeat(clients)

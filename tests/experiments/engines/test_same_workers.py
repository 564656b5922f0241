"""What workers of a cluster must have in common with the process that asks them, held against copies that differ."""

import sys
from importlib.metadata import version

import numpy as np
import pytest

from client.data import ArrayClients
from client.data.dataset import LazyClients
from experiments.engines import same_workers
from experiments.engines.same_workers import described, refuse_others, sample_of, software_here
from experiments.settings.experiment import build
from fedmf import compiling
from fedmf.errors import SettingError
from runs import composed

NAME = "the Ray worker 17 on node b (0123abcd)"


def test_the_same_is_accepted_and_the_first_difference_is_named_with_its_worker():
    ours = software_here()
    refuse_others([("a", dict(ours)), (NAME, dict(ours))], ours)
    with pytest.raises(
        SettingError, match=r"17 on node b .* differs from this process in numpy: 1.0 there, 2"
    ):
        refuse_others([("a", dict(ours)), (NAME, {**ours, "numpy": "1.0"})], ours)
    with pytest.raises(SettingError, match="in torch: None there"):
        refuse_others([(NAME, {name: ours[name] for name in ours if name != "torch"})], ours)


@pytest.mark.skipif(not compiling.available(), reason="numba, the extra fast, is not installed")
def test_a_worker_whose_numba_is_another_or_cannot_be_used_is_refused(monkeypatch):
    """Installed it may be: its rotations are numpy's, and differ in the last bits from 2^15 coordinates on."""
    ours = software_here()
    assert ours["numba"] == version("numba")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "numba", None)
        compiling.available.cache_clear()
        theirs = software_here()
    compiling.available.cache_clear()
    with pytest.raises(SettingError, match=r"in numba: none that can be used there, \d.* here"):
        refuse_others([("a", dict(ours)), (NAME, theirs)], ours)
    with pytest.raises(SettingError, match=r"in numba: \d.* there, none that can be used here"):
        refuse_others([(NAME, ours)], theirs)
    with pytest.raises(SettingError, match=r"17 on node b .* in numba: 0\.1 there"):
        refuse_others([(NAME, {**ours, "numba": "0.1"})], ours)


@pytest.fixture(scope="module")
def experiment():
    return build(composed("engine=ray"))


def test_what_differs_in_data_model_and_bounds_is_seen(experiment):
    sample = sample_of(experiment.dataset.clients)
    ours = described(experiment, sample)
    assert described(build(composed("engine=ray")), sample) == ours
    for override, thing in {
        "clipping.l2_norm=2": "what a client enforces",
        "compression.keep_probability=0.2": "what a client enforces",
        "model=mlp": "the model",
        "dataset.max_test_examples=100": None,  # of which workers see nothing
    }.items():
        theirs = described(build(composed("engine=ray", override)), sample)
        assert [name for name in ours if theirs[name] != ours[name]][:1] == ([thing] if thing else [])


def arrays(count, changed=None):
    x, one_each = np.arange(4.0 * count, dtype="f4").reshape(count, 4), np.arange(count + 1)
    if changed is not None:
        x[changed] += 1
    return ArrayClients(x, np.zeros(count, np.int64), one_each[:-1], one_each)


def test_one_client_of_few_is_seen_and_a_hundredth_of_many_is(monkeypatch):
    few = sample_of(arrays(4000))
    assert few.numbers is None
    digest = same_workers._clients_digest
    assert digest(arrays(4000), few) == digest(arrays(4000), few)
    assert digest(arrays(4000, changed=[3999]), few) != digest(arrays(4000), few)
    many = sample_of(arrays(50_000))
    assert len(set(many.numbers)) == 1024
    assert digest(arrays(50_000, changed=np.arange(0, 50_000, 100)), many) != digest(arrays(50_000), many)
    assert digest(arrays(20), many) != digest(arrays(50_000), many)  # and fewer clients end nothing


class Named(LazyClients):
    """Clients that are known by name; their examples are `change` more than they should be."""

    def __init__(self, change=0.0, is_drawn=False):
        self.change, self.is_drawn = change, is_drawn

    def __len__(self):
        return 20

    def client(self, i):
        from client.data import Examples

        noise = np.random.default_rng().random() if self.is_drawn else 0.0
        return Examples(np.full((2, 3), i + self.change + noise, "f4"), np.zeros(2, np.int64))

    def identify(self, fingerprint, numbers):
        for i in numbers:
            fingerprint.text(f"user {i}")


def test_examples_behind_the_same_names_are_read_unless_each_reading_gives_others():
    sample, read = sample_of(Named()), same_workers._examples_digest
    assert len(sample.read) == 20
    assert read(Named(change=1), sample) != read(Named(), sample)
    assert sample_of(Named(is_drawn=True)).read == ()

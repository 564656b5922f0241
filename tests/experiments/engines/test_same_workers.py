"""What workers of a cluster must have in common with the process that asks them, held against copies that differ."""

import contextlib
import shutil
import sys
from importlib.metadata import version

import numpy as np
import pytest

from client.data import ArrayClients
from client.data.dataset import LazyClients
from experiments.engines import engine, same_workers
from experiments.engines.same_workers import (
    described,
    own_sources,
    refuse_others,
    sample_of,
    software_here,
    source_digest,
)
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
def test_a_worker_whose_numba_cannot_be_used_is_refused(monkeypatch):
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


MODEL = """import math
import torch


class Net(torch.nn.Linear):
    def __init__(self, input_shape, classes):
        super().__init__(math.prod(input_shape), classes)

    def forward(self, x):
        return super().forward(x.flatten(1))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of a module `own_module_m1` and a package `own_package_m1`, found first."""
    (tmp_path / "own_module_m1.py").write_text(MODEL)
    package = tmp_path / "own_package_m1"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py", "inner/nets.py", "helper.py"):
        (package / name).write_text("" if "__" in name else MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(("own_module_m1", "own_package_m1"))]:
        del sys.modules[name]


def test_every_python_file_of_a_package_counts_wherever_it_lies(folder, tmp_path_factory, monkeypatch):
    path = "own_package_m1.inner.nets:Net"
    here = source_digest(path)
    other = tmp_path_factory.mktemp("elsewhere")
    package, seen = shutil.copytree(folder / "own_package_m1", other / "own_package_m1"), []
    for name in [name for name in sys.modules if name.startswith("own_package_m1")]:
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(other))
    assert source_digest(path) == here
    for file in ("helper.py", "inner/nets.py", "__init__.py"):
        (package / file).write_text("changed = True\n")
        seen.append(source_digest(path))
    assert len({here, *seen}) == 4


def test_a_package_without_an_init_file_counts_whole_and_a_link_to_nowhere_in_it_is_no_file(folder):
    package = folder / "own_package_m1"
    for file in package.rglob("__init__.py"):
        file.unlink()
    (package / ".#helper.py").symlink_to("somebody@somewhere.1")
    before = source_digest("own_package_m1.inner.nets:Net")
    (package / "helper.py").write_text(MODEL + "\n")
    assert source_digest("own_package_m1.inner.nets:Net") != before


def test_each_key_that_a_worker_runs_code_of_is_compared_and_what_the_server_runs_alone_is_not(folder):
    settings = composed(
        *("model=custom", "model.name=own_module_m1:Net", "dataset=custom", "dataset.name=own_package_m1:load"),
        *("client.loss=own_module_m1:loss", "client.trainer=own_module_m1:train"),
        "metrics=[own_module_m1:one]",
    )  # fmt: skip
    keys = ["dataset.name", "model.name", "client.loss", "client.trainer"]
    ours = own_sources(settings)
    assert list(ours) == [f"the code of {key}" for key in keys]
    refuse_others([("a", own_sources(settings))], ours)
    (folder / "own_module_m1.py").write_text(MODEL.replace("flatten(1)", "flatten(2)"))
    with pytest.raises(
        SettingError, match=r"^b differs from this process in the code of model.name: digest "
    ):
        refuse_others([("b", own_sources(settings))], ours)
    assert own_sources(composed()) == {}


def test_what_is_found_nowhere_is_said_to_be_so_and_differs_from_what_is(folder):
    assert source_digest("own_module_m1.absent:f") == source_digest("own_module_m1:f")  # its package's files
    assert source_digest("no_such_module_m1.inner:f") == "of no file"
    assert source_digest("torch.nn.functional:mse_loss") == "as the software"


def test_workers_with_another_source_are_an_error_before_they_run_any_of_it(folder, monkeypatch):
    asked = []

    def ask_each(processes, function, *arguments):
        asked.append(function)
        said = function(*arguments)
        return [("b", dict.fromkeys(said, "digest 0") if function is own_sources else said)]

    monkeypatch.setattr(engine, "ray_processes", lambda *given: contextlib.nullcontext([]))
    monkeypatch.setattr(engine, "ask_each", ask_each)
    settings = composed("engine=ray", "model=custom", "model.name=own_module_m1:Net")
    with pytest.raises(SettingError, match=r"in the code of model.name: digest 0 there"):
        engine.engine_workers(settings, None).__enter__()
    assert asked == [software_here, own_sources]

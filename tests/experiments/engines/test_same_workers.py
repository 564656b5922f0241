"""What workers of a cluster must have in common with the process that asks them, compared with copies that differ."""

import contextlib
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from client.data import Examples
from client.data.dataset import LazyClients
from experiments.engines import engine
from experiments.engines.engine import check_same, examples_digest, said_of, sample_of, source_digest
from experiments.settings.experiment import build
from fedmf import compiling
from fedmf.errors import DataError, SettingError
from runs import composed

NAME = "the Ray worker 17 on node b (0123abcd)"


def check(ours, *answers):
    """Compare what this process says with the answers of workers, the last of which has a name."""
    check_same([worker(lambda answer=answer: answer, NAME) for answer in answers], (), ours)


def worker(answer, name):
    """A worker that says what `answer` returns, or cannot for what it raises."""
    return SimpleNamespace(name=name, call=lambda function, *given: SimpleNamespace(result=answer))


def said(*overrides, sample=None):
    settings = composed("engine=ray", *overrides)
    experiment = build(settings)
    return said_of(settings, experiment, sample or sample_of(experiment.dataset.clients))


def test_what_differs_is_seen_and_the_first_difference_is_named_with_its_worker(monkeypatch):
    sample = sample_of(build(composed()).dataset.clients)
    ours = said(sample=sample)
    assert said("dataset.max_test_examples=100", sample=sample) == ours  # of which workers see nothing
    for override, thing in {
        "clipping.l2_norm=2": "what a client enforces",
        "compression.keep_probability=0.2": "what a client enforces",
        "model=mlp": "the model",
        "dataset=synthetic": "the shape of an example",
    }.items():
        theirs = said(override, sample=sample)
        with pytest.raises(SettingError, match=rf"17 on node b .* differs from this process in {thing}: "):
            check(ours, dict(ours), theirs)
    # Installed it may be: its rotations are numpy's, and differ in the last bits from 2^15 coordinates on.
    monkeypatch.setattr(compiling, "version", lambda: "0")
    with pytest.raises(SettingError, match=r"in numba: 0 there, .* here"):
        check(ours, said(sample=sample))


def test_a_worker_that_cannot_answer_is_named():
    def missing():
        raise DataError("no such file")

    with pytest.raises(SettingError, match=r"17 on node b .* cannot run this run's clients: no such file"):
        check_same([worker(missing, NAME)], (), {})


class Named(LazyClients):
    """Clients that are known by name; their examples are `change` more than they should be, or drawn at each reading."""

    def __init__(self, change=0.0):
        self.change = change

    def __len__(self):
        return 20

    def client(self, i):
        change = np.random.default_rng().random() if self.change is None else self.change
        return Examples(np.full((2, 3), i + change, "f4"), np.zeros(2, np.int64))

    def identify(self, fingerprint, numbers):
        for i in numbers:
            fingerprint.text(f"user {i}")


def test_examples_behind_the_same_names_are_read_unless_each_reading_gives_others():
    sample = sample_of(Named())
    assert sample[1] == tuple(range(20))
    assert examples_digest(Named(change=1), *sample) != examples_digest(Named(), *sample)
    assert sample_of(Named(change=None))[1] == ()


MODEL = """import torch


class Net(torch.nn.Linear):
    def __init__(self, input_shape, classes):
        super().__init__(4, classes)

    def forward(self, x):
        return super().forward(x.flatten(1))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of a module `own_module_m1` and a package `own_package_m1`, found first."""
    (tmp_path / "own_package_m1/inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py", "inner/nets.py", "helper.py", "../own_module_m1.py"):
        (tmp_path / "own_package_m1" / name).write_text("" if "__" in name else MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(("own_module_m1", "own_package_m1"))]:
        del sys.modules[name]


def test_every_python_file_of_a_package_counts_wherever_it_lies(folder, tmp_path_factory, monkeypatch):
    path = "own_package_m1.inner.nets:Net"
    seen, other = [source_digest(path)], tmp_path_factory.mktemp("elsewhere")
    package = shutil.copytree(folder / "own_package_m1", other / "own_package_m1")
    (package / ".#helper.py").symlink_to("somebody@somewhere.1")  # an editor's lock
    monkeypatch.syspath_prepend(str(other))
    assert source_digest(path) == seen[0]
    for file in ("helper.py", "inner/nets.py", "__init__.py"):
        (package / file).write_text("changed = True\n")
        seen.append(source_digest(path))
    for file in (*package.rglob("__init__.py"), *folder.rglob("__init__.py")):
        file.unlink()  # without one it counts whole too
    seen.append(source_digest(path))
    assert len({*seen}) == 5
    assert source_digest("no_such_module_m1.inner:f") == "of no file"
    assert source_digest("torch.nn.functional:mse_loss") == "as the software"


def test_a_worker_with_another_source_of_the_users_own_is_an_error_that_names_it(folder, monkeypatch):
    def theirs():
        (folder / "own_module_m1.py").write_text(MODEL.replace("flatten(1)", "flatten(2)"))
        return said_of(settings, experiment, engine_sample[0])

    engine_sample, real = [], engine.sample_of
    monkeypatch.setattr(
        engine, "sample_of", lambda clients: engine_sample.append(real(clients)) or engine_sample[0]
    )
    monkeypatch.setattr(engine, "ray_processes", lambda *given: contextlib.nullcontext([worker(theirs, "b")]))
    own = ("model=custom", "model.name=own_module_m1:Net", "dataset=custom", "dataset.name=poison:load")
    settings = composed("engine=ray", *own, "population.cohort_size=3")
    experiment = build(settings)
    with (
        pytest.raises(SettingError, match=r"^b differs from this process in the code of own_module_m1:Net: "),
        engine.engine_worker(settings, experiment),
    ):
        pytest.fail("it began")

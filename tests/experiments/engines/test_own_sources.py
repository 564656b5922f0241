"""The source of a user's own code is compared between the machines of a cluster, as far as its files are found."""

import contextlib
import shutil
import sys

import pytest

from experiments.engines import engine
from experiments.engines.same_workers import own_sources, refuse_others, software_here, source_digest
from fedmf.errors import SettingError
from runs import composed

pytestmark = pytest.mark.long

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


def test_another_source_of_the_users_own_code_is_seen_under_its_key(folder):
    settings = composed("model=custom", "model.name=own_module_m1:Net")
    ours = own_sources(settings)
    assert list(ours) == ["the code of model.name"]
    refuse_others([("a", own_sources(settings))], ours)
    (folder / "own_module_m1.py").write_text(MODEL.replace("flatten(1)", "flatten(2)"))
    with pytest.raises(
        SettingError, match=r"^b differs from this process in the code of model.name: digest "
    ):
        refuse_others([("b", own_sources(settings))], ours)


@pytest.mark.parametrize("file", ["helper.py", "inner/nets.py", "__init__.py"])
def test_every_python_file_of_a_package_counts_wherever_it_lies(folder, file, tmp_path_factory, monkeypatch):
    before = source_digest("own_package_m1.inner.nets:Net")
    other = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(folder / "own_package_m1", other / "own_package_m1")
    for name in [name for name in sys.modules if name.startswith("own_package_m1")]:
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(other))
    assert source_digest("own_package_m1.inner.nets:Net") == before
    with (other / "own_package_m1" / file).open("a") as changed:
        changed.write("\n")
    assert source_digest("own_package_m1.inner.nets:Net") != before


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
        *(
            "model=custom",
            "model.name=own_module_m1:Net",
            "dataset=custom",
            "dataset.name=own_package_m1:load",
        ),
        *(
            "client.loss=own_module_m1:loss",
            "client.trainer=own_module_m1:train",
            "metrics=[own_module_m1:one]",
        ),
    )
    keys = ["dataset.name", "model.name", "client.loss", "client.trainer"]
    assert list(own_sources(settings)) == [f"the code of {key}" for key in keys]
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

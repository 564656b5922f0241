"""With run.log=json each line on stderr is one JSON object."""

import json
import logging
import signal
import sys
import threading
import warnings

import pytest
from flwr.common.logger import FLOWER_LOGGER

import runs
from experiments import run as run_api
from experiments.cli import command
from experiments.datasets import DatasetsSettings
from experiments.settings import log as json_log
from json_logs import objects

SMALL = ("dataset=synthetic", "dataset.clients=24", "dataset.features=5", "population.cohort_size=8",
         "population.epochs=1")  # fmt: skip
CHANGING = """\
import logging
import multiprocessing
import torch

class Changes(torch.nn.Linear):
    def forward(self, x):
        if multiprocessing.parent_process() is not None:  # in a worker alone
            logging.getLogger("changing").warning("said by a worker")
        return super().forward(x)

def make(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return Changes(input_shape[0], classes)
"""


@pytest.fixture
def log(monkeypatch, capsys):
    """Write JSON in this process; give a function that returns what was logged since it was last called."""
    filters = FLOWER_LOGGER.filters[:]
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's
    monkeypatch.setattr(FLOWER_LOGGER, "handlers", [])
    for owner in (sys, threading):
        monkeypatch.setattr(owner, "excepthook", owner.excepthook)
    monkeypatch.setenv(json_log.LOG, "text")
    monkeypatch.setenv(json_log.RUN, "0")
    json_log.install()
    json_log.name_run(7)
    yield lambda: objects(capsys.readouterr().err)
    logging.captureWarnings(False)
    FLOWER_LOGGER.filters[:] = filters


def test_a_record_a_warning_and_what_ends_a_process_or_thread_are_one_object_each_with_the_traceback(log):
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        logging.getLogger("server.strategy").exception("it broke:\n%s", "here")
        sys.excepthook(*sys.exc_info())
        threading.excepthook(threading.ExceptHookArgs((ValueError, error, error.__traceback__, None)))
    broke, *ends = said = log()
    assert (broke["logger"], broke["level"], broke["message"], broke["run"]) == (
        "server.strategy", "ERROR", "it broke:\nhere", "7",
    )  # fmt: skip
    assert [(end["level"], end["message"]) for end in ends] == [("CRITICAL", "ValueError: two\nlines")] * 2
    assert all(each["traceback"].startswith("Traceback") for each in said)
    assert all(each["traceback"].endswith("ValueError: two\nlines") for each in said)
    warnings.showwarning("careful", UserWarning, "f.py", 3)
    (said,) = log()
    assert said["logger"] == "py.warnings"
    assert "careful" in said["message"]


def test_flowers_own_lines_are_objects_once_each_even_of_handlers_made_later(log):
    json_log.install()
    for text in ("from Flower", "again"):
        FLOWER_LOGGER.handlers[:] = [logging.StreamHandler(sys.stderr)]
        FLOWER_LOGGER.warning(text)
        (said,) = log()
        assert (said["logger"], said["level"], said["message"]) == ("flwr", "WARNING", text)


def test_a_message_is_itself_and_a_warning_or_an_error_says_that_it_is_one(log, monkeypatch, capsys):
    def say():
        for level in (logging.INFO, logging.WARNING, logging.ERROR):
            json_log.messages.log(level, "a large delta")

    say()
    assert [said["level"] for said in log()] == ["INFO", "WARNING", "ERROR"]
    monkeypatch.setenv(json_log.LOG, "text")
    say()
    said = "a large delta\nwarning: a large delta\nerror: a large delta\n"
    assert capsys.readouterr().err == said


def test_a_command_that_the_environment_asks_for_json_logs_as_much_as_it_would_as_text(log, monkeypatch):
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the handlers are those of the tests
    with pytest.raises(SystemExit):
        command.run(lambda _: logging.getLogger("a.b").info("said"), "datasets", DatasetsSettings, argv=[])
    assert [(said["logger"], said["message"]) for said in log()] == [("a.b", "said")]


@pytest.mark.long
def test_the_python_api_writes_json_that_names_the_run(log, tmp_path):
    run_api(*SMALL, "run.log=json", run={"directory": str(tmp_path / "mine")})
    assert {entry.get("run") for entry in log()} == {"mine"}


@pytest.mark.long
def test_every_line_of_a_run_with_workers_is_an_object_and_stdout_is_its_result(tmp_path):
    """Its model logs a warning in each worker."""
    (tmp_path / "changing.py").write_text(CHANGING)
    own = ("model=custom", "model.name=changing:make", "run.directory=mine")
    process = runs.command(*SMALL, *own, "run.log=json", "engine.workers=2", "output=json", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["rounds"] == 3
    said = objects(process.stderr)
    assert {entry.get("run") for entry in said} == {"mine"}
    assert any(entry["message"].startswith("round 3/3") for entry in said)
    warned = [entry for entry in said if entry["logger"] == "changing"]
    assert {(entry["level"], entry["message"]) for entry in warned} == {("WARNING", "said by a worker")}

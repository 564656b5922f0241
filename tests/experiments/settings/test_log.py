"""Each line on stderr is one JSON object, whoever wrote it."""

import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from flwr.common.logger import FLOWER_LOGGER

import runs
from experiments import run as run_door
from experiments.cli import command
from experiments.datasets import DatasetsSettings
from experiments.settings import log as json_log
from json_logs import objects

SMALL = (
    "dataset=synthetic",
    "dataset.clients=24",
    "dataset.features=5",
    "dataset.classes=3",
    "population.cohort_size=8",
    "population.epochs=1",
)
CHANGING = """\
import logging
import multiprocessing
import torch

class Changes(torch.nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.layer = torch.nn.Linear(features, classes)

    def forward(self, x):
        if multiprocessing.parent_process() is not None:  # in a worker alone
            logging.getLogger("changing").warning("said by a worker")
        return self.layer(x)

def make(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return Changes(input_shape[0], classes)
"""


@contextmanager
def writing_json(monkeypatch):
    """Write JSON in this process; give a function that returns what was logged since it was last called."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's
    monkeypatch.setattr(FLOWER_LOGGER, "handlers", [logging.StreamHandler(stream)])
    monkeypatch.delenv(json_log.LOG, raising=False)

    def read():
        text = stream.getvalue()
        stream.truncate(0)
        stream.seek(0)
        return objects(text)

    with json_log.written(True, 7):
        yield read


def test_a_record_is_one_object_with_its_run_and_its_traceback_inside(monkeypatch):
    with writing_json(monkeypatch) as log:
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logging.getLogger("server.strategy").exception("it broke:\n%s", "here")
        (said,) = log()
        assert said["logger"] == "server.strategy"
        assert (said["level"], said["message"], said["run"]) == ("ERROR", "it broke:\nhere", "7")
        assert said["traceback"].startswith("Traceback (most recent call last):")
        assert said["traceback"].endswith("ValueError: two\nlines")


def test_flowers_own_lines_are_objects_once_each_even_of_handlers_made_later(monkeypatch):
    with writing_json(monkeypatch) as log:
        FLOWER_LOGGER.warning("from Flower")
        (said,) = log()
        assert (said["logger"], said["level"], said["message"]) == ("flwr", "WARNING", "from Flower")
        FLOWER_LOGGER.handlers[:] = [logging.StreamHandler(sys.stderr)]
        FLOWER_LOGGER.warning("again")
        assert [said["message"] for said in log()] == ["again"]


def test_lines_of_the_http_server_are_objects_as_it_sets_its_handlers_up_when_it_starts():
    """As Flower's SuperLink does; requests stay on stdout. In a process of its own: setting up closes all handlers there are."""
    program = (
        "import logging, logging.config\nfrom flwr.supercore.http_logging import get_uvicorn_log_config\n"
        "from experiments.settings import log as json_log\njson_log.install()\n"
        "logging.config.dictConfig(get_uvicorn_log_config(logging.INFO))\n"
        "logging.getLogger('uvicorn.error').info('started')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    found = objects(done.stderr)
    assert [(said["logger"], said["level"], said["message"]) for said in found] == [
        ("uvicorn.error", "INFO", "started")
    ]


def test_after_it_loggers_write_what_they_wrote(monkeypatch, caplog):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(FLOWER_LOGGER, "handlers", [logging.StreamHandler(stream)])
    before = sys.excepthook, threading.excepthook, warnings.showwarning
    caplog.set_level(logging.INFO, FLOWER_LOGGER.name)  # the command raises it for good
    with json_log.written(True, "r"):
        json_log.messages.info("inside")
        FLOWER_LOGGER.info("inside")
    json_log.messages.info("outside")
    FLOWER_LOGGER.info("outside")
    assert (sys.excepthook, threading.excepthook, warnings.showwarning) == before
    *inside, first, second = stream.getvalue().splitlines()
    assert [(said["message"], said["run"]) for said in objects("\n".join(inside))] == [("inside", "r")] * 2
    assert first == second == "outside"


def test_a_message_is_itself_and_a_warning_or_an_error_says_that_it_is_one(capsys, monkeypatch):
    with writing_json(monkeypatch) as log:
        for level in (logging.INFO, logging.WARNING, logging.ERROR):
            json_log.messages.log(level, "a large delta")
        assert [said["level"] for said in log()] == ["INFO", "WARNING", "ERROR"]
        os.environ[json_log.LOG] = "text"
        for level in (logging.INFO, logging.WARNING, logging.ERROR):
            json_log.messages.log(level, "a large delta")
        assert sys.stderr.getvalue() == "a large delta\nwarning: a large delta\nerror: a large delta\n"
        os.environ[json_log.LOG] = "json"


def test_a_warning_and_what_ends_a_process_or_a_thread_are_one_object_each(monkeypatch):
    with writing_json(monkeypatch) as log:
        warnings.showwarning("careful", UserWarning, "f.py", 3)
        (said,) = log()
        assert said["logger"] == "py.warnings"
        assert "careful" in said["message"]
        try:
            raise RuntimeError("the end")
        except RuntimeError as error:
            sys.excepthook(*sys.exc_info())
            ended = threading.ExceptHookArgs(
                (RuntimeError, error, error.__traceback__, threading.current_thread())
            )
        threading.excepthook(ended)
        for said in log():
            assert (said["level"], said["message"]) == ("CRITICAL", "RuntimeError: the end")
            assert "Traceback" in said["traceback"]


def test_what_flower_copies_to_the_superlink_is_json_too(monkeypatch):
    """It puts a function in the place of the stream's `write`."""
    with writing_json(monkeypatch):
        copied, write = [], sys.stderr.write
        monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=lambda text: (copied.append(text), write(text))[1],
                                                           flush=lambda: None))  # fmt: skip
        json_log.messages.info("said")
        logging.getLogger("server").error("logged")
        assert [said["message"] for said in objects("".join(copied))] == ["said", "logged"]


def test_a_command_that_the_environment_asks_for_json_logs_as_much_as_it_would_as_text(monkeypatch):
    with writing_json(monkeypatch) as log:
        monkeypatch.setattr(logging.root, "level", logging.WARNING)
        monkeypatch.setattr(signal, "signal", lambda *_: None)  # the handlers are those of the tests
        monkeypatch.setattr(logging.root, "handlers", [])
        with pytest.raises(SystemExit) as end:
            command.run(
                lambda settings: logging.getLogger("a.b").info("said"), "datasets", DatasetsSettings, argv=[]
            )
        assert end.value.code == 0
        assert [(said["logger"], said["message"]) for said in log()] == [("a.b", "said")]


@pytest.mark.long
def test_the_python_door_writes_json_for_one_run_and_text_after_it(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv(json_log.LOG, raising=False)
    run_door(*SMALL, "run.log=json", run={"directory": str(tmp_path / "mine")})
    said = objects(capsys.readouterr().err)
    assert said
    assert {entry.get("run") for entry in said} == {"mine"}
    assert not json_log.is_on()
    assert json_log.LOG not in json_log.os.environ


@pytest.mark.long
def test_every_line_of_a_run_with_workers_is_an_object_and_stdout_is_its_result(tmp_path):
    """Its model logs a warning in each worker."""
    (tmp_path / "changing.py").write_text(CHANGING)
    process = runs.command(
        *SMALL,
        "run.log=json",
        "engine.workers=2",
        "model=custom",
        "model.name=changing:make",
        "run.directory=mine",
        "output=json",
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["rounds"] == 3
    said = objects(process.stderr)
    assert {entry.get("run") for entry in said} == {"mine"}
    assert any(entry["message"].startswith("round 3/3") for entry in said)
    warned = [entry for entry in said if entry["logger"] == "changing"]
    assert {(entry["level"], entry["message"]) for entry in warned} == {("WARNING", "said by a worker")}

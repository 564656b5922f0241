"""Each line on stderr is one JSON object, whoever wrote it."""

import io
import json
import logging
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from flwr.common.logger import FLOWER_LOGGER
from rich.console import Console
from rich.progress import track

import runs
from experiments import run as run_door
from experiments.cli import command
from experiments.session import json_log
from experiments.settings.output import Output
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
import multiprocessing
import torch

class Changes(torch.nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.layer, self.calls = torch.nn.Linear(features, classes), 0

    def forward(self, x):
        if multiprocessing.parent_process() is not None:  # in a worker alone
            self.calls += 1
        return self.layer(x)

def make(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return Changes(input_shape[0], classes)
"""


@contextmanager
def writing_json():
    """Write JSON in this process; give a function that returns what was logged since it was last called.

    Flower's logger has one handler, as when Flower is imported, whatever other tests of this process gave it.
    """
    before, sys.stderr = sys.stderr, io.StringIO()
    stream, of_pytest = sys.stderr, logging.root.handlers[:]
    logging.root.handlers[:] = []
    of_flower, propagated = FLOWER_LOGGER.handlers[:], FLOWER_LOGGER.propagate
    FLOWER_LOGGER.handlers[:], FLOWER_LOGGER.propagate = [logging.StreamHandler()], True
    json_log.install()

    def read():
        text = stream.getvalue()
        stream.truncate(0)
        stream.seek(0)
        return objects(text)

    try:
        yield read
    finally:
        json_log.uninstall()
        assert (sys.stderr, logging.root.handlers) == (stream, [])
        sys.stderr, logging.root.handlers[:] = before, of_pytest
        FLOWER_LOGGER.handlers[:], FLOWER_LOGGER.propagate = of_flower, propagated


def test_a_record_is_one_object_with_its_run_and_its_traceback_inside():
    with writing_json() as log:
        json_log.name_run(7)
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logging.getLogger("server.strategy").exception("it broke:\n%s", "here")
        (said,) = log()
        assert said["logger"] == "server.strategy"
        assert (said["level"], said["message"], said["run"]) == ("ERROR", "it broke:\nhere", "7")
        assert said["traceback"].startswith("Traceback (most recent call last):")
        assert said["traceback"].endswith("ValueError: two\nlines")


def test_flowers_own_lines_are_objects_once_each_even_of_handlers_made_later():
    with writing_json() as log:
        FLOWER_LOGGER.warning("from \x1b[92mFlower\x1b[0m")
        (said,) = log()
        assert (said["logger"], said["level"], said["message"]) == ("flwr", "WARNING", "from Flower")
        late = logging.StreamHandler(sys.stderr)
        late.setFormatter(logging.Formatter("INFO :      %(message)s"))
        FLOWER_LOGGER.addHandler(late)
        FLOWER_LOGGER.warning("again")
        assert {said["message"] for said in log()} == {"again"}


def test_lines_of_the_http_server_are_objects_as_it_sets_its_handlers_up_when_it_starts():
    """As Flower's SuperLink does, routine requests left out. In a process of its own: setting up closes all handlers there are."""
    program = (
        "import logging, logging.config\nfrom flwr.supercore.http_logging import get_uvicorn_log_config\n"
        "from experiments.session import json_log\njson_log.install()\n"
        "logging.config.dictConfig(get_uvicorn_log_config(logging.INFO))\n"
        "logging.getLogger('uvicorn.error').info('started')\n"
        "access = logging.getLogger('uvicorn.access')\n"
        "for path in ('/v1/fleet/pull-messages', '/elsewhere'):\n"
        "    access.info('%s - \"%s %s HTTP/%s\" %d', '127.0.0.1:1', 'POST', path, '1.1', 200)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    found = objects(done.stderr)
    assert [said["logger"] for said in found] == ["uvicorn.error", "uvicorn.access"]
    assert (found[0]["level"], found[0]["message"]) == ("INFO", "started")
    assert found[1]["message"] == '127.0.0.1:1 - "POST /elsewhere HTTP/1.1" 200'
    assert done.stdout == ""


def test_after_it_loggers_are_as_they_were(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logger = logging.getLogger("mine.own")
    own = logging.StreamHandler(stream)
    logger.addHandler(own)
    before = (
        [*FLOWER_LOGGER.handlers],
        FLOWER_LOGGER.propagate,
        [*FLOWER_LOGGER.filters],
        [*logging.root.handlers],
    )
    with json_log.written(True, "r"):
        assert isinstance(sys.stderr, json_log.Lines)
        logger.error("inside")
        assert own not in logger.handlers
    assert sys.stderr is stream
    assert (logger.handlers, logger.propagate) == ([own], True)
    assert (
        [*FLOWER_LOGGER.handlers],
        FLOWER_LOGGER.propagate,
        [*FLOWER_LOGGER.filters],
        [*logging.root.handlers],
    ) == before
    assert sys.excepthook is sys.__excepthook__ or "json_log" not in sys.excepthook.__module__
    (said,) = objects(stream.getvalue())
    assert (said["message"], said["run"]) == ("inside", "r")
    logger.removeHandler(own)


def test_a_handler_of_a_file_is_left_alone(tmp_path):
    file = tmp_path / "flower.log"
    handler = logging.FileHandler(file)
    with writing_json():
        FLOWER_LOGGER.addHandler(handler)
        json_log.install()
        FLOWER_LOGGER.warning("plain")
        assert handler in FLOWER_LOGGER.handlers
    handler.close()
    assert file.read_text() == "plain\n"


def test_what_is_printed_becomes_an_object_a_line():
    with writing_json() as log:
        print("one\ntwo", file=sys.stderr)
        print("half", end="", file=sys.stderr)
        print(" a line", file=sys.stderr)
        print("error: no such setting", file=sys.stderr)
        print("warning: a large delta", file=sys.stderr)
        print("\n  \n", file=sys.stderr)
        said = log()
        assert [entry["message"] for entry in said] == [
            "one",
            "two",
            "half a line",
            "error: no such setting",
            "warning: a large delta",
        ]
        assert [entry["level"] for entry in said] == ["INFO", "INFO", "INFO", "ERROR", "WARNING"]
        assert {entry["logger"] for entry in said} == {"stderr"}


def test_progress_is_lines_of_objects_and_of_what_changes_in_place_the_last_state():
    with writing_json() as log:
        for part in range(4):
            print(f"\rreading [{part}/3]", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        assert [said["message"] for said in log()] == ["reading [3/3]"]
        print("\rat one\rat once\r", file=sys.stderr)
        assert [said["message"] for said in log()] == ["at once"]
        for _ in track(range(3), console=Console(stderr=True, force_terminal=True)):
            pass
        assert log()
        Console(stderr=True).print("[bold red]shown[/]")
        assert [said["message"] for said in log()] == ["shown"]


def test_a_line_that_has_begun_is_written_at_the_end():
    with writing_json() as log:
        print("no end", end="", file=sys.stderr)
        assert log() == []
        sys.stderr.finish()
        assert [said["message"] for said in log()] == ["no end"]


def test_lines_of_several_threads_are_not_mixed():
    with writing_json() as log:
        sys.stderr.write("one ")
        other = threading.Thread(target=sys.stderr.write, args=("another line\n",))
        other.start()
        other.join()
        sys.stderr.write("line\n")
        assert [said["message"] for said in log()] == ["another line", "one line"]


def test_a_warning_and_what_ends_a_process_or_a_thread_are_one_object_each():
    with writing_json() as log:
        warnings.showwarning("careful", UserWarning, "f.py", 3)
        (said,) = log()
        assert said["logger"] == "py.warnings"
        assert "careful" in said["message"]
        try:
            raise RuntimeError("the end")
        except RuntimeError:
            sys.excepthook(*sys.exc_info())
        (said,) = log()
        assert (said["level"], said["message"]) == ("CRITICAL", "RuntimeError: the end")
        assert "Traceback" in said["traceback"]
        try:
            raise RuntimeError("of a thread")
        except RuntimeError as error:
            threading.excepthook(
                threading.ExceptHookArgs((RuntimeError, error, None, threading.current_thread()))
            )
        (said,) = log()
        assert said["message"].startswith("RuntimeError: of a thread in thread ")


def test_what_flower_copies_to_the_superlink_is_json_too():
    """It puts a function in the place of the stream's `write`, which a process that was there before must not lose."""
    with writing_json() as log:
        copied, write = [], sys.stderr.write
        sys.stderr.write = lambda text: (copied.append(text), write(text))[1]
        json_log.install()
        print("said", file=sys.stderr)
        logging.getLogger("server").error("logged")
        assert [said["message"] for said in objects("".join(copied))] == ["said", "logged"]
        assert [said["message"] for said in log()] == ["said", "logged"]


def test_another_form_than_text_or_json_is_refused(monkeypatch):
    monkeypatch.setenv(json_log.LOG, "jsn")
    with pytest.raises(SystemExit, match="FEDMF_LOG is 'jsn'; it must be text or json"):
        json_log.install_if_asked()
    monkeypatch.setenv(json_log.LOG, "text")
    json_log.install_if_asked()
    assert not json_log.is_on()


def test_a_command_that_the_environment_asks_for_json_logs_as_much_as_it_would_as_text(monkeypatch):
    @dataclass(frozen=True)
    class Nothing:
        output: Output

    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the handlers are those of the tests
    with writing_json() as log:
        with pytest.raises(SystemExit) as end:
            command.run(lambda settings: logging.getLogger("a.b").info("said"), "datasets", Nothing, argv=[])
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
    """Its model changes in training, of which each worker warns."""
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
    warned = [entry for entry in said if entry["logger"] == "client.resident"]
    assert {(entry["level"], entry["message"]) for entry in warned} == {
        ("WARNING", "training changes the model beyond its parameters; it is made anew for each client")
    }

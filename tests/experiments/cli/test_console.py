"""The console command, run as the script that an installation makes, in folders that are not ours."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from experiments.cli import console
from experiments.cli.console import PACKAGE, find_commands, usage

pytestmark = pytest.mark.long

ROOT = PACKAGE.parent
COMMANDS = find_commands(PACKAGE)
ENTRY = """
from experiments.cli.console import main
if __name__ == "__main__":
    sys.exit(main())
"""
PACKAGED = f"import sys\nsys.path.insert(1, {str(ROOT)!r})"
EDITABLE = f"""
import sys
from importlib.machinery import PathFinder
class Finder:  # as setuptools' finder of an editable install: it is asked after the whole of sys.path
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{str(ROOT)!r}]) if "." not in name else None
sys.meta_path.insert(sys.meta_path.index(PathFinder) + 1, Finder)
"""
MINE = """
import os
from pathlib import Path
from client.data import Dataset, load as load_ours
HERE = Path(__file__).parent
def load() -> Dataset:
    (HERE / f"loaded_by_{os.getpid()}").touch()
    return load_ours("digits")
"""
SMALL = (
    "population.epochs=1",
    "population.rounds_per_epoch=2",
    "population.cohort_size=8",
    "dataset=custom",
    "dataset.name=mine:load",
)


class Console:
    """The script `fedmf`, and a folder of the user's whose names are those of our packages."""

    def __init__(self, place: Path, install: str = PACKAGED) -> None:
        self.script, self.folder = place / "bin" / "fedmf", place / "folder"
        self.script.parent.mkdir()
        self.script.write_text(f"#!{sys.executable}\n{install}{ENTRY}")
        self.script.chmod(0o755)
        for name in ("experiments", "server", "client", "fedmf", "conf"):
            (self.folder / name).mkdir(parents=True)
            (self.folder / name / "__init__.py").write_text("raise RuntimeError('a package of the user')")
        (self.folder / "mine.py").write_text(MINE)
        search = f"{self.script.parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": search, "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment.pop("PYTHONPATH", None)

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start any command in the user's folder."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, text=True, **pipes)

    def __call__(self, *arguments: str, expected: int = 0) -> tuple[str, str]:
        """Return what `fedmf` with these arguments prints to stdout and stderr."""
        with self.start(str(self.script), *arguments) as process:
            out, error = process.communicate(timeout=300)
        assert process.returncode == expected, error
        return out, error


@pytest.fixture
def fedmf(tmp_path: Path) -> Console:
    return Console(tmp_path)


def test_help_lists_every_command_with_a_sentence(fedmf: Console) -> None:
    out, error = fedmf("--help")
    assert (out, error) == (usage(COMMANDS), "")
    for name in COMMANDS:
        (sentence,) = re.findall(rf"^  {name} +(\S.*(?:\n {{5,}}\S.*)*)$", out, re.MULTILINE)
        assert sentence.endswith(".")
        assert "experiments." not in sentence
    assert {"simulate", "plan", "compare", "deploy_demo"} <= set(COMMANDS)


def test_help_imports_nothing_that_takes_time(fedmf: Console) -> None:
    with fedmf.start(sys.executable, "-X", "importtime", str(fedmf.script), "--help") as process:
        _, imported = process.communicate(timeout=60)
    assert "experiments.cli.console" in imported
    assert not re.search(r"\b(numpy|torch|hydra|omegaconf|flwr|rich)\b", imported)


def test_the_readme_lists_every_command() -> None:
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])} == set(COMMANDS)


def test_the_version_is_that_of_the_installation(fedmf: Console) -> None:
    assert fedmf("--version") == (f"fedmf {version('fedmf')}\n", "")


def test_without_a_command_the_help_goes_to_stderr(fedmf: Console) -> None:
    assert fedmf(expected=2) == ("", usage(COMMANDS))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulat"], "'simulat' is no command of fedmf; did you mean simulate?"),
        (["qqq"], "'qqq' is no command of fedmf; `fedmf --help` lists all of them."),
        (["--completion", "tcsh"], "--completion is tcsh; it must be bash."),
        (["plan", "epsilon"], "epsilon is not understood; settings are given as key=value"),
    ],
)
def test_a_mistake_is_one_sentence_and_exits_2(fedmf: Console, arguments: list[str], said: str) -> None:
    out, error = fedmf(*arguments, expected=2)
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith(f"error: {said}")


def test_messages_name_the_command_as_it_was_called(fedmf: Console) -> None:
    _, error = fedmf("simulate", "--bogus", expected=2)
    assert "`fedmf simulate --help` lists them" in error


@pytest.mark.parametrize("install", [PACKAGED, EDITABLE])
def test_folders_of_the_users_do_not_hide_our_packages(tmp_path: Path, install: str) -> None:
    out, _ = Console(tmp_path, install)(
        "plan", "clients=100", "dimension=10", "cohort_size=10", "epsilon=1", "output=json"
    )
    assert '"epsilon": ' in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "at_least"),
    [
        (["engine.workers=2"], 2),  # the run itself and a worker
        pytest.param(["engine=ray", "engine.workers=2"], 2, marks=pytest.mark.ray),
        (["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=1,2"], 1),
    ],
)
def test_a_loader_in_the_current_directory_is_found_by_every_worker(
    tmp_path: Path, settings: list[str], at_least: int
) -> None:
    fedmf = Console(tmp_path, EDITABLE)
    _, error = fedmf("simulate", *settings, *SMALL)
    assert len(list(fedmf.folder.glob("loaded_by_*"))) >= at_least, error


@pytest.fixture
def interrupted(fedmf: Console) -> Iterator[subprocess.Popen[str]]:
    """A run that is still importing, with our handlers for signals."""
    with fedmf.start(str(fedmf.script), "simulate", "run.directory=r") as process:
        while not _catches(process.pid, signal.SIGTERM):
            assert process.poll() is None
        yield process
        process.kill()


def test_ctrl_c_while_a_command_is_imported_leaves_no_traceback(interrupted: subprocess.Popen[str]) -> None:
    assert "libtorch" not in Path(f"/proc/{interrupted.pid}/maps").read_text()
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.communicate(timeout=60) == ("", "")
    assert interrupted.returncode == 130


def _catches(pid: int, number: int) -> int:
    """Return 1 if a process has a handler of its own for a signal, which Python alone has not for SIGTERM."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (number - 1) & 1


@pytest.mark.parametrize(
    ("install", "function", "equals_breaks"),
    [
        ("fedmf --completion bash", "_fedmf", True),
        ("fedmf simulate -sc install=bash", "hydra_bash_completion", False),
    ],
)
def test_bash_completes_commands_and_settings(
    fedmf: Console, install: str, function: str, equals_breaks: bool
) -> None:
    typed = [
        "fedmf si",
        "fedmf simulate mecha",
        "fedmf simulate mechanism=op",
        "fedmf simulate -m seed=1 optimizer.le",
    ]
    script = f"""
eval "$({install})"
complete -p fedmf | grep -q {function} || exit 3
for COMP_LINE in {" ".join(f"'{line}'" for line in typed)}; do
    COMP_POINT=${{#COMP_LINE}} COMP_WORDS=($COMP_LINE) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMPREPLY=()
    {function} fedmf
    echo "${{COMPREPLY[@]}}"
done
"""
    with fedmf.start("bash", "--norc", "-c", script) as process:
        out, _ = process.communicate(timeout=120)
    key = "" if equals_breaks else "mechanism="  # bash replaces what follows =, unless = is no word break
    assert out.splitlines() == [
        "simulate",
        "mechanism= mechanism.name=",
        f"{key}optimal {key}optimal_dense",
        "optimizer.learning_rate=",
    ]


@pytest.mark.parametrize("named", [False, True])
def test_the_current_directory_is_searched_only_where_pythonpath_names_it_and_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}/first{os.pathsep}{'.' if named else ''}")
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    path = ["", "/first", str(tmp_path), "/second"]
    console._look_elsewhere(path)
    assert path == ["/first", "/second", str(ROOT), *[str(tmp_path)] * named]


NOTES_WHAT_IS_NOT_FOUND = """
import os, sys
class Last:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if "." not in name:
            with open(os.environ["NOT_FOUND"], "a") as file:
                file.write(name + "\\n")
sys.meta_path.append(Last)
"""
PLANTED = "import os\nopen(os.environ['RUN'], 'a').write(__name__ + ' ')\nraise ImportError(__name__)\n"


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.ray)])
def test_no_file_of_the_current_directory_is_run_under_the_name_of_an_optional_import(
    tmp_path: Path, engine: str
) -> None:
    """The names are those that the commands, their libraries and their workers look for and do not find."""
    fedmf = Console(tmp_path, EDITABLE)
    hook, names, run = tmp_path / "hook", tmp_path / "names", tmp_path / "run"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(NOTES_WHAT_IS_NOT_FOUND)
    fedmf.environment |= {"PYTHONPATH": str(hook), "NOT_FOUND": str(names), "RUN": str(run)}
    small = ("simulate", f"engine={engine}", "engine.workers=2", *SMALL[:3])
    fedmf.folder = tmp_path / "hostile"
    fedmf.folder.mkdir()
    fedmf("certificates", "directory=keys", "name=localhost")
    fedmf(*small, "run.directory=.")
    fedmf("report", "directory=.")
    # Ray's workers look for these, which are installed, before any code of ours has set their path.
    sought = set(names.read_text().split()) | {"pyarrow", "pydantic"}
    assert "bcrypt" in sought
    for name in sought:
        (fedmf.folder / f"{name}.py").write_text(PLANTED)
    fedmf("certificates", "directory=keys_2", "name=localhost")
    fedmf(*small, "run.directory=run")
    fedmf("report", "directory=.")
    assert not run.exists(), run.read_text()
    fedmf.environment["PYTHONPATH"] += f"{os.pathsep}{fedmf.folder}"
    fedmf("certificates", "directory=keys_3", "name=localhost")
    assert "bcrypt" in run.read_text()  # the files would have been run


@pytest.mark.parametrize(
    ("found", "fits"),
    [("1.40.2", False), ("1.41rc1", True), ("1.42+local", True), ("1.99", True), ("2.0.0", False)],
)
def test_another_version_of_flower_is_refused_in_a_sentence(fedmf: Console, found: str, fits: bool) -> None:
    (about := fedmf.folder / f"flwr-{found}.dist-info").mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flwr\nVersion: {found}\n")
    fedmf.environment["PYTHONPATH"] = str(fedmf.folder)
    (hidden := fedmf.folder / "experiments/__init__.py").unlink()
    hidden.parent.rmdir()
    out, error = fedmf("--version", expected=0 if fits else 2)
    if not fits:
        sentence = f"error: the installed version of Flower is {found}; fedmf needs flwr>=1.41,<2: pip install 'flwr>=1.41,<2'.\n"
        assert (out, error) == ("", sentence)
    assert '"flwr>=1.41,<2"' in (ROOT / "pyproject.toml").read_text()


def test_help_names_the_command_as_it_was_called_and_may_be_cut_short(fedmf: Console) -> None:
    out, _ = fedmf("plan", "--help")
    assert "`fedmf plan epsilon=8" in " ".join(out.split())
    assert "python -m" not in out
    with fedmf.start("bash", "-c", f"{fedmf.script} plan --help | head -n 1") as process:
        out, error = process.communicate(timeout=120)
    assert (out.count("\n"), error) == (1, "")


def test_choices_are_completed_by_their_names(fedmf: Console) -> None:
    fedmf.environment["COMP_LINE"] = "fedmf simulate workload="
    assert fedmf("-sc", "query=bash")[0].split() == [
        "workload=momentum",
        "workload=prefix_sum",
        "workload=run",
    ]


def test_the_list_of_commands_fits_into_80_columns():
    assert max(map(len, usage(find_commands(PACKAGE)).splitlines())) <= 80

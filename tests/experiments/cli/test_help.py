"""What --help shows: every key from the one reference, nothing internal, quickly, and at 80 columns."""

import ast
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.cli.console import PACKAGE, find_commands
from experiments.cli.help import help_text
from experiments.settings.reference import SETTINGS, experiments, reference
from fedmf.errors import SettingError

ROOT = PACKAGE.parent
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from experiments.cli.console import main; main()"
HEAVY = re.compile(r"\b(torch|flwr|sklearn|pandas|matplotlib)\b")
INTERNAL = re.compile(
    r"_target_|_schema|schema/|omegaconf|_here_|_self_|\?\?\?|dataclass|experiments\.settings", re.IGNORECASE
)


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def doc_of(name: str) -> str:
    return ast.get_docstring(ast.parse(find_commands(PACKAGE)[name].read_text())) or ""


def words(text: str) -> str:
    return " ".join(text.split())


def shows(shown: str, *parts: str) -> bool:
    """Say whether the words of all parts are shown: columns tear them apart."""
    return {*" ".join(parts).split()} <= {*shown.split()}


@pytest.mark.parametrize("name", SETTINGS)
def test_help_shows_every_key_with_default_and_meaning_and_a_topic_all_that_is_known(name: str) -> None:
    known = reference(name)
    shown = help_text(name, doc_of(name), ["--help"])
    for about in known.groups.values():
        assert shows(shown.replace(";", ""), about.about.replace(";", ""))
    for item in known.settings:
        if not item.group or item.is_of(known.groups[item.group].default):
            assert shows(
                shown,
                item.key,
                item.meaning,
                f"({item.default})" if item.default == "required" else item.default,
            )
    for topic in (*known.groups, *known.keys):
        shown = help_text(name, "", ["--help", topic])
        for item in known.settings:
            if topic in (item.key, item.group):
                assert shows(shown, item.meaning)
                assert all(choice in shown for choice in (*item.choices, *item.of))
        for choice, about in known.groups[topic].choices.items() if topic in known.groups else ():
            assert shows(shown, f"{topic}={choice}", about)


def test_help_of_a_choice_shows_its_keys_alone() -> None:
    shown = help_text("simulate", "", ["--help", "model=mlp"])
    assert "model.hidden = 256" in shown
    assert "model.trainable" in shown
    assert "model.embedding" not in shown
    assert "model=cnn" not in shown


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("modle", "did you mean model?"),
        ("model=cn", "must be one of logistic, mlp, cnn"),
        ("model.hiden", "did you mean model.hidden"),
    ],
)
def test_a_topic_that_there_is_not_is_refused_with_the_nearest(topic: str, said: str) -> None:
    with pytest.raises(SettingError, match=re.escape(said)):
        help_text("simulate", "", ["--help", topic])


@pytest.mark.parametrize("name", SETTINGS)
def test_help_fits_80_columns_and_shows_nothing_internal(name: str) -> None:
    shown = [help_text(name, doc_of(name), ["--help"])]
    shown += [help_text(name, "", ["--help", topic]) for topic in reference(name).groups]
    for text in shown:
        assert not INTERNAL.search(text), INTERNAL.search(text)
        for line in text.splitlines():
            assert len(line) <= 80, line


def test_help_names_the_published_runs() -> None:
    shown = words(help_text("simulate", doc_of("simulate"), ["--help"]))
    assert experiments()
    assert f"published run: {', '.join(experiments())}." in shown


@pytest.mark.parametrize(
    "arguments", [("simulate", "--help"), ("simulate", "--help", "model"), ("help", "plan")]
)
def test_help_takes_less_than_two_seconds_and_imports_nothing_heavy(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", START, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
    )  # CPU: the machine may be busy
    assert "experiments.cli.help" in done.stderr
    assert not HEAVY.search(done.stderr), HEAVY.search(done.stderr)
    assert "units of the hidden layer" in done.stdout or "Settings, given as" in done.stdout

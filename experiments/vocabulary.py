"""Make a vocabulary from PUBLIC text: `python -m experiments.vocabulary file=words.txt size=10000 text=FILE`.

With level=characters it contains characters. Without `text` the words are those of Python's own documentation, which is on every
machine: its language reference and the docstrings of its standard library (PSF licence). Never use the training users' texts: a
vocabulary is public, and the privacy accounting does not cover it.
"""

import ast
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Literal

from client.data.reading import reading
from client.data.text import WORDS, most_frequent, words
from experiments.cli import command, output
from experiments.settings.values import PRINTED, Output
from fedmf.errors import DataError
from fedmf.setting import REQUIRED, setting
from server.files import write_output


@dataclass(frozen=True)
class VocabularySettings:
    file: str = setting(REQUIRED, "new file to write, one word a line")
    size: int = setting(10000, "maximum number of words, the most frequent first", at_least=1)
    level: Literal["words", "characters"] = setting("words", "unit that is counted")
    text: str | None = setting(None, "file of public text in UTF-8; null: Python's own documentation")
    output: Output = setting("text", PRINTED)


def vocabulary(settings: VocabularySettings) -> None:
    """Write the most frequent words or characters of `settings.text` to `settings.file`, one on each line."""
    target = Path(settings.file)
    if target.exists() or target.is_symlink():
        raise DataError(f"{target} exists already; file must name a new file.")
    with reading(settings.text or "", "UTF-8 text"):
        lines = (
            documentation() if settings.text is None else Path(settings.text).read_text("utf-8").splitlines()
        )
    tokens = most_frequent(map(words if settings.level == WORDS else list, lines), settings.size)
    if not tokens:
        raise DataError(f"{settings.text} contains no words; text must name a file of public text.")
    write_output(target, "".join(f"{token}\n" for token in tokens).encode())
    source = settings.text or f"the documentation of Python {sys.version.split()[0]}"
    output.show(
        settings.output,
        {"file": str(target), settings.level: len(tokens), "source": source},
        lambda: print(f"{len(tokens)} {settings.level} of {source} written to {target}"),
    )


def documentation() -> Iterator[str]:
    """Yield the texts of Python's language reference and the docstrings of its standard library."""
    yield from topics.values()
    library = Path(sysconfig.get_path("stdlib"))
    for module in sorted(sys.stdlib_module_names):
        for file in (library / f"{module}.py", *sorted((library / module).rglob("*.py"))):
            if file.is_file() and not any("test" in part for part in file.relative_to(library).parts):
                yield from docstrings(file.read_bytes())


def docstrings(source: bytes) -> Iterator[str]:
    """Yield the docstrings of a Python module, its classes and functions; none for what is no Python.

    >>> list(docstrings(b"class Cat: 'An animal.'"))
    ['', 'An animal.']
    """
    try:
        with warnings.catch_warnings(
            action="ignore"
        ):  # old modules hold escapes that today's Python warns of
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


if __name__ == "__main__":
    command.run(vocabulary, "vocabulary", VocabularySettings, __doc__)

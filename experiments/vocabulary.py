"""Make a vocabulary from PUBLIC text: `python -m experiments.vocabulary text=FILE file=words.txt size=10000`.

Never point it at the training users' texts: a vocabulary is public, and privacy accounting does not cover it.
"""

import gzip
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from client.data.text import most_frequent, words
from experiments import command
from experiments.config_data import Output
from fedmf.checks import check_at_least
from fedmf.errors import DataError


@dataclass
class VocabularyConfig:
    """Keys of the command: public text (plain or .gz), where to write, and how many words to keep."""

    text: str = "???"
    file: str = "???"
    size: int = 10_000
    output: Output = Output.text


def vocabulary(config: DictConfig) -> None:
    """Write the most frequent words of `config.text` to `config.file`, one on each line."""
    source, target = Path(config.text), Path(config.file)
    check_at_least("size", config.size, 1)
    if target.exists():
        raise DataError(f"{target} exists already; file must name a new file.")
    tokens = most_frequent((words(line) for line in read_lines(source)), config.size)
    if not tokens:
        raise DataError(f"{source} holds no words; text must name a file of public text.")
    target.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    if config.output is Output.json:
        command.print_json({"file": str(target), "words": len(tokens)})
    else:
        print(f"{len(tokens)} words written to {target}", file=sys.stdout)


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, plain or .gz; raise `DataError` when it cannot be read."""
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8") as file
        ):
            yield from file
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text ({error}).") from error


if __name__ == "__main__":
    command.run(vocabulary, "vocabulary", VocabularyConfig, __doc__)

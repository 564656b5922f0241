"""Compute a published result again: `python -m experiments.reproduce name=sgmf_figure1`.

Prints ours beside the expected numbers and writes the figures to `directory`; without a name it lists all results.
whole_run trains thousands of models, for some hours: `python -m experiments.reproduce name=whole_run workers=3
data=mnist_by_writer.npz`; a call that was cut short goes on where it was.
"""

import ast
import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from rich.table import Table

from experiments.cli import command, output
from experiments.reproduce import LONG, NAMES, SIZED, Means, Reproduction, page
from experiments.settings.output import PRINTED, Output
from fedmf.checks import check_at_least, check_choice
from fedmf.errors import SettingError
from fedmf.setting import setting


@dataclass(frozen=True)
class ReproduceSettings:
    """Keys of the command; data, workers, compute and mix_code are for results that train many models, size for those that have some.

    name null: all results are listed, and nothing is computed.
    """

    name: str | None = setting(None, "which published result; null: list them all", NAMES)
    directory: str = setting(
        "outputs/reproduce",
        "folder of the results: page and figure as NAME.md and NAME.png, NAME_SIZE in another size "
        "than the first; the runs of a long one as NAME.jsonl",
    )
    data: str | None = setting(None, "the file with real data; null: what needs it is left out")
    size: str | None = setting(
        None,
        "how much is computed: small of what comes in one size; of whole_run full or small, of "
        "sgmf_femnist, sgmf_csgm, sgmf_text and denisov_mechanisms small, laptop or paper, of "
        "henzinger_counting and denisov_solvers small or laptop; null: the first of these",
    )
    workers: int = setting(1, "processes that train; 1: this one")
    compute: bool = setting(True, "false: only write the page, from the runs that are there")
    mix_code: bool = setting(
        False,
        "true: add runs beside lines of NAME.jsonl that other code played, or that do not name their "
        "code; the page says how many there are of each",
    )
    output: Output = setting(Output.text, PRINTED)

    def __post_init__(self) -> None:
        if self.name is not None:
            check_choice("name", self.name, NAMES)
        if not self.directory.strip():
            raise SettingError(
                "directory is empty; it must name the folder for figures and pages, such as reproduced."
            )
        check_at_least("workers", self.workers, 1)
        given = {"data": self.data is not None, "size": self.size is not None and not self._is_only_size,
                 "workers": self.workers > 1, "compute": not self.compute, "mix_code": self.mix_code}  # fmt: skip
        for key in [key for key, is_given in given.items() if is_given]:
            takers = SIZED if key == "size" else LONG
            lacks = "comes in one size" if key == "size" and self.name else "trains no models"
            if self.name not in takers:
                raise SettingError(
                    f"{key} is {getattr(self, key)}, but {self.name or 'a list of the results'} {lacks} and has no use of it; "
                    f"leave it out, or choose {' or '.join(takers)}."
                )
            if self.size == "paper" and key != "size":
                raise SettingError(
                    f"{key} is {getattr(self, key)}, but size=paper trains nothing and has no use of it; leave it out."
                )
        if self.data is not None and not Path(self.data).is_file():
            lack = "is no file" if Path(self.data).exists() else "does not exist"
            said = f"{self.data}, which {lack}" if self.data.strip() else "empty"
            raise SettingError(f"data is {said}; it must name the file of the data.")

    @property
    def _is_only_size(self) -> bool:
        """Whether the size is that of a result which comes in this one."""
        return self.size == "small" and self.name is not None and self.name not in SIZED

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the command is given to compute the result again."""
        size = () if self.size is None or self._is_only_size else (f"size={self.size}",)
        return (f"name={self.name}", f"directory={self.directory}", *size)

    @property
    def means(self) -> Means:
        """With what a result that comes in sizes is computed."""
        data = None if self.data is None else Path(self.data).absolute()
        return Means(data, self.size, self.workers, self.compute, self.mix_code)


def reproduce(settings: ReproduceSettings) -> None:
    """Compute and print the result named, or list them all."""
    if settings.name is None:
        show_list(settings.output)
        return
    logging.getLogger("server").setLevel(logging.WARNING)  # a line for each of thousands of runs helps nobody
    module = import_module(f"experiments.reproduce.{settings.name}")
    directory = Path(settings.directory)
    means = (settings.means,) if settings.name in SIZED else ()
    wall, cpu = time.monotonic(), time.process_time()
    with folder(directory):
        result: Reproduction = module.reproduce(directory, *means)
    if result.about:
        took = page.Took(time.monotonic() - wall, time.process_time() - cpu)
        page.write(directory, settings.arguments, result, took)
    if settings.output is Output.json:
        output.print_json(as_document(settings.name, result))
    else:
        print_text(result)


@contextlib.contextmanager
def folder(directory: Path) -> Iterator[None]:
    """Make a folder for the block; where the block fails with nothing in it, what was made of its path goes again."""
    made = [one for one in (directory, *directory.parents) if not one.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for one in made:
            with contextlib.suppress(OSError):  # not empty: what is in it stays
                one.rmdir()
        raise


def show_list(form: Output) -> None:
    """Print every result with what it is, the first sentence of its module."""
    folder = Path(__file__).parent
    results = {name: _about((folder / f"{name}.py").read_text(encoding="utf-8")) for name in NAMES}
    if form is Output.json:
        output.print_json([{"name": name, "about": about} for name, about in results.items()])
        return
    table = Table(title="Results: reproduce name=NAME", show_header=False)
    for name, about in results.items():
        table.add_row(name, about)
    output.console().print(table)


def _about(source: str) -> str:
    """Return the first paragraph of a module's docstring on one line, without importing what it computes with."""
    return " ".join((ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0].split())


def as_document(name: str, result: Reproduction) -> dict[str, object]:
    """Return the result as JSON-ready values."""
    return {
        "name": name,
        "title": result.title,
        "rows": [dict(zip(result.columns, row, strict=True)) for row in result.rows],
        "worst_relative_error": result.worst_relative_error,
        "notes": list(result.notes),
        "figures": [str(path) for path in result.figures],
        "sections": [
            {
                "heading": part.heading,
                "rows": [dict(zip(part.columns, row, strict=True)) for row in part.rows],
            }
            for part in result.sections
        ],
    }


def print_text(result: Reproduction) -> None:
    """Print the result as a table for people."""
    console = output.console()
    table = Table(title=result.title)
    for column in result.columns:
        table.add_column(column, justify="right")
    for row in result.rows:
        table.add_row(*(page.text(cell) for cell in row))
    console.print(table)
    for note in result.notes:
        console.print(note)
    if result.worst_relative_error is not None:
        console.print(f"Worst relative error: {result.worst_relative_error:.2g}.")
    for path in result.figures:
        console.print(f"Figure: {path}")


if __name__ == "__main__":
    command.run(reproduce, "reproduce", ReproduceSettings, __doc__)

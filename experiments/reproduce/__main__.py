"""Compute a published result again: `python -m experiments.reproduce name=sgmf_figure1`, in a checkout.

Prints ours next to the expected numbers and draws the figures into `directory`. A table that has marks on the result's page
there is replaced between them; any other is written as RESULT.TABLE.csv. Without a name it lists all results. Results that train are made of the runs in NAME.jsonl; with
`data`, or for digits compute=true, the runs that are missing are made first, which takes hours and can be cut short.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from experiments.cli import output
from experiments.reproduce import CLOSED, SIZED, Reproduction, tools
from experiments.reproduce.study import Study, studies
from experiments.settings.values import PRINTED, Output
from fedmf.checks import check_choice
from fedmf.errors import SettingError
from fedmf.setting import setting

# The page of a result, the first word of its marks and figures, its tables, and the figures drawn.
Made = tuple[str | None, str, Reproduction, Sequence[Path]]


@dataclass(frozen=True)
class ReproduceSettings:
    """Keys of the command; without a name all results are listed."""

    name: str | None = setting(None, "published result; null: list them all")
    directory: str = setting(
        "outputs/reproduce", "folder of the page, the figures and the runs in NAME.jsonl"
    )
    size: str | None = setting(
        None, "how much is computed, such as small or laptop; null: the result's first size"
    )
    data: str | None = setting(None, "file with the real data of a result that trains")
    compute: bool = setting(True, "whether the runs that are missing are made; false: only the page")
    runs: str = setting("outputs/reproduce/runs", "folder of the run directories")
    workers: int = setting(1, "processes that train", at_least=1)
    output: Output = setting("text", PRINTED)


def reproduce(settings: ReproduceSettings) -> None:
    """Compute and print the result named, or list them all."""
    known = titles()
    if settings.name is None:
        listed = [{"name": name, "about": title} for name, title in known.items()]
        lines = (f"{name:20} {title}" for name, title in known.items())
        output.show(settings.output, listed, lambda: print(*lines, sep="\n"))
        return
    check_choice("name", settings.name, known)
    directory = Path(settings.directory)
    directory.mkdir(parents=True, exist_ok=True)
    logging.getLogger("server").setLevel(logging.WARNING)  # thousands of runs: no line for each
    make = _trained if settings.name in studies() else _closed
    place, stem, (tables, error), figures = make(settings.name, settings, directory)
    blocks = {f"{stem}: {table.name}": tools.markdown(table) for table in tables}
    if error is not None:
        blocks[next(iter(blocks))] += f"\n\nWorst relative error: {error:.2g}."
    if place is not None:
        absent = tools.update(directory / f"{place}.md", "reproduce", blocks)
        for name, table in zip(blocks, tables, strict=True):
            if name in absent:
                words = re.sub(r"\W+", "_", table.name)
                tools.write_csv(directory / f"{stem}.{words}.csv", table)
    first, *rest = ([dict(zip(table.columns, row, strict=True)) for row in table.rows] for table in tables)
    document = {
        "name": settings.name,
        "title": known[settings.name],
        "rows": first,
        "worst_relative_error": error,
        "notes": [table.note for table in tables if table.note],
        "figures": [str(path) for path in figures],
        "sections": [
            {"heading": table.name, "rows": rows} for table, rows in zip(tables[1:], rest, strict=True)
        ],
    }
    shown = [known[settings.name], *blocks.values(), *(f"Figure: {path}" for path in figures)]
    output.show(settings.output, document, lambda: print("\n\n".join(shown)))


def titles() -> dict[str, str]:
    """Return the titles of all results by name."""
    return {
        **{name: study["title"] for name, study in studies().items()},
        **{name: title for name, (title, *_) in CLOSED.items()},
    }


def _closed(name: str, settings: ReproduceSettings, directory: Path) -> Made:
    _, module, page = CLOSED[name]
    paper = import_module(f"experiments.reproduce.{module}")
    sizes = list(paper.SIZES) if name in SIZED else ["small"]
    size = settings.size or sizes[0]
    check_choice("size", size, sizes)
    if settings.data is not None or settings.workers > 1:
        raise SettingError(f"{name} trains nothing; leave out data and workers.")
    stem = name if size == sizes[0] else f"{name}_{size}"
    figure = directory / f"{stem}.png"
    return page, stem, getattr(paper, name)(figure, size), [figure]


def _trained(name: str, settings: ReproduceSettings, directory: Path) -> Made:
    from experiments.reproduce import plots, tables  # after mistakes: torch is slow to import
    from experiments.reproduce.results import Results

    study = Study(name, settings.size)
    results = Results(study, directory / f"{study['runs']}.jsonl")
    if settings.compute:
        from experiments.reproduce import runner

        data = None if settings.data is None else Path(settings.data).absolute()
        runner.compute(results, data, Path(settings.runs).absolute(), settings.workers)
    figures = [directory / f"{study.stem}{ending}.png" for ending in study["figures"].values()]
    for kind, path in zip(study["figures"], figures, strict=True):
        plots.FIGURES[kind](path, results)
    made = tuple(table for kind in study["tables"] for table in tables.TABLES[kind](results))
    return study["page"], study.stem, (made, None), figures


if __name__ == "__main__":
    tools.run(reproduce, ReproduceSettings, __doc__)

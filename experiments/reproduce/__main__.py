"""Compute a published result again: `python -m experiments.reproduce name=sgmf_figure1`, in a checkout.

Prints ours next to the expected numbers, draws the figures into `directory`, and replaces the tables between the marks
of the page there; without a name it lists all results. Results that train are made of the runs in NAME.jsonl; with
`data`, or for digits compute=true, the runs that are missing are made first, which takes hours and can be cut short.
"""

import logging
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from experiments.cli import output
from experiments.reproduce import CLOSED, Reproduction, command_line, page
from experiments.reproduce.study import Study, studies
from experiments.settings.output import PRINTED, Output
from fedmf.checks import check_at_least, check_choice
from fedmf.errors import SettingError
from fedmf.setting import setting


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
    workers: int = setting(1, "processes that train")
    output: Output = setting(Output.text, PRINTED)


def reproduce(settings: ReproduceSettings) -> None:
    """Compute and print the result named, or list them all."""
    if settings.name is None:
        show_list(settings.output)
        return
    check_choice("name", settings.name, titles())
    check_at_least("workers", settings.workers, 1)
    directory = Path(settings.directory)
    directory.mkdir(parents=True, exist_ok=True)
    logging.getLogger("server").setLevel(logging.WARNING)  # a line for each of thousands of runs helps nobody
    make = _trained if settings.name in studies() else _closed
    place, stem, result = make(settings.name, settings, directory)
    blocks = {f"{stem}: {table.name}": page.markdown(table) for table in result.tables}
    if result.worst_relative_error is not None:
        blocks[next(iter(blocks))] += f"\n\nWorst relative error: {result.worst_relative_error:.2g}."
    if place is not None:
        page.update(directory / f"{place}.md", "reproduce", blocks)
    if settings.output is Output.json:
        output.print_json(as_document(settings.name, result))
    else:
        figures = (f"Figure: {path}" for path in result.figures)
        print("\n\n".join([titles()[settings.name], *blocks.values(), *figures]))


def titles() -> dict[str, str]:
    """Return the titles of all results by name."""
    of_studies = {name: study["title"] for name, study in studies().items()}
    return of_studies | {name: title for name, (title, _) in CLOSED.items()}


def _closed(name: str, settings: ReproduceSettings, directory: Path) -> tuple[str | None, str, Reproduction]:
    module = import_module(f"experiments.reproduce.{name}")
    sizes = list(getattr(module, "SIZES", ["small"]))
    size = settings.size or sizes[0]
    check_choice("size", size, sizes)
    if settings.data is not None or settings.workers > 1:
        raise SettingError(f"{name} trains nothing; leave out data and workers.")
    return CLOSED[name][1], name if size == sizes[0] else f"{name}_{size}", module.reproduce(directory, size)


def _trained(name: str, settings: ReproduceSettings, directory: Path) -> tuple[str | None, str, Reproduction]:
    from experiments.reproduce import plots, runner, tables  # after mistakes: torch is slow to import
    from experiments.reproduce.results import Results

    study = Study(name, settings.size)
    results = Results(directory / f"{study['runs']}.jsonl")
    if settings.compute:
        data = None if settings.data is None else Path(settings.data).absolute()
        runner.compute(study, results, runner.Means(data, Path(settings.runs).absolute(), settings.workers))
    found = tables.Found(study, results, runner.tuned_rates(study, results))
    figures = {kind: directory / f"{study.stem}{ending}.png" for kind, ending in study["figures"].items()}
    for kind, path in figures.items():
        plots.FIGURES[kind](path, found)
    made = tuple(table for kind in study["tables"] for table in tables.TABLES[kind](found))
    return study["page"], study.stem, Reproduction(made, figures=tuple(figures.values()))


def show_list(form: Output) -> None:
    """Print every result with what it is."""
    if form is Output.json:
        output.print_json([{"name": name, "about": title} for name, title in titles().items()])
    else:
        print("\n".join(f"{name:20} {title}" for name, title in titles().items()))


def as_document(name: str, result: Reproduction) -> dict[str, object]:
    """Return the result as JSON-ready values."""
    tables = {
        table.name: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        for table in result.tables
    }
    first, *rest = tables
    return {
        "name": name,
        "title": titles()[name],
        "rows": tables[first],
        "worst_relative_error": result.worst_relative_error,
        "notes": [table.note for table in result.tables if table.note],
        "figures": [str(path) for path in result.figures],
        "sections": [{"heading": heading, "rows": tables[heading]} for heading in rest],
    }


if __name__ == "__main__":
    command_line.run(reproduce, ReproduceSettings, __doc__)

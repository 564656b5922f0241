"""A self-contained HTML page: what is on it, and how it and the files of its plots are written."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from experiments.pages.figures import LinePlot, rendered
from experiments.pages.template import TEMPLATE
from experiments.pages.wording import text_of, words_of
from experiments.run_files.directory import refuse_unmakeable
from experiments.settings.recorded import flattened
from fedmf.errors import RunDirectoryError
from fedmf.setting import setting
from server.files import write_output

SOURCE = "from"  # header of the column that names files
IN_WORDS = ("paragraph", "provenance")  # of the statement: in other sections of the page


@dataclass(frozen=True, kw_only=True)
class PlotFiles:
    """Settings of a command whose plots can also be written as files."""

    plots: str | None = setting(
        None,
        "a folder: every plot of the page also as PNG and SVG, as wide as a column of a paper; null: on the page only",
    )
    overwrite: bool = setting(False, "true: files of those names in plots are written over")


@dataclass(frozen=True)
class Table:
    """Rows of text under a header; `numbers` are the columns set right-aligned, a last column headed `SOURCE` names files."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()


@dataclass(frozen=True)
class Section:
    """One part of a page, shown in the order of the fields."""

    title: str
    paragraphs: Sequence[str] = ()
    points: Sequence[str] = ()
    table: Table | None = None
    plot: LinePlot | None = None
    verbatim: str = ""


@dataclass(frozen=True)
class Page:
    """A whole page: what report.html shows. A key figure is a name, a value, and what must be known with it."""

    title: str
    lead: str
    sections: Sequence[Section]
    warnings: Sequence[str] = ()
    key_figures: Sequence[tuple[str, str, Sequence[str]]] = ()


def table_of(
    documents: Sequence[Mapping[str, Any]], file: str, metrics: Mapping[str, str] | None = None
) -> Table:
    """Return documents of one kind field by field, differing values next to each other: words, value, file and key.

    Lists of sentences are left out: they are elsewhere on the page. `metrics` are entries of metrics by name.
    """
    values: dict[str, list[str]] = {}
    for document in documents:
        for key, value in flattened(document):
            in_words = isinstance(value, list) and all(isinstance(item, str) for item in value)
            if not in_words and not key.startswith(IN_WORDS):
                values.setdefault(key, []).append(text_of(key, value))
    rows = [
        (words_of(key, (metrics or {}).get(key, "")), ", ".join(dict.fromkeys(texts)), f"{file}: {key}")
        for key, texts in values.items()
    ]
    return Table(("field", "value", SOURCE), rows)


def write_page(page: Page, file: Path, asked: PlotFiles | None = None) -> list[Path]:
    """Render `page` to `file`, and each of its plots as PNG and SVG where that is `asked` for; return the files of the plots.

    Raises `RunDirectoryError`, before anything is written, where they cannot be, or would replace a file unasked.
    """
    files: dict[Path, LinePlot] = {}
    if asked and asked.plots:
        folder = Path(asked.plots)
        refuse_unmakeable("plots", folder)
        plots = [section.plot for section in page.sections if section.plot]
        files = {folder / f"{plot.name}.{form}": plot for plot in plots for form in ("png", "svg")}
        held = [path.name for path in files if path.exists() or path.is_symlink()]
        if held and not asked.overwrite:
            raise RunDirectoryError(
                f"plots is {folder}, which already contains {', '.join(held)}; nothing was written. Name another "
                "directory, or replace them with overwrite=true."
            )
        folder.mkdir(parents=True, exist_ok=True)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.from_string(TEMPLATE).render(page=page, picture=picture)
    write_output(file, text.encode(errors="backslashreplace"))
    for path, plot in files.items():
        write_output(path, rendered(plot, path.suffix[1:]))
    return list(files)


def picture(plot: LinePlot) -> str:
    """Return a plot as the address of an image that contains it."""
    return f"data:image/svg+xml;base64,{b64encode(rendered(plot, 'svg')).decode()}"

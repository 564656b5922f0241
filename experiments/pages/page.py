"""A self-contained HTML page: what stands on it, and how it is rendered."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, StrictUndefined

from experiments.pages.figures import COLOURS, GRID, PAGE, Drawing, style
from experiments.pages.template import TEMPLATE
from server.files import write_output

# What a plot paints with -> what a page calls it. Black is the ink of axes and the last colour of the palette: on a page
# both are the text's colour.
VARIABLES = {
    **{colour.lower(): f"var(--line-{place})" for place, colour in enumerate(COLOURS, start=1)},
    GRID: "var(--grid)",
    "#000000": "currentColor",
}
_COLOUR = re.compile("|".join(VARIABLES))


def as_svg(drawing: Drawing, name: str) -> str:
    """Return `drawing` as one <svg> element: no prolog, no metadata; `name`, unique on its page, begins all ids."""
    buffer, own = io.StringIO(), {**style(PAGE), "svg.hashsalt": name}
    settings: Any = own
    figure = drawing.figure(PAGE)
    with matplotlib.rc_context(settings):
        figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
        )
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r"<style.*?</style>", "", svg, flags=re.DOTALL
    )  # it would hold for the whole page; `page` has it
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'((?:xlink:)?href="|url\()#', rf"\1#{name}-", svg)
    svg = re.sub(r'style="[^"]*"', _themed, svg)
    return svg.replace("<svg", f'<svg role="img" aria-labelledby="{name}-caption"', 1).strip()


def _themed(style: re.Match[str]) -> str:
    """Return a style attribute with the page's variables for colours, and no font: the page has one."""
    text = re.sub(r"font-family:[^;\"]*;?\s*", "", style[0])
    return _COLOUR.sub(lambda colour: VARIABLES[colour[0]], text)


SOURCE = "from"  # header of the column that names files
LONGEST_SENTENCE = 120  # letters of what says why there is no plot
MOST_COLUMNS = 6  # that stand side by side on a tablet
LONGEST_NUMBER = 24  # letters of a cell that is kept on one line; longer ones are words


@dataclass(frozen=True)
class Table:
    """Rows of text under a header; `numbers` are the columns set right-aligned.

    A last column headed `SOURCE` says which file the row comes from.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: tuple[int, ...] = ()

    @property
    def look(self) -> str:
        """The CSS class of the table: "sourced" where name, value and source fill it, each in its share of the width.

        Any other is "plain", and "many" where its columns need a wide window; in a narrower one its rows are lists.
        """
        if self.header[-1] == SOURCE and len(self.header) == 3:
            return "sourced"
        return "plain many" if len(self.header) > MOST_COLUMNS else "plain"

    def column_look(self, column: int) -> str:
        """Return the CSS class of a column's cells."""
        if column in self.numbers:
            return "number"
        return "source" if self.header[column] == SOURCE else "text"

    def cell_look(self, column: int, text: str) -> str:
        """Return the CSS class of a cell: in a column of numbers a sentence is words, and wraps.

        >>> table = Table(("figure", "value"), (), numbers=(1,))
        >>> table.cell_look(1, "1,437"), table.cell_look(1, "one user = one client, cut at 5")
        ('number', 'text')
        """
        look = self.column_look(column)
        return "text" if look == "number" and len(text) > LONGEST_NUMBER else look


@dataclass(frozen=True)
class Plot:
    """A plot and its caption; `name` is unique on its page. `file` names it where a page has it as a file."""

    name: str
    drawing: Drawing
    caption: str
    file: str = ""

    @property
    def file_name(self) -> str:
        """The name of its files, without the ending."""
        return self.file or self.name

    @property
    def svg(self) -> str:
        """The plot as an <svg> element."""
        return as_svg(self.drawing, self.name)


@dataclass(frozen=True)
class KeyFigure:
    """A result in large figures: what it is, its value, and what must be known with it."""

    name: str
    value: str
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """One part of a page, shown in the order of the fields."""

    title: str
    paragraphs: Sequence[str] = ()
    points: Sequence[str] = ()
    table: Table | None = None
    figure: Plot | None = None
    verbatim: str = ""

    @property
    def is_half(self) -> bool:
        """Whether two such sections stand side by side where there is room: a plot alone, or a sentence in its place."""
        if self.table is not None or self.verbatim:
            return False
        is_sentence = len(self.paragraphs) == 1 and len(self.paragraphs[0]) <= LONGEST_SENTENCE
        return self.figure is not None or (is_sentence and not self.points)


@dataclass(frozen=True)
class Page:
    """A whole page: what report.html shows."""

    title: str
    lead: str
    sections: Sequence[Section]
    warnings: Sequence[str] = ()
    key_figures: Sequence[KeyFigure] = ()
    footer: str = "Written by fedmf. The page is complete in itself: it asks nothing of any network."


def write_page(page: Page, file: Path) -> Path:
    """Render `page` to `file`."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    write_output(file, environment.from_string(TEMPLATE).render(page=page).encode(errors="backslashreplace"))
    return file

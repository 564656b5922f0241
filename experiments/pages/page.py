"""A self-contained HTML page: what stands on it, its template, and how it is rendered.

The template is Python text because a Flower app bundle carries no HTML files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined

SOURCE = "from"  # header of the column that names files

TEMPLATE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{{ page.title }}</title>
<style>
  :root { color-scheme: light; }
  body { margin: 0 auto; max-width: 46rem; padding: 1rem; background: #fff; color: #1a1a1a;
         font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
  h1 { font-size: 1.5rem; line-height: 1.2; margin: .5rem 0; overflow-wrap: anywhere; }
  h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 1px solid #ccc; }
  p { margin: .5rem 0; }
  .lead { font-size: 1.1rem; }
  .warning { border-left: .4rem solid #d55e00; padding: .4rem .8rem; background: #fdf1e8; font-weight: 600; }
  .wide { overflow-x: auto; }
  table { border-collapse: collapse; width: 100%; font-size: .92rem; }
  th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid #e4e4e4;
           overflow-wrap: break-word; }
  th.number, td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
  th.number { white-space: normal; vertical-align: bottom; }
  td.source { color: #555; font-size: .8rem; overflow-wrap: anywhere; }
  figcaption { color: #555; font-size: .85rem; }
  figure { margin: 1rem 0; }
  figure svg { width: 100%; max-width: 38rem; height: auto; display: block; }
  pre { overflow-x: auto; font-size: .8rem; line-height: 1.35; background: #f6f6f6; padding: .6rem; }
  footer { margin-top: 2rem; color: #555; font-size: .85rem; }
  @media screen and (max-width: 34rem) { /* a phone: the source goes below its figure */
    table.sourced tr { display: grid; grid-template-columns: 1fr auto; border-bottom: 1px solid #e4e4e4; padding: .25rem 0; }
    table.sourced :is(th, td) { border: 0; padding: 0; }
    table.sourced td + td:not(.source) { padding-left: .6rem; text-align: right; }
    table.sourced td.source { grid-column: 1 / -1; }
    table.sourced thead { display: none; }
  }
  @media print {
    body { max-width: none; padding: 0; font-size: 10pt; }
    figure, table tr { break-inside: avoid; }
    h2 { break-after: avoid; }
    figure svg { max-width: 13cm; }
    pre { white-space: pre-wrap; }
    .wide { overflow: visible; }
    table { font-size: 8pt; }
  }
</style>
</head>
<body>
<header>
<h1>{{ page.title }}</h1>
{% for sentence in page.warnings %}<p class="warning">{{ sentence }}</p>
{% endfor %}<p class="lead">{{ page.lead }}</p>
</header>
<main>
{% for section in page.sections %}
<section>
<h2>{{ section.title }}</h2>
{% for paragraph in section.paragraphs %}<p>{{ paragraph }}</p>
{% endfor %}
{% if section.points %}<ul>
{% for point in section.points %}<li>{{ point }}</li>
{% endfor %}</ul>
{% endif %}
{% if section.table %}<div class="wide"><table class="{{ section.table.look }}">
<thead><tr>{% for cell in section.table.header %}<th scope="col" class="{{ section.table.column_look(loop.index0) }}">{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in section.table.rows %}<tr>{% for cell in row %}<td class="{{ section.table.column_look(loop.index0) }}">{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table></div>
{% endif %}
{% if section.figure %}<figure>
{{ section.figure.svg | safe }}
<figcaption id="{{ section.figure.name }}-caption">{{ section.figure.caption }}</figcaption>
</figure>
{% endif %}
{% if section.verbatim %}<pre>{{ section.verbatim }}</pre>
{% endif %}
</section>
{% endfor %}
</main>
<footer>{{ page.footer }}</footer>
</body>
</html>
"""


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
        """The CSS class of the table: "sourced" where a phone has room for the source below name and value."""
        return "sourced" if self.header[-1] == SOURCE and len(self.header) == 3 else "plain"

    def column_look(self, column: int) -> str:
        """Return the CSS class of a column's cells."""
        if column in self.numbers:
            return "number"
        return "source" if self.header[column] == SOURCE else "text"


@dataclass(frozen=True)
class Plot:
    """An <svg> element and its caption."""

    name: str
    svg: str
    caption: str


@dataclass(frozen=True)
class Section:
    """One part of a page, shown in the order of the fields."""

    title: str
    paragraphs: Sequence[str] = ()
    points: Sequence[str] = ()
    table: Table | None = None
    figure: Plot | None = None
    verbatim: str = ""


@dataclass(frozen=True)
class Page:
    """A whole page: what report.html shows."""

    title: str
    lead: str
    sections: Sequence[Section]
    warnings: Sequence[str] = ()
    footer: str = "Written by fedmf. The page is complete in itself: it asks nothing of any network."


def write_page(page: Page, file: Path) -> Path:
    """Render `page` to `file`."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    file.write_text(environment.from_string(TEMPLATE).render(page=page))
    return file

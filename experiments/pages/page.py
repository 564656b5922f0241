"""A self-contained HTML page: what is on it, its template, and how it and the files of its plots are written.

The template is Python text because a Flower app bundle contains no HTML files. Its colours are variables: one set for light,
one for dark, and on paper always light. A plot is a light picture on both.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from experiments.pages.figures import UNDATED, LinePlot, rendered
from experiments.pages.wording import text_of, words_of
from experiments.run_files.directory import check_can_be_made
from experiments.settings.recorded import flattened
from server.files import write_output

# The setting `plots` of a command.
PLOTS = "folder for every plot of the page as PNG, SVG and PDF, one paper column wide; null: plots on the page only"


@dataclass(frozen=True)
class Table:
    """Rows of text under a header; `numbers` are the columns set right-aligned, a last column headed "from" names files."""

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

    Sentences and provenance are left out: they are in other sections. `metrics` are entries of metrics by name.
    """
    values: dict[str, dict[str, None]] = {}
    for key, value in chain.from_iterable(map(flattened, documents)):
        are_sentences = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if not are_sentences and not key.startswith(("paragraph", "provenance")):
            values.setdefault(key, {})[text_of(key, value)] = None
    rows = [
        (words_of(key, (metrics or {}).get(key, "")), ", ".join(texts), f"{file}: {key}")
        for key, texts in values.items()
    ]
    return Table(("field", "value", "from"), rows)


def write_page(page: Page, file: Path, plots: str | None = None) -> list[Path]:
    """Render `page` to `file`, and each of its plots as PNG, SVG and PDF into the folder `plots`; return the files of the plots.

    Raises `RunDirectoryError`, before anything is written, where the folder cannot be made.
    """
    files = {
        Path(plots) / f"{section.plot.name}.{form}": section.plot
        for section in page.sections
        for form in UNDATED
        if section.plot and plots is not None
    }
    if plots is not None:
        check_can_be_made("plots", Path(plots))
        Path(plots).mkdir(parents=True, exist_ok=True)
    file.parent.mkdir(exist_ok=True)
    looks = tuple(  # one colour on a page for a line of one name
        dict.fromkeys(line.label for one in page.sections if one.plot for line in one.plot.series)
    )
    text = (
        Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        .from_string(TEMPLATE)
        .render(page=page, picture=lambda plot: b64encode(rendered(plot, "svg", looks)).decode())
    )
    write_output(file, text.encode(errors="backslashreplace"))
    for path, plot in files.items():
        write_output(path, rendered(plot, path.suffix[1:], looks))
    return list(files)


TEMPLATE = """\
{% macro cell_look(table, column) -%}
{{ 'number' if column in table.numbers else 'source' if table.header[column] == 'from' else 'text' }}
{%- endmacro -%}
{% macro table_look(header) -%}
{{ 'sourced' if header | length == 3 and header[-1] == 'from' else 'plain many' if header | length > 6 else 'plain' }}
{%- endmacro -%}
{% macro rows_as_lists(look) -%}
table.{{ look }} thead { display: none; }
    table.{{ look }} :is(tbody, tr, td) { display: block; }
    table.{{ look }} tr { border-bottom: 1px solid var(--rule); padding: .35rem 0; }
    table.{{ look }} td { display: flex; justify-content: space-between; column-gap: 1rem; width: auto; min-width: 0; border: 0;
      padding: 0; text-align: right; white-space: normal; overflow-wrap: anywhere; }
    table.{{ look }} td::before { content: attr(data-label); flex: none; max-width: 45%; text-align: left; color: var(--muted); }
{%- endmacro -%}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{{ page.title }}</title>
<style>
  :root { --paper: #fff; --ink: #1a1a1a; --muted: #555; --rule: #ccc; --hair: #e4e4e4; --well: #f5f6f7;
          --alarm: #d55e00; --alarm-paper: #fdf1e8; --link: #0b5c94; }
  @media screen { :root { color-scheme: light dark; } }
  @media screen and (prefers-color-scheme: dark) {
    :root { --paper: #14171a; --ink: #e6e8ea; --muted: #a9b0b7; --rule: #4a5159; --hair: #2d3338;
            --well: #1d2226; --alarm: #ff8c42; --alarm-paper: #35241a; --link: #7cc4f2; }
  }
  * { box-sizing: border-box; }
  body { margin: 0 auto; max-width: 66rem; padding: 1rem; background: var(--paper); color: var(--ink);
         font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
  body:has(table.many) { max-width: 84rem; }
  h1 { font-size: 1.4rem; line-height: 1.2; margin: .25rem 0 .5rem; overflow-wrap: anywhere; }
  h2 { font-size: 1.1rem; line-height: 1.3; margin: 1.5rem 0 .5rem; border-bottom: 1px solid var(--rule); overflow-wrap: anywhere; }
  p { margin: .5rem 0; }
  p, li { max-width: 46rem; overflow-wrap: break-word; }
  a { color: var(--link); }
  .warning { border-left: .4rem solid var(--alarm); padding: .4rem .8rem; background: var(--alarm-paper);
             font-weight: 600; max-width: none; }
  .warning::first-letter { text-transform: uppercase; }
  .key { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .75rem; margin: .75rem 0 0; }
  .key > div { background: var(--well); border-radius: .4rem; padding: .5rem .8rem; min-width: 0; }
  .key dt { color: var(--muted); font-size: .85rem; }
  .key dd { margin: 0; overflow-wrap: anywhere; }
  .key .value { font-size: 2.1rem; line-height: 1.15; font-weight: 650; font-variant-numeric: tabular-nums; }
  .key .note { font-size: .85rem; line-height: 1.35; }
  main { display: grid; grid-template-columns: minmax(0, 1fr); column-gap: 2rem; }
  section { min-width: 0; }
  .wide { overflow-x: auto; }
  table { border-collapse: collapse; width: 100%; font-size: .92rem; }
  th, td { text-align: left; vertical-align: top; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--hair);
           overflow-wrap: break-word; }
  th { vertical-align: bottom; }
  th.number { text-align: right; }
  td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
  td.source { color: var(--muted); font-size: .8rem; overflow-wrap: anywhere; }
  table.plain td.text { min-width: 7rem; overflow-wrap: anywhere; }
  table.plain td.source { min-width: 11rem; }
  table.sourced { table-layout: fixed; }
  table.sourced :is(th, td) { width: 36%; text-align: left; white-space: normal; overflow-wrap: anywhere; }
  table.sourced :is(th, td):last-child { width: 28%; padding-right: 0; }
  figcaption { margin-top: .3rem; overflow-wrap: anywhere; color: var(--muted); font-size: .85rem; line-height: 1.4; max-width: 46rem; }
  figure { margin: .5rem 0; }
  figure img { width: 100%; max-width: 31rem; height: auto; display: block; border-radius: .4rem; }
  pre { overflow-x: auto; font-size: .8rem; line-height: 1.35; background: var(--well); padding: .6rem; }
  :is(.wide, pre):focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
  footer { margin-top: 2rem; color: var(--muted); font-size: .85rem; }
  @media screen and (min-width: 44rem) { /* plots stand side by side */
    main { grid-template-columns: repeat(2, minmax(0, 1fr)); }
    section { grid-column: 1 / -1; }
    section.half { grid-column: auto; }
  }
  @media screen and (max-width: 60rem) { /* many columns: a row is a list of names and values */
    {{ rows_as_lists('many') }}
  }
  @media screen and (max-width: 34rem) { /* a phone: the source goes below its figure */
    .key { grid-template-columns: 1fr; gap: .5rem; }
    .key .value { font-size: 1.7rem; }
    table.sourced thead { display: none; }
    table.sourced tr { display: flex; flex-wrap: wrap; justify-content: space-between; column-gap: 1rem;
                       border-bottom: 1px solid var(--hair); padding: .25rem 0; }
    table.sourced td { width: auto; border: 0; padding: 0; }
    table.sourced td:last-child { width: 100%; }
    {{ rows_as_lists('plain') }}
  }
  @media print {
    body { max-width: none; padding: 0; font-size: 10pt; }
    figure, table tr { break-inside: avoid; }
    h2 { break-after: avoid; }
    figure img { max-width: 13cm; }
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
{% if page.key_figures %}<dl class="key">
{% for name, value, notes in page.key_figures %}<div><dt>{{ name }}</dt><dd class="value">{{ value }}</dd>
{% for note in notes %}<dd class="note">{{ note }}</dd>
{% endfor %}</div>
{% endfor %}</dl>
{% endif %}
</header>
<main>
{% for section in page.sections %}
<section{% if section.plot %} class="half"{% endif %}>
<h2>{{ section.title }}</h2>
{% for paragraph in section.paragraphs %}<p>{{ paragraph }}</p>
{% endfor %}
{% if section.points %}<ul>
{% for point in section.points %}<li>{{ point }}</li>
{% endfor %}</ul>
{% endif %}
{% if section.table %}<div class="wide" tabindex="0" role="region" aria-label="Table: {{ section.title }}"><table class="{{ table_look(section.table.header) }}">
<thead><tr>{% for cell in section.table.header %}<th scope="col" class="{{ cell_look(section.table, loop.index0) }}">{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in section.table.rows %}<tr>{% for cell in row %}<td class="{{ cell_look(section.table, loop.index0) }}" data-label="{{ section.table.header[loop.index0] }}">{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table></div>
{% endif %}
{% if section.plot %}<figure>
<img src="data:image/svg+xml;base64,{{ picture(section.plot) }}" alt="Plot: {{ section.title }}" aria-describedby="{{ section.plot.name }}-caption">
<figcaption id="{{ section.plot.name }}-caption">{{ section.plot.caption }}</figcaption>
</figure>
{% endif %}
{% if section.verbatim %}<pre tabindex="0">{{ section.verbatim }}</pre>
{% endif %}
</section>
{% endfor %}
</main>
<footer>Written by fedmf. The page is complete in itself: it asks nothing of any network.</footer>
</body>
</html>
"""

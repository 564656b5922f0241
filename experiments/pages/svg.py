"""A plot as one <svg> element of a page: text in the page's font, colours that follow the page's light or dark scheme."""

import io
import re
from typing import Any

import matplotlib

from experiments.pages.figures import COLOURS, GRID, PAGE, Drawing, style

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

"""Plain-text docstrings as Markdown: a griffe extension that mkdocstrings loads (mkdocs.yml names it).

The docstrings of this project are written to be read in an editor: formulas such as `B Z * sigma`, `||g||_2` or
`x[0, n)` are in running text, where Markdown would see emphasis, links and tags. Names in single backticks, indented
blocks and lists mean the same in both.
"""

import re

from griffe import Extension, Object

_MARKS = re.compile(r"([\\*_\[\]{}|#])")  # those that Python-Markdown lets a backslash take
_CODE = re.compile(r"(`[^`]*`)")


class PlainDocstrings(Extension):
    """Turns each docstring into Markdown that shows what an editor shows."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)

    def on_package(self, *, pkg: Object, **_: object) -> None:
        """Rewrite the docstring of a top-level package, which is no object inside one."""
        self.on_object(obj=pkg)


def to_markdown(text: str) -> str:
    """Return a plain-text docstring as Markdown: examples and indented blocks are code, the rest is text."""
    blocks = [_block(block) for block in re.split(r"\n[ ]*\n", text) if block.strip()]
    return "\n\n".join(blocks).replace("\n```\n\n```text\n", "\n\n")  # one block where a blank line split it


def _block(block: str) -> str:
    """Return one paragraph, list, example or indented block as Markdown."""
    lines = block.splitlines()
    if lines[0].startswith(">>> "):
        return "\n".join(["```pycon", *lines, "```"])
    if all(line.startswith("    ") for line in lines):
        return "\n".join(["```text", *(line[4:] for line in lines), "```"])
    return "".join(
        piece if piece.startswith("`") else _MARKS.sub(r"\\\1", piece).replace("<", "&lt;")
        for piece in _CODE.split(block)
    )

"""The plots of a page as files for a paper: PNG and SVG, as wide as a column or a page of two columns."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import matplotlib

from experiments.pages.figures import Drawing, Look, style
from experiments.pages.page import Page
from experiments.run_files.directory import refuse_unmakeable
from fedmf.errors import RunDirectoryError
from server.files import write_output

FORMATS = ("png", "svg")
DOTS = 300  # an inch
UNDATED = {"svg": dict.fromkeys(("Date", "Creator", "Format", "Type")), "png": {"Software": None}}


class PlotWidth(StrEnum):
    """How wide plots are: one column of a paper with two, or both."""

    column = "column"
    page = "page"


LOOKS = {
    PlotWidth.column: Look(width=3.25, height=2.3, text=8, small=7, line=1.2, marker=3.5),
    PlotWidth.page: Look(width=6.75, height=3.2, text=9, small=8, line=1.4, marker=4.5),
}


@dataclass(frozen=True)
class PlotFiles:
    """Where plots go, None for nowhere; files of their names are written over only with `overwrite`."""

    directory: Path | None
    width: PlotWidth = PlotWidth.column
    overwrite: bool = False

    def refuse_what_is_there(self, page: Page) -> None:
        """Raise `RunDirectoryError`, before anything is written, where a plot of `page` would replace a file."""
        if self.directory is None:
            return
        refuse_unmakeable("plots", self.directory)
        held = [file.name for file in self._files(page) if file.exists() or file.is_symlink()]
        if held and not self.overwrite:
            raise RunDirectoryError(
                f"plots is {self.directory}, which already holds {', '.join(held)}; nothing was written. Name another "
                "directory, or replace them with overwrite=true."
            )

    def write(self, page: Page) -> list[Path]:
        """Write every plot of `page` and return the files."""
        if self.directory is None:
            return []
        self.directory.mkdir(parents=True, exist_ok=True)
        for name, drawing in _drawings(page).items():
            for form, data in rendered(drawing, LOOKS[self.width]).items():
                write_output(self.directory / f"{name}.{form}", data)
        return list(self._files(page))

    def _files(self, page: Page) -> Iterator[Path]:
        assert self.directory is not None
        for name in _drawings(page):
            for form in FORMATS:
                yield self.directory / f"{name}.{form}"


def rendered(drawing: Drawing, look: Look) -> Mapping[str, bytes]:
    """Return a plot as files by format. Letters of the SVG are outlines, so that it looks the same without our font."""
    files, figure = {}, drawing.figure(look)
    settings: Any = {**style(look), "svg.fonttype": "path", "svg.hashsalt": "fedmf"}
    with matplotlib.rc_context(settings):
        for form in FORMATS:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=form, dpi=DOTS, metadata=UNDATED[form])
            files[form] = buffer.getvalue()
    return files


def _drawings(page: Page) -> Mapping[str, Drawing]:
    """Return the plots of a page by their names, which are those of the files."""
    return {
        section.figure.file_name: section.figure.drawing
        for section in page.sections
        if section.figure is not None
    }

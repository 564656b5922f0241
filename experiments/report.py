"""Write the page of a run again, and its plots as files: `python -m experiments.report directory=DIR plots=FOLDER`.

DIR/report.html is what a run leaves at its end; this command makes it anew from the run's files, for a run of an earlier
version or one that was moved. `plots=FOLDER` writes every plot of it as PNG and SVG besides, sized for a column of a
paper (`width=column`, 3.25 inches) or for both (`width=page`, 6.75).
"""

from dataclasses import dataclass
from pathlib import Path

from experiments.cli import command, output
from experiments.pages.page import write_page
from experiments.pages.plot_files import PlotFiles, PlotWidth
from experiments.pages.run_page import run_page
from experiments.run_files.directory import REPORT
from experiments.run_files.reader import read_run
from experiments.settings.output import PRINTED, Output
from fedmf.setting import REQUIRED, setting


@dataclass(frozen=True)
class ReportSettings:
    """Keys of the command."""

    directory: str = setting(REQUIRED, "folder of a finished run")
    plots: str | None = setting(
        None,
        "a folder: every plot of the page also as PNG and SVG, sized for a paper; null: on the page only",
    )
    width: PlotWidth = setting(PlotWidth.column, "how wide those plots are, 3.25 or 6.75 inches")
    overwrite: bool = setting(False, "true: files of those names in plots are written over")
    output: Output = setting(Output.text, PRINTED)


def report(settings: ReportSettings) -> None:
    """Write the page of the run in `settings.directory`, and its plots where they are asked for; print the paths."""
    directory = Path(settings.directory)
    page = run_page(read_run(directory))
    plots = PlotFiles(
        None if settings.plots is None else Path(settings.plots), settings.width, settings.overwrite
    )
    plots.refuse_what_is_there(page)
    written = write_page(page, directory / REPORT)
    files = plots.write(page)
    if settings.output is Output.json:
        output.print_json({"page": str(written), "plots": [str(file) for file in files]})
    else:
        output.console().print(f"page: {written}", markup=False)
        output.print_files("plots", files)


if __name__ == "__main__":
    command.run(report, "report", ReportSettings, __doc__)

"""Write the page of a run again, and its plots as files: `python -m experiments.report directory=DIR plots=FOLDER`.

A run writes DIR/report.html at its end; this command writes it again from the run's files, for a run of an earlier
version or one that was moved. `plots=FOLDER` also writes each of its plots as PNG and SVG, as wide as a column of a paper.
"""

from dataclasses import dataclass
from pathlib import Path

from experiments.cli import command, output
from experiments.pages.page import PlotFiles, write_page
from experiments.pages.run_page import run_page
from experiments.run_files.directory import REPORT
from experiments.run_files.reader import read_run
from experiments.settings.output import PRINTED, Output
from fedmf.setting import REQUIRED, setting


@dataclass(frozen=True)
class ReportSettings(PlotFiles):
    """Keys of the command."""

    directory: str = setting(REQUIRED, "folder of a finished run")
    output: Output = setting(Output.text, PRINTED)


def report(settings: ReportSettings) -> None:
    """Write the page of the run in `settings.directory`, and its plots where they are asked for; print the paths."""
    file = Path(settings.directory) / REPORT
    page = run_page(read_run(file.parent))
    files = write_page(page, file, settings)
    document = {"page": str(file), "plots": list(map(str, files))}
    output.show(settings.output, document, lambda: print(*(file, *files), sep="\n"))


if __name__ == "__main__":
    command.run(report, "report", ReportSettings, __doc__)

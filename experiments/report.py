"""Write the page and the plots of a run again: `python -m experiments.report directory=DIR plots=FOLDER`.

A run writes DIR/report.html at its end. This command writes it again from the run's files, for a run of an earlier version or one
that was moved. `plots=FOLDER` also writes each of its plots as PNG, SVG and PDF, one paper column wide.
"""

from dataclasses import dataclass
from pathlib import Path

from experiments.cli import command, output
from experiments.pages.page import PLOTS
from experiments.pages.run_page import write_report
from experiments.run_files.directory import REPORT
from experiments.settings.values import PRINTED, Output
from fedmf.setting import REQUIRED, setting


@dataclass(frozen=True)
class ReportSettings:
    directory: str = setting(REQUIRED, "folder of a finished run")
    plots: str | None = setting(None, PLOTS)
    output: Output = setting("text", PRINTED)


def report(settings: ReportSettings) -> None:
    """Write the page of the run in `settings.directory`, and its plots where they are asked for; print the paths."""
    directory = Path(settings.directory)
    page, plots = directory / REPORT, write_report(directory, settings.plots)
    document = {"page": str(page), "plots": list(map(str, plots))}
    output.show(settings.output, document, lambda: print(page, *plots, sep="\n"))


if __name__ == "__main__":
    command.run(report, "report", ReportSettings, __doc__)

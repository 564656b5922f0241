"""What a finished run did, printed on stdout."""

from rich.table import Table

from client.metric_names import ALWAYS
from experiments.cli import output
from experiments.run_files.directory import REPORT
from experiments.run_files.reader import Run
from experiments.settings.output import Output

FIGURES = ("epsilon", "delta", "rounds", "parameters", "clients", "compression_ratio")


def show(form: Output, run: Run) -> None:
    """Print what a finished run did: a table for people, or summary.json for programs."""
    if form is Output.json:
        output.print_json(run.summary)
        return
    table = Table(title="Result", show_header=False)
    for name in (*ALWAYS, *run.further_metrics, *FIGURES):
        value = run.summary[name]
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    table.add_row("values a client sends a round", f"{run.summary['uplink_bytes_per_client']:,.0f} bytes")
    table.add_row("envelope of its message", f"{run.summary['envelope_bytes_per_client']:,} bytes")
    table.add_row("wall seconds", f"{run.summary['wall_seconds']:.1f}")
    console = output.console()
    console.print(table)
    console.print(run.privacy["paragraph"], highlight=False, soft_wrap=False)
    console.print(f"report: {run.directory / REPORT}", highlight=False)

"""Writes the table of metrics into docs/deployment.md: `python docs/site_tools/metrics.py`; a test holds it to be there."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the project is imported from the checkout that this file lies in

from experiments.session.monitoring import GAUGES, INFO  # noqa: E402

PAGE = ROOT / "docs" / "deployment.md"


def table() -> str:
    """Return all metrics as a table of Markdown."""
    rows = [
        ("Metric", "Type", "Unit", "Meaning"),
        ("---",) * 4,
        ("`fedmf_run_info`", "info", "1", f"Labels {', '.join(INFO)}; `run` is the name of the run's folder"),
        *((f"`fedmf_{name}`", "gauge", unit, meaning) for name, (unit, meaning) in GAUGES.items()),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def with_table(text: str) -> str:
    """Return the text of the page with the table between its two marks."""
    return re.sub(r"(?s)(<!-- metrics -->\n).*?(<!-- /metrics -->)", lambda m: f"{m[1]}{table()}{m[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))

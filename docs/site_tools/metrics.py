"""Writes the table of metrics into docs/alerts.md: `python docs/site_tools/metrics.py`; a test holds it to be there."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the project is imported from the checkout that this file lies in

from experiments.session.monitoring import table  # noqa: E402

PAGE = ROOT / "docs" / "alerts.md"


def with_table(text: str) -> str:
    """Return the text of the page with the table between its two marks."""
    return re.sub(r"(?s)(<!-- metrics -->\n).*?(<!-- /metrics -->)", lambda m: f"{m[1]}{table()}{m[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))

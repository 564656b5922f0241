"""The part of a deployed run's page that says which nodes took part in which epochs."""

from experiments.pages.page import SOURCE, Section, Table
from experiments.pages.wording import number
from experiments.run_files.attendance import read_attendance
from experiments.run_files.directory import ATTENDANCE
from experiments.run_files.reader import Run

TITLE = "Which nodes took part"


def attendance_sections(run: Run) -> list[Section]:
    """Return one section for a deployment, none for other runs."""
    rows = read_attendance(run.directory)
    if not rows:
        return []
    epochs: dict[str, list[int]] = {}
    for row in rows:
        for name in row["nodes"]:
            epochs.setdefault(name, []).append(row["epoch"])
    words = [
        "A node takes part in an epoch when it is there, and ready, as the epoch begins. Which of its clients were heard, or "
        "failed, is said nowhere."
    ]
    table = Table(
        ("node", "epochs", "which", "clients in the last of them", SOURCE),
        [
            (
                name,
                f"{len(present)} of {len(rows)}",
                spans(present),
                number(rows[[row["epoch"] for row in rows].index(present[-1])]["nodes"][name]),
                ATTENDANCE,
            )
            for name, present in sorted(epochs.items())
        ],
        numbers=(1, 3),
    )
    return [Section(TITLE, words, table=table)]


def spans(numbers: list[int]) -> str:
    """Return increasing numbers as spans.

    >>> spans([1, 2, 3, 5, 7, 8])
    '1-3, 5, 7-8'
    """
    parts: list[list[int]] = []
    for each in numbers:
        if parts and each == parts[-1][1] + 1:
            parts[-1][1] = each
        else:
            parts.append([each, each])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)

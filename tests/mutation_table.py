"""Prints what `make mutation` found: a row for each file. `mutmut results` lists the mutants that no test noticed.

Reads the folder mutants/ that mutmut keeps; `mutmut show NAME` prints one mutant.
"""

import json
from collections import Counter
from pathlib import Path

COLUMNS = ("mutants", "noticed", "survived", "no test", "not tried")
# By mutmut's exit code of the tests; all others are noticed, by a failure or a timeout.
OUTCOMES = {0: "survived", 33: "no test", None: "not tried"}


def table(folder: Path) -> str:
    """Return the table as Markdown."""
    found: dict[str, Counter[str]] = {}
    for path in sorted(folder.rglob("*.meta")):
        codes = json.loads(path.read_text())["exit_code_by_key"]
        outcomes = Counter(OUTCOMES.get(code, "noticed") for code in codes.values())
        found[f"`{path.relative_to(folder)}`".replace(".meta", "")] = outcomes + Counter(mutants=len(codes))
    found["all"] = sum(found.values(), Counter())
    rows = [[name, *(str(counts[column]) for column in COLUMNS)] for name, counts in found.items() if counts]
    return "\n".join(" | ".join(["", *row, ""]).strip() for row in [["file", *COLUMNS], ["---"] * 6, *rows])


if __name__ == "__main__":
    print(table(Path("mutants")))

"""Prints what `make mutation` found: a row for each file, then each function with mutants that no test noticed.

Reads the folder mutants/ that mutmut keeps; `mutmut show NAME` prints one mutant.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SURVIVED, NO_TEST = (
    0,
    33,
)  # mutmut's exit codes; None: not tried; all others: noticed, by a failure or a timeout
COLUMNS = ("mutants", "noticed", "survived", "no test", "not tried")


def outcomes(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (file, {mutant: outcome}) for every file that was mutated."""
    for path in sorted(folder.rglob("*.meta")):
        codes = json.loads(path.read_text())["exit_code_by_key"]
        if codes:
            named = {SURVIVED: "survived", NO_TEST: "no test", None: "not tried"}
            file = str(path.relative_to(folder)).removesuffix(".meta")
            yield file, {mutant: named.get(code, "noticed") for mutant, code in codes.items()}


def function_of(mutant: str) -> str:
    """Return the function of a mutant, as code names it.

    >>> function_of("server.state.x_make_release__mutmut_3"), function_of("a.b.xǁPlanǁspent__mutmut_10")
    ('make_release', 'Plan.spent')
    """
    name = re.sub(r"__mutmut_\d+$", "", mutant).rpartition(".")[2]
    return name.removeprefix("x_") if "ǁ" not in name else name.removeprefix("xǁ").replace("ǁ", ".")


def table(folder: Path) -> str:
    """Return both tables as Markdown."""
    found = dict(outcomes(folder))
    lines = [f"| file | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    total: Counter[str] = Counter()
    for file, mutants in found.items():
        counts = Counter({"mutants": len(mutants)}) + Counter(mutants.values())
        total += counts
        lines.append(f"| `{file}` | {' | '.join(str(counts[column]) for column in COLUMNS)} |")
    lines += [
        f"| all | {' | '.join(str(total[column]) for column in COLUMNS)} |",
        "",
        "| function | survived |",
        "|---|---|",
    ]
    for file, mutants in found.items():
        left = Counter(
            function_of(mutant) for mutant, what in mutants.items() if what in ("survived", "no test")
        )
        lines += [f"| `{file}` `{function}` | {count} |" for function, count in left.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(Path("mutants")))

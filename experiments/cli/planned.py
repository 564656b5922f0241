"""What a run would cost, printed on stdout: epsilon with all that it holds for, every figure, and the table of an adviser."""

from functools import partial
from typing import Any

from experiments.cli import output
from experiments.pages.wording import bound, holds_for, text_of, words_of
from experiments.settings.recorded import flattened
from fedmf.accounting.caveats import TIGHT
from fedmf.outlook import MOST_NOISE, MOST_NOISE_OF_LARGE

# The columns of a table, with the keys of its rows.
COLUMNS = {
    "": "recommended",
    "cohort n": "cohort_size",
    "keep gamma": "keep_probability",
    "epochs E": "epochs",
    "rounds": "rounds",
    "noise over signal": "noise_over_signal",
    "a client sends a round": "uplink_bytes_per_client",
    "in all": "uplink_bytes_per_client_in_all",
    "all clients send": "uplink_bytes_of_all_clients",
}
NOISE_OVER_SIGNAL = (
    "Noise over signal: how far the noise moves the last model along any one direction (standard deviation), over how far all "
    f"clipped updates together could. Runs of small models above {MOST_NOISE} ended near chance, of large "
    f"models above {MOST_NOISE_OF_LARGE}; all below 0.01 learnt (docs/privacy.md)."
)


def print_text(document: dict[str, Any]) -> None:
    """Print the plan: epsilon with all that it holds for, every figure, and the table if there is one."""
    how = TIGHT if document["accountant"] == "tight" else f"{document['accountant']} accountant"
    uncovered = "; ".join(sentence.removesuffix(".") for sentence in document["not_covered"])
    claim = (
        f"epsilon = {bound(document['epsilon'])} "
        f"{holds_for(document['delta'], document['unit_of_privacy'], document['adjacency'])} "
        f"({'exact' if document['epsilon_exact'] else how}); epochs (one participation each): {document['epochs']}. "
        f"Not covered: {uncovered}."
    )
    if not document["noise_multiplier"]:
        claim = "NOT private: noise_multiplier is 0, epsilon is infinite."
    show, lines = partial(output.console().print, markup=False), []
    if document["noise_over_signal"]:
        lines.append(NOISE_OVER_SIGNAL)
    show(claim)
    rows = [
        (words_of(key), text_of(key, value))
        for key, value in flattened(document)
        if value is not None and not isinstance(value, list) and key not in ("recommended", "reason")
    ]
    output.print_table("Plan", {}, rows)
    if "table" in document:
        title = (
            f"{document['clients']:,} clients, {document['parameters']:,} parameters, epsilon {bound(document['epsilon'])} at "
            f"delta {bound(document['delta'])}"
        )
        marked = [
            ("*" if row["recommended"] else "", *(text_of(key, row[key]) for key in [*COLUMNS.values()][1:]))
            for row in document["table"]
        ]
        output.print_table(title, dict.fromkeys(COLUMNS, output.NUMBER), marked)
        lines.append(f"* recommended, {document['recommended']}: {document['reason']}.")
    show(*lines, sep="\n", end="\n" if lines else "")

"""What no epsilon covers, whose bound it is, and when a delta is too large: in every statement and every plan."""

from fedmf.checks import rounded_up

NOT_COVERED = (
    "test examples, which are treated as public: scores on them, and settings chosen by them",
    "hyper-parameter search",
    "any further run on the same clients: this statement covers ONE run, and runs compose",
    "which clients stayed silent, and timing",
    "what is read from the server's memory, and random bits other than those of a perfect AES-256",
    "public constants: vocabulary, class list, shapes and scaling must not come from the training users",
)

LONGER = (
    "that still more epochs might have been added: epsilon is that of a procedure which under no outcome runs more than "
    "{epochs} epochs, so that a limit raised because of what was seen is not covered"
)

CHOOSING = (
    "Choosing settings by the {metric} of runs like this one is not covered by the privacy statement of any of them: runs on "
    "the same clients compose."
)

TIGHT = (
    "the smaller of the Renyi and the quadratic-variation bound; the latter is this project's own and not "
    "refereed, its proof is in docs/theory.md"
)


WEAK, LARGEST = 10.0, 20.0  # epsilon: above the first a warning, above the second no run is called private


def epsilon_warning(epsilon: float) -> str | None:
    """Return a sentence where epsilon is above `WEAK`, else None."""
    if epsilon <= WEAK:
        return None
    named = f"epsilon = {rounded_up(epsilon)} is above {LARGEST if epsilon > LARGEST else WEAK:g}"
    if epsilon > LARGEST:
        return f"{named}: no privacy is claimed. Every client's data may show in what is released."
    return f"{named}: weak protection. One client's data may change the odds of what is released by e^{rounded_up(epsilon)}."


def delta_warning(delta: float, clients: int) -> str | None:
    """Return a sentence where delta is above 1/(10 clients), else None.

    A delta of 1/clients allows a mechanism that publishes one client's data whole; there is at least one.
    """
    if delta * 10 * clients <= 1:
        return None
    bound = (
        f"at least 1/N = {1 / clients:.3g}"
        if delta >= 1 / clients
        else f"above 1/(10 N) = {0.1 / clients:.3g}"
    )
    return (
        f"delta = {rounded_up(delta)} is {bound}: from 1/N on it would allow publishing one client outright; choose it well "
        "below."
    )

"""More epochs for a run that has ended: what they cost together with those before, and whether that is allowed.

All epochs of an extended run are equal events. Whether and when further ones are added may follow from everything that
was released: an epoch that is not run costs nothing, one that is run costs its event whatever came before, so that a
procedure which under no outcome runs more than M epochs costs at most what M epochs do. That is adaptive composition
with bounds that are fixed beforehand, under which Renyi divergences add up (Mironov 2017, Proposition 1), Gaussians
add in mu^2 (Dong, Roth, Su 2022, Theorem 4), and the quadratic variation of docs/theory.md is bounded,
whose epochs may be chosen adaptively. A limit that is fixed before the first round is what is called a privacy filter
(Feldman and Zrnic 2021; Lecuyer 2021; Whitehouse et al. 2023). With events of different costs, chosen one by one, a
filter would be needed even then; here none differs.

What this does not give: a bound on what might have been. Where a limit is raised because of what was seen, the figure
is that of procedures which stop at the raised limit; docs/theory.md, section 2.
"""

from fedmf.accounting import Ledger, PrivacySpent
from fedmf.checks import check_at_least
from fedmf.errors import PrivacyBudgetExhausted
from fedmf.plan import Plan
from fedmf.rounding import rounded_up


def spent_with(plan: Plan, ledger: Ledger, epochs: int) -> PrivacySpent:
    """Return what the epochs in `ledger` and `epochs` more of the plan's cost together.

    The plan's event counts as the ledger's last one where both agree but for rounding, as when an epoch begins. What
    finite precision costs is that of the plan's epochs: give the plan that holds all of them (`Plan.extended`).
    """
    check_at_least("epochs", epochs, 0)
    event = plan.epoch_event
    if ledger.entries and ledger.entries[-1].agrees_with(event):
        event = ledger.entries[-1]
    return plan.spent_on(Ledger((*ledger.entries, *[event] * epochs)))


def check_extension(plan: Plan, ledger: Ledger, epochs: int) -> PrivacySpent:
    """Return what `spent_with` does, if that is allowed: within max_epsilon, or without one within the target epsilon.

    A run without noise costs no more by being longer. Raises `PrivacyBudgetExhausted` with the new epsilon otherwise,
    also for a run of a given noise multiplier to which nobody set a limit.
    """
    after, limit = spent_with(plan, ledger, epochs), plan.privacy
    if plan.noise_multiplier == 0:
        return after
    named, most = (
        ("epsilon", limit.epsilon) if limit.max_epsilon is None else ("max_epsilon", limit.max_epsilon)
    )
    if most is not None and after.epsilon <= most:
        return after
    before = plan.spent_on(ledger)
    why = "to which no limit was set" if most is None else f"above {named}={most:g}"
    raise PrivacyBudgetExhausted(
        f"{epochs} more {'epoch' if epochs == 1 else 'epochs'} would bring epsilon from {rounded_up(before.epsilon)} to "
        f"{rounded_up(after.epsilon)} at delta={rounded_up(after.delta)} (one client, {after.adjacency}), {why}; none is started. "
        f"If those whose data it is may be told that, allow it with max_epsilon={rounded_up(after.epsilon)}."
    )

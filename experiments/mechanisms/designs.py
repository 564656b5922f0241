"""From the command's settings to what is compared: one run of every family, all costed on the same rounds.

`workload=run` fits each epoch's mechanism to its own rounds and all that follow. `workload=prefix_sum` and
`workload=momentum` are the papers' designs: fitted to one epoch alone, the same in every epoch. With one epoch
there is no difference; with more, all of them are costed on the whole run, in which model, momentum and schedule go
on and only the noise restarts.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.settings.factorization import find_family, run_workloads
from experiments.settings.mechanism import WorkloadName
from experiments.settings.output import PRINTED, Output
from fedmf.checks import check_at_least, check_below_one, check_choice
from fedmf.choices import SCHEDULES
from fedmf.errors import SettingError
from fedmf.mechanisms import (
    FAMILIES,
    Family,
    RunFactorization,
    Workload,
    design,
    design_run,
    momentum,
    prefix_sum,
)
from fedmf.mechanisms.family import settings_of, suits
from fedmf.mechanisms.run_factorization import costed_on
from fedmf.setting import setting

_log = logging.getLogger(__name__)

FOR_PREFIX_SUM, FOR_MOMENTUM = "optimal_for_prefix_sum", "optimal_for_momentum"


@dataclass(frozen=True)
class MechanismsSettings:
    """Keys of the command; null families are all that suit the size, null buffers each family's choice."""

    rounds: int = setting(1024, "T, rounds of an epoch")
    epochs: int = setting(1, "E, epochs of the run: the noise restarts in each of them, the model goes on")
    workload: WorkloadName = setting(
        WorkloadName.prefix_sum,
        "what families are fitted to, one epoch alone, or each epoch and all rounds behind it",
    )
    momentum: float = setting(0.0, "beta of the server's optimizer in [0, 1), with workload=momentum or run")
    schedule: str = setting(
        "constant", "learning rates over the whole run, not with workload=prefix_sum", SCHEDULES
    )
    families: tuple[str, ...] | None = setting(
        None, "what is compared, such as [optimal,blt,mine:FAMILY]; null: all that suit the size", FAMILIES
    )
    buffers: int | None = setting(
        None, "rows of state for the families that take a number; null: each family's own choice"
    )
    export: str | None = setting(
        None,
        "folder for FAMILY.npz with encoder, decoder and noise (rounds <= 4096; of several epochs, as "
        "many numbers together)",
    )
    plots: str | None = setting(None, "folder for plots; null: none")
    output: Output = setting(Output.text, PRINTED)

    def __post_init__(self) -> None:
        check_at_least("rounds", self.rounds, 1)
        check_at_least("epochs", self.epochs, 1)
        check_below_one("momentum", self.momentum)
        check_choice("schedule", self.schedule, SCHEDULES)


def build_workloads(settings: MechanismsSettings) -> tuple[Workload, ...]:
    """Return the workload of each epoch on which all is costed, later rounds of the run included.

    Raises `SettingError` for prefix sums with momentum or a schedule, and for a schedule over several epochs with a
    design of one epoch, which could not know it.
    """
    is_constant = settings.schedule == "constant"
    if settings.workload is WorkloadName.prefix_sum and (settings.momentum != 0 or not is_constant):
        raise SettingError(
            f"momentum is {settings.momentum} and schedule {settings.schedule} with workload=prefix_sum; "
            "ask for workload=momentum, or for workload=run."
        )
    if settings.workload is WorkloadName.momentum and settings.epochs > 1 and not is_constant:
        raise SettingError(
            f"schedule is {settings.schedule} with workload=momentum and {settings.epochs} epochs; a schedule goes "
            "over the whole run, which a design of one epoch does not know: ask for workload=run, which lists that "
            f"design too, as {FOR_MOMENTUM}."
        )
    return run_workloads(settings.rounds, settings.epochs, beta=settings.momentum, schedule=settings.schedule)


def fitted_to(settings: MechanismsSettings, workloads: Sequence[Workload]) -> Workload | None:
    """Return the workload of one epoch alone to which the families are fitted; None: the run, epoch by epoch."""
    if settings.workload is WorkloadName.run and len(workloads) > 1:
        return None
    return workloads[-1]  # nothing is behind the last epoch; all have its learning rates, as checked before


def designs(
    settings: MechanismsSettings, workloads: Sequence[Workload]
) -> Iterator[tuple[str, RunFactorization]]:
    """Yield the families asked for, or all that suit the size, by name.

    Beside all of them stands what the optimum of one epoch costs on this workload: that of prefix sums, and that of
    the momentum at a constant learning rate.
    """
    chosen = _chosen(settings.families, workloads[0])
    if settings.buffers is not None:
        _check_buffers_apply(chosen, settings.buffers)
    alone = fitted_to(settings, workloads)
    for family in chosen:
        takes_buffers = settings.buffers is not None and "buffers" in settings_of(family)
        given = {"buffers": settings.buffers} if takes_buffers else {}
        yield (
            _name(family),
            design_run(family, workloads, **given)
            if alone is None
            else costed_on([design(family, alone, **given)] * len(workloads), workloads),
        )
    if settings.families is None:
        for name, epoch in _of_one_epoch(settings):
            if epoch != alone:
                yield name, costed_on([design("optimal", epoch)] * len(workloads), workloads)


def _of_one_epoch(settings: MechanismsSettings) -> Iterator[tuple[str, Workload]]:
    """Yield the workloads of one epoch whose optimum is listed, by the name of the row."""
    rounds, beta = settings.rounds, settings.momentum
    yield FOR_PREFIX_SUM, prefix_sum(rounds)
    if beta != 0:
        yield FOR_MOMENTUM, momentum(rounds, beta)


def _chosen(families: Sequence[str] | None, workload: Workload) -> Sequence[str | Family]:
    """Return the families named, in order and once, or all that suit the size."""
    if families is not None:
        if not families:
            raise SettingError("families is empty; name at least one, or leave it out for all.")
        for name in families:
            if ":" not in name:
                check_choice("families", name, FAMILIES)
        chosen = [find_family(name, "families") for name in dict.fromkeys(families)]
        _check_names_differ([_name(family) for family in chosen])
        return chosen
    left_out = [family for family in FAMILIES if not suits(family, workload)]
    if left_out:
        _log.info("left out at %d rounds, as dense: %s", workload.rounds, ", ".join(left_out))
    return [family for family in FAMILIES if family not in left_out]


def _name(family: str | Family) -> str:
    return family.name if isinstance(family, Family) else family


def _check_names_differ(names: Sequence[str]) -> None:
    """Raise `SettingError` where two families of the list would share a row and a file."""
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"families holds two that are called {name!r}; give one another name.")


def _check_buffers_apply(chosen: Sequence[str | Family], buffers: int) -> None:
    """Say which families have no such setting; raise `SettingError` if none has it."""
    without = [_name(family) for family in chosen if "buffers" not in settings_of(family)]
    if len(without) == len(chosen):
        raise SettingError(
            f"buffers is {buffers}, but {', '.join(without)} cannot be told how many; leave it out."
        )
    if without:
        _log.info("buffers=%d says nothing to %s", buffers, ", ".join(without))

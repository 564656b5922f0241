"""Break runs on purpose and hold what comes of it against what was promised: `python -m experiments.soak kills=100`.

Kills of a simulation: a reference run goes through undisturbed. Then the same run is started again and again as a process of
its own and killed with SIGKILL: at a random moment; just before or just after a file is forced to disk; or with the file
that was being written cut at a random byte, as a power failure would leave it. Every run that gets to its end must equal the
reference bit for bit: model, metrics (less seconds), summary.

Faults in a deployment: `python -m experiments.soak deployment=true minutes=60 seed=0` starts a SuperLink and nodes on
the loopback interface, and while they train, kills, freezes, cuts off, slows down or resets a node, lets it lie or its
clock be off, has a proxy refuse its replies, kills the server app or the SuperLink, loses its database, fills the disk. The run is
resumed wherever it ends, and the journal is held against every promise (docs/soak.md). `inject=[node_killed,disk_full]`
injects these, in this order.

`directory` is for the runs and must not hold any yet (default: a temporary one, removed at the end). `overrides` is a
list of those of simulate: 'overrides=["population.epochs=2", "seed=3"]'. Exit code 1 if a promise was not kept.
"""

from dataclasses import dataclass

from experiments.cli import command, output
from experiments.settings.output import PRINTED, Output
from fedmf.checks import check_at_least, check_positive
from fedmf.errors import RunStoppedError, SettingError
from fedmf.setting import setting

_KILLS, _MINUTES, _NODES = 100, 60.0, 3  # where null


@dataclass(frozen=True)
class SoakSettings:
    """Keys of the command; `overrides` are those of simulate."""

    kills: int | None = setting(
        None, "how often a run is killed at a random moment and resumed; null: 100, and none in a deployment"
    )
    deployment: bool = setting(
        False, "whether faults are injected into a deployment on this machine instead (docs/soak.md)"
    )
    minutes: float | None = setting(
        None, "of a deployment: minutes over which the faults are spread, at least; null: 60"
    )
    inject: tuple[str, ...] | None = setting(
        None,
        "of a deployment: the faults that are injected, in this order; null: ten at random of all "
        "that docs/soak.md lists",
    )
    nodes: int | None = setting(None, "of a deployment: how many nodes it has; null: 3")
    seed: int = setting(0, "of the moments at which runs are killed, and of the faults of a deployment")
    overrides: tuple[str, ...] = setting((), "settings of the run, those of simulate, as a list")
    directory: str | None = setting(None, "folder for the runs; null: a temporary one")
    output: Output = setting(Output.text, PRINTED)


def soak(settings: SoakSettings) -> None:
    """Run one of the two tests and print what it found. Raises `RunStoppedError` if a promise was not kept."""
    of_deployment = {"minutes": settings.minutes, "inject": settings.inject, "nodes": settings.nodes}
    besides = {"kills": settings.kills} if settings.deployment else of_deployment
    for key in (key for key, value in besides.items() if value is not None):
        raise SettingError(
            f"{key} is given with deployment={str(settings.deployment).lower()}, where it means nothing; "
            f"{'kills belong to a simulation' if settings.deployment else 'add deployment=true'}."
        )
    if settings.deployment:
        _soak_deployment(settings)
    else:
        _soak_simulation(settings)


def _soak_simulation(settings: SoakSettings) -> None:
    from experiments.soak import kills  # a command that is asked for help imports little

    wanted = _KILLS if settings.kills is None else settings.kills
    outcome = kills.soak(wanted, settings.seed, settings.overrides, settings.directory)
    if settings.output is Output.json:
        output.print_json(outcome)
    else:
        kills.print_table(outcome)
    if outcome["differences"]:
        raise RunStoppedError(f"{len(outcome['differences'])} resumed runs differ from the reference.")


def _soak_deployment(settings: SoakSettings) -> None:
    from experiments.soak import deployment

    minutes = _MINUTES if settings.minutes is None else settings.minutes
    nodes = _NODES if settings.nodes is None else settings.nodes
    check_positive("minutes", minutes)
    check_at_least("nodes", nodes, 1)
    if settings.inject is not None and not settings.inject:
        raise SettingError(
            "inject is []; it must name a fault, such as inject=[node_killed], or be null for ten at random."
        )
    outcome = deployment.soak(
        minutes, settings.seed, settings.inject, nodes, settings.overrides, settings.directory
    )
    if settings.output is Output.json:
        output.print_json(outcome)
    else:
        deployment.print_table(outcome)
    if outcome["violations"]:
        raise RunStoppedError(
            f"{len(outcome['violations'])} promises were not kept; the first: {outcome['violations'][0]}."
        )


if __name__ == "__main__":
    command.run(soak, "soak", SoakSettings, __doc__)

"""Faults in a deployment: `python -m experiments.soak deployment=true minutes=60 seed=0`."""

import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from client.parameters import model_arrays
from experiments.cli import output
from experiments.deployment.loopback import APP
from experiments.deployment.node_app import run_settings
from experiments.deployment.server import build_deployed
from experiments.run_files.directory import MODEL
from experiments.run_files.model_files import read_arrays
from experiments.run_files.reader import is_finished
from experiments.settings.client import build_model
from experiments.soak import checks
from experiments.soak.evidence import Evidence
from experiments.soak.faults import FAULTS, NEEDS_SMALL_DISK
from experiments.soak.kills import place
from experiments.soak.loopback_target import LoopbackTarget
from experiments.soak.recount import Recount, Recounted
from experiments.soak.schedule import Planned, any_ten, drawn
from experiments.soak.target import Target
from fedmf.checks import check_choice
from fedmf.errors import SettingError
from server.cohort import node_of

_LOOK = 0.2  # seconds between two looks
_STRIKES = 240.0  # seconds within which a fault must be seen to have an effect
_PATIENCE = 400.0  # seconds after a fault was mended within which the next round must be released
_STARTS = 300.0  # seconds for the first round
_ENDS = 1800.0  # seconds for the last run to finish
_NO_SMALL_DISK = (
    "inject names disk_full, for which a small file system must be mounted, and this account may not; as root it may, or by "
    "unshare -rm python -m experiments.soak ..."
)


@dataclass(frozen=True)
class Struck:
    """A fault that was injected: when, mended when, and when a round was released after that (None: none was).

    `seen`: whether it had an effect before it was mended.
    """

    planned: Planned
    at: float
    mended: float
    released: float | None
    seen: bool

    @property
    def verdict(self) -> str:
        """What became of it; anything but "went on" is a failure of the suite."""
        if self.released is None:
            return "no round was released any more"
        return "went on" if self.seen else "did not strike"


def soak(
    minutes: float,
    seed: int,
    faults: Sequence[str] | None,
    nodes: int,
    overrides: Sequence[str],
    directory: str | None,
) -> dict[str, Any]:
    """Inject faults into a deployment on this machine and return what became of them and of the promises."""
    if not (APP / "pyproject.toml").is_file():
        raise SettingError(
            f"{APP} holds no pyproject.toml, from which Flower bundles the app; run it from a checkout."
        )
    for name in faults or ():
        check_choice("inject", name, FAULTS)
    target = LoopbackTarget(nodes, overrides, seed)
    build_deployed(
        run_settings(target.overrides(Path("/run")))
    )  # a mistake is said before anything is started
    with ExitStack() as stack:
        folder = None if directory is None else place(directory, stack)
        with target:
            kinds = [name for name in FAULTS if target.disk.is_small or name != NEEDS_SMALL_DISK]
            if NEEDS_SMALL_DISK in (faults or ()) and not target.disk.is_small:
                raise SettingError(_NO_SMALL_DISK)
            schedule = drawn(seed, minutes, faults or any_ten(seed, kinds), target.nodes)
            tell(schedule)
            try:
                began, struck = inject(target, schedule, seed)
                target.last_run()
                _wait(target, target.has_ended, _ENDS)
            finally:
                if folder is not None:
                    target.keep(folder)
            looked = [examined(target, run) for run in target.runs]
    return report(seed, minutes, began, struck, target.runs, looked)


def inject(target: Target, schedule: Sequence[Planned], seed: int) -> tuple[float, list[Struck]]:
    """Let each fault strike at its time, or as soon as rounds are released again; return when the first round was, too.

    A fault lasts as long as planned from when it was first seen to have an effect.
    """
    rng, struck = random.Random(f"faults {seed}"), list[Struck]()
    _wait(target, lambda: target.released() > 0, _STARTS)
    began = time.monotonic()
    for planned in schedule:
        fault, node = FAULTS[planned.fault], planned.node
        _wait(target, lambda end=began + planned.at: time.monotonic() >= end, float("inf"))  # type: ignore[misc]
        at = time.monotonic()
        _say(f"{at - began:7.1f} s  {planned.fault}{f' {node}' if fault.of_node else ''}: {fault.says}")
        seen = _wait(target, fault.inject(target, node, rng), _STRIKES)
        strikes = time.monotonic()
        if seen:
            _wait(target, lambda end=strikes + planned.seconds: time.monotonic() >= end, float("inf"))  # type: ignore[misc]
        else:
            _say(f"it did not strike within {_STRIKES:g} s")
        fault.mend(target, node, rng)
        mended, before = time.monotonic(), target.released()
        goes_on = _wait(target, lambda count=before: target.released() > count, _PATIENCE)  # type: ignore[misc]
        released = time.monotonic() if goes_on else None
        struck.append(Struck(planned, at, mended, released, seen))
        if released is None:
            _say(f"no round was released within {_PATIENCE:g} s")
            break
        _say(f"{released - began:7.1f} s  rounds are released again")
    return began, struck


def tell(schedule: Sequence[Planned]) -> None:
    """Print the schedule: the same for the same seed."""
    for planned in schedule:
        where = f" {planned.node}" if FAULTS[planned.fault].of_node else ""
        _say(f"planned: at {planned.at:g} s for {planned.seconds:g} s: {planned.fault}{where}")


@dataclass(frozen=True)
class Examined:
    """What the checks say of a run, by their names, and what its recount found."""

    violations: dict[str, list[str]]
    recounted: Recounted | None
    replies: list[tuple[int, int]]  # of each round: who answered, who was asked


def examined(target: LoopbackTarget, run: Evidence) -> Examined:
    """Hold a run against every promise."""
    run.look()
    settings = run_settings(target.overrides(run.directory))
    recount = Recount(settings, target.holdings())
    releases, rows = run.releases(), run.rows()
    has_finished = is_finished(run.directory)
    rounds = recount.plan.participation.rounds if has_finished else len(rows)
    said = {
        "released_once": checks.released_once(releases, rounds),
        "heard_once": checks.heard_once(releases, run.rosters, recount.plan),
        "shown_as_released": checks.shown_as_released(rows, releases),
        "one_key_chain": checks.one_key_chain(run.keys),
        "finished": [] if has_finished else [f"{run.directory.name} ended after round {len(rows)}"],
    }
    found = None
    if not said["released_once"] and not said["one_key_chain"] and releases:
        found = recount.of(releases, run.keys, run.rosters)
        said["noise_once"] = [
            f"no sum of what its clients sent, with its noise row once, is the release of round {number}"
            for number in found.unexplained
        ]
        heard = {node_of(client) for release in releases for client in release.answered}
        said["seen_as_released"] = checks.seen_as_released(
            target.notes(run.directory), found.digests, was_heard=target.witness in heard
        )
        if has_finished:
            model = build_model(settings.model, build_deployed(settings).dataset, settings.seed)
            said["undisturbed_model"] = _differing(model_arrays(model, found.model), run.directory / MODEL)
    replies = [(len(release.answered), release.cohort_size) for release in releases]
    return Examined(said, found, replies)


def report(
    seed: int,
    minutes: float,
    began: float,
    struck: Sequence[Struck],
    runs: Sequence[Evidence],
    looked: Sequence[Examined],
) -> dict[str, Any]:
    """Return everything that was found, as one document."""
    violations = [
        f"{run.directory.name}: {checks.NAMES[name]}: {sentence}"
        for run, one in zip(runs, looked, strict=True)
        for name, said in one.violations.items()
        for sentence in said
    ]
    ends = [*(one.at for one in struck[1:]), float("inf")]
    faults = [
        {
            "fault": one.planned.fault,
            "node": one.planned.node if FAULTS[one.planned.fault].of_node else None,
            "at": round(one.at - began, 1),
            "lasted": round(one.mended - one.at, 1),
            "seconds_until_release": _until(one, runs),
            **_lost(one.at, end, runs, looked),
            "verdict": one.verdict,
        }
        for one, end in zip(struck, ends, strict=True)
    ]
    violations += [f"{row['fault']}: {row['verdict']}" for row in faults if row["verdict"] != "went on"]
    return {
        "seed": seed,
        "minutes": minutes,
        "faults": faults,
        "runs": len(runs),
        "undisturbed_runs": sum(bool(one.recounted and one.recounted.is_undisturbed) for one in looked),
        "rounds": sum(len(run.shown) for run in runs),
        "checks": {
            name: sum(name in one.violations for one in looked)
            - sum(bool(one.violations.get(name)) for one in looked)
            for name in checks.NAMES
        },
        "violations": violations,
    }


def print_table(outcome: dict[str, Any]) -> None:
    """Print what was found, for people."""
    table = Table(title=f"Faults in a deployment, seed {outcome['seed']}")
    for heading in ("fault", "node", "at s", "for s", "next release after s", "silent", "zeros", "verdict"):
        table.add_column(heading, justify="left" if heading in ("fault", "node", "verdict") else "right")
    for row in outcome["faults"]:
        cells = ("fault", "node", "at", "lasted", "seconds_until_release", "silent", "zeros", "verdict")
        table.add_row(*("-" if row[cell] is None else str(row[cell]) for cell in cells))
    held = Table(title=f"Promises, in {outcome['runs']} runs of {outcome['rounds']} rounds together")
    held.add_column("promise")
    held.add_column("runs that kept it", justify="right")
    for name, count in outcome["checks"].items():
        held.add_row(checks.NAMES[name], str(count))
    output.console().print(table)
    output.console().print(held)
    for sentence in outcome["violations"]:
        output.console().print(f"violated: {sentence}")


def _until(one: Struck, runs: Sequence[Evidence]) -> float | None:
    """Return after how many seconds the first round after a fault was released."""
    times = [at for run in runs for at, _ in run.shown if at > one.at]
    return round(min(times) - one.at, 1) if times else None


def _lost(begin: float, end: float, runs: Sequence[Evidence], looked: Sequence[Examined]) -> dict[str, int]:
    """Return how many clients were silent, and how many nodes' replies counted as zeros, in the rounds from `begin` on."""
    silent = zeros = 0
    for run, one in zip(runs, looked, strict=True):
        spoilt = one.recounted.zeros if one.recounted else {}
        for (at, number), (answered, asked) in zip(run.shown, one.replies, strict=False):
            if begin < at <= end:
                silent += asked - answered
                zeros += len(spoilt.get(number, ()))
    return {"silent": silent, "zeros": zeros}


def _differing(expected: dict[str, np.ndarray], file: Path) -> list[str]:
    stored = read_arrays(file)
    return [
        f"{name} differs"
        for name in sorted({*expected, *stored})
        if name not in stored or name not in expected or expected[name].tobytes() != stored[name].tobytes()
    ]


def _wait(target: Target, happened: Callable[[], bool], limit: float) -> bool:
    """Tend the target until something has happened; return whether it did within `limit` seconds."""
    deadline = time.monotonic() + limit
    while True:
        target.tend()
        if happened():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

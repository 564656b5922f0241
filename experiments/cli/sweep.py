"""What a person sees of a sweep: one line a job, and at the end how many failed and the command that compares the rest.

Jobs may run in processes of their own: each adds a line to a file of the process that began the sweep.
"""

import json
import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.reasons import one_line
from experiments.cli.result import score_text
from experiments.run_files.reader import Run
from experiments.settings.log import messages
from experiments.settings.mistakes import sentence
from experiments.settings.output import Output
from experiments.settings.reference import called
from experiments.settings.sweep import SweepJob
from fedmf.errors import FedmfError

LONGEST_WORDS = 80  # characters of a job's own settings
_NAMED = 5  # failed jobs that are named


@dataclass(frozen=True)
class Tally:
    """The ended jobs of a sweep, one JSON line each in `file`."""

    file: Path

    def finished(self, job: SweepJob, form: Output, run: Run, metric: str) -> None:
        """Count a job that has finished and print its line: on stdout, unless that holds JSON."""
        said = score_text(run, metric)
        to_stdout = form is not Output.json
        _print(f"{_named(job)}: {said if metric == 'accuracy' else f'{metric} {said}'}", to_stdout)
        self._add(job, {"directory": str(run.directory), "to_stdout": to_stdout})

    def failed(self, job: SweepJob, error: BaseException) -> None:
        """Count a job that failed and say on stderr why."""
        why = sentence(error) if isinstance(error, FedmfError) else one_line(error)
        _print(f"{_named(job)}: failed: {why}", to_stdout=False)
        self._add(job, {"directory": None})

    def say_end(self) -> None:
        """Print how the sweep went; nothing where no job of a sweep has ended."""
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        ended = {entry["number"]: entry for entry in map(json.loads, lines)}
        if not ended:
            return
        finished = [entry for entry in ended.values() if entry["directory"]]
        failed = sorted(number for number, entry in ended.items() if not entry["directory"])
        to_stdout = any(entry["to_stdout"] for entry in finished)
        _print(_counts(next(iter(ended.values()))["total"] or len(ended), len(finished), failed), to_stdout)
        if finished:
            root = _root(Path(finished[0]["root"]), [Path(entry["directory"]) for entry in finished])
            near = root.relative_to(Path.cwd()) if root.is_relative_to(Path.cwd()) else root
            _print(f"compare: {called('compare')} {shlex.quote(f'directory={near}')}", to_stdout)
            _print("Each epsilon is that of its run alone: runs on the same clients compose.", to_stdout)

    def _add(self, job: SweepJob, entry: dict[str, Any]) -> None:
        with self.file.open("a", encoding="utf-8") as file:  # one write, so that no two jobs mix
            file.write(
                json.dumps({"number": job.number, "total": job.total, "root": str(job.root), **entry}) + "\n"
            )


@contextmanager
def tally() -> Iterator[Tally]:
    """Yield a tally of the jobs that the block runs, and say at its end how they went, whatever ended it."""
    with tempfile.TemporaryDirectory(prefix="fedmf-sweep-") as folder:
        counted = Tally(Path(folder) / "jobs.jsonl")
        try:
            yield counted
        finally:
            counted.say_end()


def _named(job: SweepJob) -> str:
    words = job.words if len(job.words) <= LONGEST_WORDS else f"{job.words[: LONGEST_WORDS - 1]}…"
    return f"{job.label}, {words}" if words else job.label


def _counts(total: int, finished: int, failed: list[int]) -> str:
    """Return how many jobs ended and how.

    >>> _counts(4, 3, [2]), _counts(4, 2, [])
    ('4 jobs: 3 finished, 1 failed (job 2)', '4 jobs: 2 finished, 0 failed, 2 not run')
    """
    said = f"{total} job{'' if total == 1 else 's'}: {finished} finished, {len(failed)} failed"
    if failed:
        more = ", …" if len(failed) > _NAMED else ""
        noun = "job" if len(failed) == 1 else "jobs"
        said += f" ({noun} {', '.join(map(str, failed[:_NAMED]))}{more})"
    left = total - finished - len(failed)
    return f"{said}, {left} not run" if left > 0 else said


def _root(sweep: Path, runs: list[Path]) -> Path:
    """Return the directory below which all runs lie: the sweep's, unless run.directory put them elsewhere."""
    return sweep if all(sweep in run.parents for run in runs) else Path(os.path.commonpath(runs))


def _print(line: str, to_stdout: bool) -> None:
    if to_stdout:
        print(line, flush=True)
    else:
        messages.info(line)

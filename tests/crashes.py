"""Runs that end as a SIGKILL ends them, inside the process of the tests: by an exception that nothing catches."""

import itertools
import os
from contextlib import contextmanager

import pytest

from runs import run
from server import record
from server.checkpoint import Checkpoint


class Crash(BaseException):
    """What a SIGKILL is, inside one process."""


def crash_at(monkeypatch, call, after):
    """Make the `after`-th call of os.`call` from now on crash, before or after it took effect.

    A commit of the database, which SQLite forces to disk itself, counts as a call of fsync.
    """
    calls = itertools.count(1)

    def counted(real):
        def calling(*arguments, **options):
            number = next(calls)
            if number == after and number % 2:
                raise Crash
            result = real(*arguments, **options)
            if number == after:
                raise Crash
            return result

        return calling

    monkeypatch.setattr(os, call, counted(getattr(os, call)))
    if call == "fsync":
        monkeypatch.setattr(record, "commit", counted(record.commit))


def cut(directory, *overrides, after=4):
    """Leave a run that ended without warning after so many rounds; 0: before the first was released."""
    real, released = Checkpoint.commit, itertools.count(1)

    def commit(self, release):
        if next(released) > after:
            raise Crash
        real(self, release)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Checkpoint, "commit", commit)
        with pytest.raises(Crash):
            run(directory, *overrides)
    return directory


@contextmanager
def behind_round(owner, method, last, error=Crash):
    """For the block, make `owner.method` raise `error` once it has done its work for round `last`."""
    real = getattr(owner, method)

    def crashing(self, *arguments):
        real(self, *arguments)
        if any(getattr(argument, "round", None) == last for argument in arguments):
            raise error

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, method, crashing)
        with pytest.raises(error):
            yield

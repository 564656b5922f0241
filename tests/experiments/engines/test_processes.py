"""New processes that play clients: what each is like when it begins."""

import platform
import resource
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

from experiments.engines.processes import process_context, spawn_context, start_process

PAGE = resource.getpagesize()


def new_pages(megabytes, turns):
    """Return how many new pages the last of `turns` touches that make, fill and free three arrays of so many MB."""
    for _ in range(turns):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        arrays = [np.ones(megabytes << 20, np.uint8) for _ in range(3)]
        after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        del arrays
    return after - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's allocator")
def test_a_worker_touches_no_new_pages_for_arrays_of_a_size_that_it_has_freed():
    with ProcessPoolExecutor(1, process_context([]), initializer=start_process) as executor:
        assert executor.submit(new_pages, 4, 3).result() < 0.1 * (3 * 4 << 20) / PAGE


TRACKED = """
import os, signal, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import resource_tracker
from experiments.engines.processes import spawn_context
before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
context = spawn_context()
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
tracker = resource_tracker._resource_tracker._pid
os.kill(tracker, signal.SIGHUP)
semaphore = context.Semaphore()
assert resource_tracker._resource_tracker._pid == tracker
print("all is well")
"""


def test_what_keeps_semaphores_outlives_a_closed_terminal():
    done = subprocess.run([sys.executable, "-c", TRACKED], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("all is well\n", "")


@pytest.mark.parametrize("context", [lambda: process_context([]), spawn_context], ids=["forked", "spawned"])
def test_a_worker_ignores_what_a_terminal_sends_to_all(context):
    with ProcessPoolExecutor(1, context(), initializer=start_process) as executor:
        for number in (signal.SIGINT, signal.SIGHUP):
            assert executor.submit(signal.getsignal, number).result() == signal.SIG_IGN

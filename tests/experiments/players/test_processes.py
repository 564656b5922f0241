"""New processes that play clients: what each is like when it begins."""

import platform
import resource
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

from experiments.players.processes import process_context, start_process

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

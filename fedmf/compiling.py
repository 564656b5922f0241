"""Whether numba (the extra `fast`) can be used, and how loops are compiled with it.

When a compiled loop is worth its loading `fedmf.kernels` and `fedmf.updates.compiled` say for themselves. The designs,
`fedmf.mechanisms.compiled`, have a compiler of their own, as all that decides a table lies in their package.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

_log = logging.getLogger(__name__)


@cache
def available() -> bool:
    """Return whether numba is there and works, which is known once it is loaded: that takes a second."""
    try:
        import numba  # noqa: F401
    except (ImportError, OSError) as error:  # OSError: llvmlite's library cannot be loaded
        # Where it is there, something that it needs is not, such as a numpy that it knows.
        if not isinstance(error, ImportError) or error.name != "numba":
            _log.warning("numba is installed, but cannot be used (%s); numpy is used in its place", error)
        return False
    return True


def version() -> str | None:
    """Return the version of the numba that compiles, None where there is none that can be used, installed or not."""
    if not available():
        return None
    import numba

    return str(numba.__version__)


def compiled(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """Return `function` compiled, and kept on disk where there is a place for it; as it is without numba.

    `settings` are those of `numba.njit`.
    """
    if not available():
        return function
    from numba import njit

    try:
        result: Callable[..., Any] = njit(cache=True, **settings)(function)
    except RuntimeError:  # neither beside the code nor in the user's cache may anything be written
        result = njit(**settings)(function)
    return result

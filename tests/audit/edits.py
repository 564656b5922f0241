"""Faults as edits of the product's source, in force while a scene is run.

A fault is one or a few edits, as a developer could make them by mistake: (function, text, other text). The edited function is
compiled and its code put in the place of the honest one.
"""

import ast
import inspect
from contextlib import contextmanager
from functools import partial
from textwrap import dedent, indent

from experiments.audit.sabotage import Sabotage
from server.state import begin_epoch, first_state, make_release

SENSITIVITY = ("coupled sensitivity",)  # the tests that must catch most faults
LAST_EPOCH = "epoch == plan.participation.epochs - 1"
UNBOUNDED = "if bounds.l2_norm is None:"


@contextmanager
def edited(*edits):
    """Put edits of the source in force for the block; a further line of the other text is indented as its first one is.

    The edited functions share a dictionary MEMORY, which is empty at first, for what one fault keeps between them.
    """
    memory, honest, sources = {}, {}, {}
    for function, old, new in edits:
        source = sources.get(function) or dedent(inspect.getsource(function))
        assert source.count(old) == 1, f"{function.__qualname__} does not have once: {old}"
        before, _, after = source.partition(old)
        line = before.rpartition("\n")[2]
        margin = line[: len(line) - len(line.lstrip())]
        sources[function] = before + new.replace("\n", f"\n{margin}") + after
    try:
        for function, source in sources.items():
            tree = ast.parse(source)
            tree.body[0].decorator_list = []
            namespace = dict(function.__globals__)
            exec(compile(tree, f"<edited {function.__qualname__}>", "exec"), namespace)
            honest[function] = function.__code__
            function.__globals__["MEMORY"] = memory
            function.__code__ = namespace[function.__name__].__code__
        yield
    finally:
        for function, code in honest.items():
            function.__code__ = code
            function.__globals__.pop("MEMORY", None)


def fault(name, caught_by, *edits, applies=lambda scene: True):
    return Sabotage(name, "", caught_by, partial(edited, *edits), applies)


def masked(scene):
    return scene.keep_probability < 1


def when(due, *edits):
    """Put edits of whole statements in force in the rounds of which `due` is true, before the round of `state`."""
    switched = (
        (function, old, f"if MEMORY['due']:\n{indent(new, '    ')}\nelse:\n    {old}")
        for function, old, new in edits
    )
    beginning = "if step or len("
    return ((begin_epoch, beginning, f"MEMORY['due'] = {due}\n{beginning}"), *switched)


def released(change):
    """Change what is released; `unrotated` is the sum without noise."""
    made = "release = Release("
    return make_release, made, f"{change}\n{made}"


FIRST_KEY = (first_state, "return ServerState(", "MEMORY['first'] = key\nreturn ServerState(")
EXACT = released("MEMORY['exact'] = unrotated.copy()")

"""Public text that is on every machine: Python's own documentation, of which a vocabulary can be counted.

Another version of Python has other documentation, hence somewhat other words.
"""

import ast
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics


def documentation() -> Iterator[str]:
    """Yield the texts of Python's language reference and the docstrings of its standard library."""
    yield from topics.values()
    library = Path(sysconfig.get_path("stdlib"))
    for module in sorted(sys.stdlib_module_names):
        for file in (library / f"{module}.py", *sorted((library / module).rglob("*.py"))):
            if file.is_file() and not any("test" in part for part in file.relative_to(library).parts):
                yield from docstrings(file.read_bytes())


def docstrings(source: bytes) -> Iterator[str]:
    """Yield the docstrings of a Python module, its classes and functions; none for what is no Python.

    >>> list(docstrings(b"class Cat: 'An animal.'"))
    ['', 'An animal.']
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old modules hold escapes that today's Python warns of
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""

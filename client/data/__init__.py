"""Federated data sets behind one small interface.

>>> from client.data import load
>>> load("digits").clients[0].x.shape
(1, 8, 8)
"""

from client.data.arrays import from_arrays
from client.data.clients import ArrayClients, LazyClients
from client.data.dataset import (
    CLASSIFICATION,
    IGNORED_TARGET,
    NEXT_TOKEN,
    Dataset,
    Examples,
    Public,
)
from client.data.registry import DATASETS, load

__all__ = [
    "CLASSIFICATION",
    "DATASETS",
    "IGNORED_TARGET",
    "NEXT_TOKEN",
    "ArrayClients",
    "Dataset",
    "Examples",
    "LazyClients",
    "Public",
    "from_arrays",
    "load",
]

"""Federated datasets behind one small interface.

>>> from client.data import load
>>> load("digits").clients[0].x.shape
(1, 8, 8)
"""

from client.data.arrays import from_arrays as from_arrays
from client.data.clients import ArrayClients as ArrayClients, LazyClients as LazyClients
from client.data.dataset import (
    CLASSIFICATION as CLASSIFICATION,
    IGNORED_TARGET as IGNORED_TARGET,
    NEXT_TOKEN as NEXT_TOKEN,
    Dataset as Dataset,
    Examples as Examples,
    Public as Public,
)
from client.data.registry import DATASETS as DATASETS, load as load

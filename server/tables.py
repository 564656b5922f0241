"""The tables with which an epoch's noise is made, kept for as long as the epoch lasts.

    mechanism.npz       epoch, family and float32 tables; public, replaced when the next epoch begins

Another version of this code or of its libraries may compute other tables for the same settings. Within an epoch the
noise goes on with those that it began with: rows of one matrix before and of another after have a larger sensitivity
than either (1.85 instead of 1 in the worst case tried). The next epoch begins with the newly computed ones.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedmf.errors import DataError
from fedmf.mechanisms.deployed import tables_of, with_tables
from fedmf.mechanisms.factorization import Factorization
from fedmf.mechanisms.run_factorization import RunFactorization
from fedmf.npz import read_npz
from fedmf.plan import Plan
from server.files import UNREADABLE, packed, write_atomically

log = logging.getLogger(__name__)

FILE = "mechanism.npz"


def save(folder: Path, epoch: int, mechanisms: Sequence[Factorization]) -> None:
    """Keep the tables of `epoch` (0-based) in the folder of checkpoints, in place of those of the epoch before."""
    if epoch >= len(mechanisms):
        return
    tables, family = tables_of(mechanisms[epoch]), np.array(mechanisms[epoch].family)
    data = packed(epoch=np.array(epoch), family=family, tables=tables)
    write_atomically(folder / FILE, data)


def going_on(folder: Path, plan: Plan, began_with: tuple[int, str] | None) -> Plan:
    """Return the plan with the tables that were kept for the epoch under way, where it did not begin with the plan's.

    `began_with` is that epoch (0-based) and the fingerprint of the tables that it began with, which lies beside its
    key. Kept tables of another fingerprint change nothing, nor does a file that is missing, damaged or of another
    mechanism: where the plan's tables are not those either, `Checkpoint.restore` refuses.
    """
    try:
        stored = read_npz(folder / FILE)
        epoch, family, tables = int(stored["epoch"]), str(stored["family"]), stored["tables"]
        planned = plan.factorization.epochs[epoch]
        kept = planned if family != planned.family else with_tables(planned, tables)
    except (*UNREADABLE, IndexError, DataError):
        return plan
    if kept.fingerprint == planned.fingerprint or began_with != (epoch, kept.fingerprint):
        return plan
    log.warning(
        "epoch %d goes on with the tables that it began with; this version computes others, for the epochs behind it",
        epoch + 1,
    )
    epochs = list(plan.factorization.epochs)
    epochs[epoch] = kept
    return replace(plan, factorization=RunFactorization(tuple(epochs)))

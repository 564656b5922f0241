"""What the audit breaks in the pipeline on purpose, from outside: no product code has a switch for any of it.

hooks      where a sabotage reaches in
scale      how much noise
rows       fresh rows of it
covariance what is made of them over rounds and epochs
masks      keys and masks
clipping   the bounds on what a client sends
sums       the sum, participation, the model before and between rounds
recovery   resume and journal
"""

from experiments.audit.sabotage.clipping import CLIPPING
from experiments.audit.sabotage.covariance import COVARIANCE
from experiments.audit.sabotage.hooks import NONE, ExamplesOf, Patches, Restored, Sabotage, patched
from experiments.audit.sabotage.masks import MASKS, SHARED_MASK, SharedMaskKey
from experiments.audit.sabotage.recovery import RECOVERY
from experiments.audit.sabotage.rows import ROWS
from experiments.audit.sabotage.scale import HALF_NOISE, SCALE
from experiments.audit.sabotage.sums import SUMS

__all__ = [
    "HALF_NOISE",
    "NONE",
    "SABOTAGES",
    "SHARED_MASK",
    "ExamplesOf",
    "Patches",
    "Restored",
    "Sabotage",
    "SharedMaskKey",
    "patched",
]

SABOTAGES: dict[str, Sabotage] = {
    sabotage.name: sabotage for sabotage in (*SCALE, *ROWS, *COVARIANCE, *MASKS, *CLIPPING, *SUMS, *RECOVERY)
}

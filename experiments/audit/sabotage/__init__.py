"""What the audit breaks in the pipeline on purpose, from outside: no product code has a switch for any of it.

hooks      where a sabotage reaches in
noise      too little of it, or of another law
masks      keys and masks
sums       clipping, the sum, participation, the model before and between rounds
recovery   resume and journal
"""

from experiments.audit.sabotage.hooks import NONE, ExamplesOf, Patches, Restored, Sabotage, patched
from experiments.audit.sabotage.masks import MASKS, SHARED_MASK, SharedMaskKey
from experiments.audit.sabotage.noise import HALF_NOISE, NOISE
from experiments.audit.sabotage.recovery import RECOVERY
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

SABOTAGES: dict[str, Sabotage] = {sabotage.name: sabotage for sabotage in (*NOISE, *MASKS, *SUMS, *RECOVERY)}

"""The sabotage that the audit must catch. It is injected from here: no product code has a switch for it."""

from enum import Enum

from fedmf.plan import Plan
from fedmf.randomness import SecretKey


class Fault(Enum):
    """What is broken in the pipeline under audit."""

    none = "as shipped"
    half_noise = "noise halved"
    shared_mask = "one mask for all"


class SharedMaskKey(SecretKey):
    """A secret with one mask key for all clients of a round: the fault that voids the amplification."""

    def mask_key(self, client: str, step: int) -> SecretKey:
        """Return one key for all clients."""
        return super().mask_key("everyone", step)

    def ratchet(self) -> SecretKey:
        """Return the next epoch's secret, as broken as this one."""
        return SharedMaskKey(super().ratchet().reveal())


def broken_plan(plan: Plan, fault: Fault) -> Plan:
    """Return the plan that the server follows: with half the noise that was calibrated, for that fault."""
    return plan.with_noise_multiplier(plan.noise_multiplier / 2) if fault is Fault.half_noise else plan


def broken_secret(secret: SecretKey, fault: Fault) -> SecretKey:
    """Return the run secret that the server uses: one that gives everyone the same mask, for that fault."""
    return SharedMaskKey(secret.reveal()) if fault is Fault.shared_mask else secret

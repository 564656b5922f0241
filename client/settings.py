"""How a client trains, without torch: what a process may need to know long before it trains."""

from dataclasses import dataclass

from fedmf.checks import check_at_least, check_choice, check_positive

DEVICES = ("auto", "cpu", "cuda")
LOSSES = ("cross_entropy", "mse", "bce_with_logits")


@dataclass(frozen=True)
class TrainingSettings:
    """How a client trains: SGD at `learning_rate`, `epochs` passes in shuffled batches of `batch_size`."""

    learning_rate: float
    batch_size: int = 10
    epochs: int = 1
    device: str = "auto"

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        check_at_least("batch_size", self.batch_size, 1)
        check_at_least("epochs", self.epochs, 1)
        check_choice("device", self.device, DEVICES)


def check_loss(name: str) -> None:
    """Raise `SettingError` for a loss that is neither one of `LOSSES` nor an import path package.module:function."""
    if ":" not in name:
        check_choice("loss", name, LOSSES)

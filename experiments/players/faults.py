"""What goes wrong with clients in a rehearsal: probabilities of silence, delay, an error and a second reply."""

from dataclasses import dataclass

from fedmf.errors import SettingError


@dataclass(frozen=True)
class Faults:
    """Probabilities, for each task: silence; a reply that comes a round late; an error reply; a second reply."""

    drop_out: float = 0.0
    delay: float = 0.0
    error: float = 0.0
    duplicate: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1:
                raise SettingError(f"faults.{name} is {value}; it must lie in [0, 1].")
        if self.drop_out + self.delay + self.error > 1:
            raise SettingError(
                f"faults.drop_out + faults.delay + faults.error is {self.drop_out + self.delay + self.error}; "
                "it must be at most 1."
            )

    @property
    def any(self) -> bool:
        """Whether anything goes wrong at all."""
        return any(vars(self).values())

    def fate(self, draw: float) -> str:
        """Return what a uniform draw in [0, 1) decides: "silent", "late", "error" or "answer"."""
        if draw < self.drop_out:
            return "silent"
        if draw < self.drop_out + self.delay:
            return "late"
        return "error" if draw < self.drop_out + self.delay + self.error else "answer"

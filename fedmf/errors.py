"""The errors fedmf raises on purpose.

    FedmfError                    everything below; a command line turns it into one sentence and exit code 2
    ├── SettingError              a value outside its allowed range, or settings that contradict each other
    ├── NotCoveredError           an operation that the privacy theorem does not cover, refused
    ├── ParticipationError        a client would take part twice in one epoch, or more clients than there are
    ├── ReleaseOrderError         a round would be released twice, or out of order
    ├── PrivacyBudgetExhausted    the next epoch would exceed the budget
    ├── DataError                 a data file that is missing or malformed
    ├── RunDirectoryError         a run directory that cannot be used as asked
    ├── DivergedError             training left the finite numbers
    ├── DeviceLostError           a device that does not answer this process any more
    └── RunStoppedError           a run cannot go on now (disk full, too few replies) but can be resumed

Every message is a sentence: what was wrong, the value, and what would be right.
"""


class FedmfError(Exception):
    """Base of all errors that fedmf raises on purpose."""


class SettingError(FedmfError, ValueError):
    """A value outside its allowed range, or settings that contradict each other."""


class NotCoveredError(FedmfError):
    """An operation that the privacy theorem does not cover."""


class ParticipationError(FedmfError):
    """A client would take part twice in one epoch, or more clients are asked for than there are."""


class ReleaseOrderError(FedmfError):
    """A round would be released twice, or out of order."""


class PrivacyBudgetExhausted(FedmfError):
    """The next epoch would exceed the privacy budget."""


class DataError(FedmfError):
    """A data file is missing or malformed."""


class RunDirectoryError(FedmfError):
    """A run directory cannot be used as asked."""


class DivergedError(FedmfError):
    """The model or its loss is no longer finite."""


class DeviceLostError(FedmfError):
    """A device does not answer this process any more; a new process may use it again."""


class RunStoppedError(FedmfError):
    """A run cannot go on now, through no mistake of its user; it can be resumed."""

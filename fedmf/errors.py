"""The errors fedmf raises on purpose.

Every message is a sentence: what was wrong, the value, and what would be right. A command line prints it and exits with code 2.
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
    """A run cannot continue now, through no mistake of its user; it can be resumed."""

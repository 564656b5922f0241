"""The errors fedmf raises on purpose.

Every message is a sentence: what was wrong, the value, and what would be right. A command line prints it and exits with code 2.
"""

LONGEST = 300  # characters of a message of code that is not ours: torch's can contain whole tensors


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


def one_line(error: BaseException, text: str | None = None) -> str:
    """Return type and message of `error`, or `text` in its place, as one printable line without a full stop, cut after 300 letters.

    Of an error of ours it is the message alone.

    >>> one_line(ValueError("a\\nb.")), one_line(KeyError()), one_line(SettingError("It is 3."))
    ('ValueError: a b', 'KeyError', 'It is 3')
    """
    try:
        text = str(error) if text is None else text
    except (Exception, SystemExit):  # of a class of the user
        text = ""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    line = line.removesuffix(".") if len(line) <= LONGEST else f"{line[:LONGEST]}..."
    return line if isinstance(error, FedmfError) else f"{type(error).__name__}: {line}".removesuffix(": ")

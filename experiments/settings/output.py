"""The setting `output` of every command, and in which form those that run for long log."""

from enum import StrEnum


class Output(StrEnum):
    """What a command prints: a table for people, or one JSON document for programs."""

    text = "text"
    json = "json"


class LogForm(StrEnum):
    """How what a process says on stderr is written: as lines for people, or each as one JSON object."""

    text = "text"
    json = "json"


PRINTED = "what is printed, a table for people or one JSON document"

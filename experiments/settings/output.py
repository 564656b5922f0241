"""The setting `output` of every command."""

from enum import StrEnum


class Output(StrEnum):
    """What a command prints: a table for people, or one JSON document for programs."""

    text = "text"
    json = "json"

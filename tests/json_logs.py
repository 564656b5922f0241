"""Reads logs of which each line must be one JSON object."""

import json
import logging
import re

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def objects(text):
    """Return the objects of a log, every line of which must be one of ours."""
    found = [json.loads(line) for line in text.splitlines()]
    for said in found:
        assert list(said)[:4] == ["time", "level", "logger", "message"]
        assert set(said) <= {"time", "level", "logger", "message", "run", "traceback"}
        assert TIME.fullmatch(said["time"])
        assert logging.getLevelName(said["level"]) in range(10, 60, 10)
    return found

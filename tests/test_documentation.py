"""The programs in the documents run as they are written."""

import re
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]


def programs(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


def test_the_app_of_your_own_runs_as_written(capsys):
    names = {}
    for program in programs("docs/own_app.md"):
        exec(program, names)
    assert "20 rounds" in capsys.readouterr().out
    assert np.isfinite(names["strategy"].state.model).all()
    assert names["plan"].spent().epsilon <= 4.0

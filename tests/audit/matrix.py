"""Which test catches which sabotage: `PYTHONPATH=.:tests python -m audit.matrix`, a table for docs/audit.md."""

import json
import logging
import sys

from audit import hostile, sabotages
from experiments.audit.sabotage import CONTROLS
from experiments.audit.tested import COUPLED_SCENES, NOISE_SCENES, coupled_findings, noise_findings

KINDS = (
    ("coupled", COUPLED_SCENES, coupled_findings),
    ("coupled", (hostile.SCENE,), lambda scene, seed: coupled_findings(scene, seed, hostile.around)),
    ("noise", NOISE_SCENES, noise_findings),
)


def catches(sabotage, seed=0):
    """Return {test: scene} of what refutes a pipeline with this sabotage, and the tests that must catch it and did not.

    Of each kind of tests that must catch it (of the noise, where none must) the scenes are run in which it changes anything,
    until those tests have caught it.
    """
    must = [test for test in sabotage.caught_by if "attack" not in test]
    wanted = {kind_of(test) for test in must} or {"noise"}
    found, done = {}, set()
    with sabotage.patches():
        for kind, scenes, find in KINDS:
            for scene in scenes if kind in wanted else ():
                if kind in done or not sabotage.applies(scene):
                    continue
                refuting = [one.test for one in find(scene, seed) if one.refutes]
                found = dict.fromkeys(refuting, f"{kind}: {scene.name}") | found
                missed = [test for test in must if not any(name.startswith(test) for name in found)]
                done |= {kind} if refuting and kind not in map(kind_of, missed) else set()
    return found, missed


def kind_of(test):
    """Return the kind of a test."""
    return "coupled" if test.startswith("coupled") else "noise"


if __name__ == "__main__":
    logging.getLogger("server").setLevel(logging.WARNING)
    logging.getLogger("client.app").setLevel(logging.CRITICAL)
    for sabotage in (*CONTROLS, *sabotages.CAUGHT, *sabotages.ESCAPES, *sabotages.BY_CHANCE):
        if not sys.argv[1:] or sabotage.name in sys.argv[1:]:
            found, missed = catches(sabotage)
            print(
                json.dumps({"sabotage": sabotage.name, "caught_by": found, "missed_by": missed}), flush=True
            )

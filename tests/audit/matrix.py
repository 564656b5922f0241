"""Which test catches which sabotage: `PYTHONPATH=.:tests python -m audit.matrix`, a table for docs/audit.md."""

import json
import logging
import sys

from audit import hostile, sabotages
from experiments.audit import coupled, noise
from experiments.audit.coupled import coupled_findings
from experiments.audit.noise import noise_findings
from experiments.audit.sabotage import CONTROLS

KINDS = (
    ("coupled", coupled.SCENES, coupled_findings),
    ("coupled", (hostile.SCENE,), lambda scene, seed: coupled_findings(scene, seed, hostile.around)),
    ("noise", noise.SCENES, noise_findings),
)


def catches(sabotage, seed=0):
    """Return {test: scene} of what refutes a pipeline with this sabotage.

    Of each kind of tests that must catch it (of the noise, where none must) the scenes are run in which it changes anything,
    until those tests have caught it.
    """
    wanted = {kind for kind in ("coupled", "noise") if expected(sabotage, kind)} or {"noise"}
    found, done = {}, set()
    with sabotage.patches():
        for kind, scenes, find in KINDS:
            for scene in scenes if kind in wanted else ():
                if kind in done or not sabotage.applies(scene):
                    continue
                refuting = [one for one in find(scene, seed) if one.refutes]
                for one in refuting:
                    found.setdefault(one.test, f"{kind}: {scene.name}")
                has_all = all(
                    any(name.startswith(test) for name in found) for test in expected(sabotage, kind)
                )
                done |= {kind} if refuting and has_all else set()
    return found


def expected(sabotage, kind):
    """Return the tests of a kind that must catch a sabotage."""
    return [
        test
        for test in sabotage.caught_by
        if test.startswith("coupled") == (kind == "coupled") and "attack" not in test
    ]


def main(names):
    """Print a line of JSON for each sabotage."""
    logging.getLogger("server").setLevel(logging.WARNING)
    logging.getLogger("client.app").setLevel(logging.CRITICAL)
    for sabotage in (*CONTROLS, *sabotages.CAUGHT, *sabotages.ESCAPES, *sabotages.BY_CHANCE):
        if not names or sabotage.name in names:
            found = catches(sabotage)
            tests = (*expected(sabotage, "coupled"), *expected(sabotage, "noise"))
            missed = [test for test in tests if not any(name.startswith(test) for name in found)]
            print(
                json.dumps({"sabotage": sabotage.name, "caught_by": found, "missed_by": missed}), flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1:])

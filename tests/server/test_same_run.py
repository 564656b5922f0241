from dataclasses import replace

import pytest

from checkpoints import SETTINGS, SGD, advance, begun
from fedmf.errors import RunDirectoryError
from plans import small_plan
from server.checkpoint import Checkpoint


def test_another_configuration_is_refused_by_the_name_of_the_field(tmp_path):
    begun(small_plan(), tmp_path / "c")
    with pytest.raises(RunDirectoryError, match=r"privacy\.epsilon is 2\.0, but the run in .* has 8\.0"):
        Checkpoint(tmp_path / "c", {**SETTINGS, "privacy.epsilon": 2.0}).restore(small_plan(), SGD)


@pytest.mark.parametrize("changed", ["noise", "radius"])
def test_another_calculation_is_refused_with_both_values(tmp_path, changed):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c")
    checkpoint = replace(checkpoint, calculated={"the L2 radius": 1.0}, every=1)
    advance(plan, state, checkpoint)
    now = replace(checkpoint, calculated={"the L2 radius": 1.5 if changed == "radius" else 1 + 1e-12})
    if changed == "radius":
        with pytest.raises(RunDirectoryError, match=r"the L2 radius is 1\.5 as .* began with 1\.0"):
            now.restore(plan, SGD)
    else:
        now.restore(plan.with_noise_multiplier(1 + 1e-12), SGD)
        with pytest.raises(
            RunDirectoryError, match=r"epoch 1 .*noise_multiplier=1\.0.*noise_multiplier=1\.5"
        ):
            now.restore(plan.with_noise_multiplier(1.5), SGD)

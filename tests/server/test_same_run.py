from dataclasses import replace

import pytest

from checkpoints import SETTINGS, SGD, advance, begun
from fedmf.errors import RunDirectoryError
from plans import small_plan
from server.checkpoint import Checkpoint


def test_another_configuration_is_refused_by_the_name_of_the_field(tmp_path):
    begun(small_plan(), tmp_path / "c")
    with pytest.raises(
        RunDirectoryError, match=r"privacy\.epsilon is 2\.0, but the run in .* began with 8\.0"
    ):
        Checkpoint(tmp_path / "c", {**SETTINGS, "privacy.epsilon": 2.0}).restore(small_plan(), SGD)


@pytest.mark.parametrize("changed", ["noise", "radius"])
def test_another_calculation_is_refused_with_both_values(tmp_path, changed):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c")
    checkpoint = replace(checkpoint, calculated={"the L2 radius": 1.0}, every=1)
    advance(plan, state, checkpoint)
    now = replace(checkpoint, calculated={"the L2 radius": 1.5 if changed == "radius" else 1 + 1e-12})
    if changed == "radius":
        with pytest.raises(RunDirectoryError, match=r"the L2 radius is 1\.5, .* began with 1\.0"):
            now.restore(plan, SGD)
    else:
        now.restore(plan.with_noise_multiplier(1 + 1e-12), SGD)
        with pytest.raises(
            RunDirectoryError, match=r"epoch 1 .*noise_multiplier=1\.0.*noise_multiplier=1\.5"
        ):
            now.restore(plan.with_noise_multiplier(1.5), SGD)


OLD, NEW = {"fedmf": "0.1.0", "code": "aaaa"}, {"fedmf": "0.2.0", "code": "bbbb"}


@pytest.mark.parametrize("before", [OLD, {}])
def test_other_code_goes_on_only_where_it_is_allowed_and_is_bound_from_then_on(tmp_path, caplog, before):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c")
    checkpoint = replace(checkpoint, code=before, every=1)
    advance(plan, state, checkpoint)
    other = replace(checkpoint, code=NEW)
    with pytest.raises(
        RunDirectoryError, match=r"so far with code (aaaa|unknown) and fedmf .* code bbbb and fedmf 0\.2\.0"
    ):
        other.restore(plan, SGD)
    state, _ = replace(other, allow_version_change=True).restore(plan, SGD)
    assert "It continues nevertheless" in caplog.text
    checkpoint.restore(plan, SGD)  # nothing has changed yet
    other.rebase(state)
    other.restore(plan, SGD)
    with pytest.raises(RunDirectoryError, match="this is code"):
        checkpoint.restore(plan, SGD)

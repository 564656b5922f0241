"""Settings are frozen objects, each default stands once, and nothing outside the package sees what they came from."""

import pickle

import pytest

from experiments.run_files.reader import differences, fixed
from experiments.settings.engine import DeploymentSettings
from experiments.settings.recorded import from_yaml, restored, to_yaml
from experiments.settings.schema import FREE
from experiments.settings.values import plain, value_of
from fedmf.errors import SettingError
from runs import composed


def differing_keys(held, wanted):
    return [key for key, _, _ in differences(held, wanted)]


def test_a_value_is_taken_as_the_type_of_its_field():
    for hint, value, made in [(int, "3", 3), (float, 1, 1.0), (str, 3, "3"), (bool, "yes", True)]:
        found = value_of(hint, value, "key")
        assert (found, type(found)) == (made, type(made))


def test_plain_values_and_back_are_the_same_settings_and_those_of_another_version_are_refused():
    for overrides in ((), ("dataset=synthetic", "model=mlp", "engine=ray"), ("engine=deployment", "seed=3"),
                      ("optimizer=custom", "optimizer.name=a:b", "optimizer.settings={rate: 0.5}")):  # fmt: skip
        settings = composed(*overrides)
        assert restored(from_yaml(to_yaml(settings))) == pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(SettingError, match=r"colour.*another version"):
        restored(plain(composed()) | {"colour": "red"})


def test_no_setting_is_read_by_one_engine_and_ignored_by_another():
    for override, says in {
        "engine.round_timeout=5": "round_timeout",
        "population.min_available=9": "is for deployments",
        "population.max_clients_per_node=9": "is for deployments",
        "population.nodes=nodes.json": "is for deployments",
        "population.unready_nodes=without": "is for deployments",
    }.items():
        for engine in ("local", "ray"):
            with pytest.raises(SettingError, match=says):
                composed(f"engine={engine}", override)
        assert isinstance(composed("engine=deployment", override).engine, DeploymentSettings)
    for engine, override, says in (
        ("deployment", "engine.workers=2", "workers"),
        ("deployment", "output=json", "only logs"),
        ("deployment", "faults.error=1", "faults"),
        ("ray", "faults.error=1", "faults"),
        ("deployment", "engine.node_timeout=-1", "^engine.node_timeout is"),
        ("deployment", "engine.query_timeout=nan", "^engine.query_timeout is"),
    ):
        with pytest.raises(SettingError, match=says):
            composed(f"engine={engine}", override)


def test_what_may_change_when_a_run_goes_on_is_this_and_nothing_else():
    """Speed and output; not how secrets are made, what is recorded, or what is sent."""
    assert set(FREE) == {
        "sweep.", "engine.", "output", "logger", "run.directory", "run.resume", "run.extend", "run.trust_code", "run.accept_copy",
        "run.allow_version_change", "run.log", "run.metrics_port", "population.max_clients_per_node",
        "population.unready_nodes",
    }  # fmt: skip
    first = plain(composed())
    free = composed("engine.workers=3", "run.resume=true", "output=json", "logger=wandb", "run.directory=x")
    assert differing_keys(first, plain(free)) == []
    assert fixed(free) == fixed(composed())
    for override in ("run.reproducible=true", "run.unprotected_metrics=true", "engine=deployment"):
        assert differing_keys(first, plain(composed(override))) == [override.removesuffix("=true")]
    assert differing_keys({"a": 1}, {"a": 1, "b": 2}) == differing_keys({"a": 1, "b": 2}, {"a": 1}) == ["b"]

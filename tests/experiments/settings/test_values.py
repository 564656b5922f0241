"""Settings are frozen objects, each default stands once, and nothing outside the package sees what they came from."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from experiments.run_files.reader import differences, fixed
from experiments.settings.engine import DeploymentSettings
from experiments.settings.factorization import WorkloadName
from experiments.settings.recorded import from_yaml, restored, to_yaml
from experiments.settings.schema import FREE
from experiments.settings.values import defaults, make, plain, value_of
from fedmf.errors import SettingError
from runs import composed


def differing_keys(held, wanted):
    return [key for key, _, _ in differences(held, wanted)]


@dataclass(frozen=True)
class Inner:
    names: tuple[str, ...] | None
    size: int = 3


@dataclass(frozen=True)
class Outer:
    inner: Inner
    own: Mapping[str, object] | None = None


def test_plain_values_become_the_types_of_the_fields():
    assert defaults(Outer) == {"inner": "???", "own": None}
    values = {"inner": {"names": ["a", "b"], "size": 4}, "own": {"x": [1]}}
    assert make(Outer, values) == Outer(Inner(("a", "b"), 4), {"x": [1]})
    for wrong, said in [
        ({"inner": {"names": None}, "own": None}, "inner.size is missing; give it as inner.size=VALUE."),
        ({"inner": 3, "own": None}, "inner is a group of settings; give its keys"),
        ({**values, "more": 1}, "more is no setting"),
        ({**values, "own": 3}, "own is 3; it should be a mapping"),
    ]:
        with pytest.raises(SettingError, match=re.escape(said)):
            make(Outer, wrong)


def test_a_value_is_taken_as_the_type_of_its_field():
    for hint, value, made in [
        (int, "3", 3), (float, 1, 1.0), (str, 3, "3"), (bool, "yes", True), (tuple[float, ...] | None, [1, 2.5], (1.0, 2.5)),
        (float, float("inf"), float("inf")),
    ]:  # fmt: skip
        found = value_of(hint, value, "key")
        assert (found, type(found)) == (made, type(made))


def test_a_value_of_another_type_is_refused_in_a_sentence():
    for hint, value, said in [
        (int, 3.7, "key is 3.7; it should be a valid integer"),
        (float | None, False, "key is false; it takes neither"),
        (str, ["a"], "it should be a valid string"),
        (tuple[str, ...], "f1", "key is 'f1'; it should be a valid array; lists are given as key=[a,b]."),
        (WorkloadName, "all", "key is 'all'; it should be 'run', 'prefix_sum' or 'momentum'."),
    ]:
        with pytest.raises(SettingError, match=re.escape(said)):
            value_of(hint, value, "key")


def test_plain_values_and_back_are_the_same_settings():
    for overrides in ((), ("dataset=synthetic", "model=mlp", "engine=ray"), ("engine=deployment", "seed=3")):
        settings = composed(*overrides)
        assert restored(from_yaml(to_yaml(settings))) == settings


def test_settings_of_another_version_are_refused_with_their_key():
    document = plain(composed()) | {"colour": "red"}
    with pytest.raises(SettingError, match=r"colour.*another version"):
        restored(document)


def test_no_setting_is_read_by_one_engine_and_ignored_by_another():
    for_deployments = (
        "min_available=9",
        "max_clients_per_node=9",
        "nodes=nodes.json",
        "unready_nodes=without",
    )
    refused = {f"population.{override}": "is for deployments" for override in for_deployments}
    for override, says in {"engine.round_timeout=5": "round_timeout", **refused}.items():
        for engine in ("local", "ray"):
            with pytest.raises(SettingError, match=says):
                composed(f"engine={engine}", override)
        composed("engine=deployment", override)
    for override, says in {
        "engine.workers=2": "workers",
        "output=json": "only logs",
        "faults.error=1": "faults",
    }.items():
        with pytest.raises(SettingError, match=says):
            composed("engine=deployment", override)
    with pytest.raises(SettingError, match="faults"):
        composed("engine=ray", "faults.error=1")
    with pytest.raises(SettingError, match="it is chosen as engine=NAME"):
        composed("engine.name=ray")
    assert isinstance(composed("engine=deployment").engine, DeploymentSettings)
    for override in ("engine.node_timeout=-1", "engine.query_timeout=nan", "population.min_available=0"):
        with pytest.raises(SettingError, match=f"^{override.partition('=')[0]} is"):
            composed("engine=deployment", override)


def test_the_same_run_is_one_definition():
    first = composed("seed=1")
    again = composed(
        "seed=1", "engine.workers=3", "run.resume=true", "output=json", "logger=wandb", "run.directory=x"
    )
    assert fixed(first) == fixed(again)
    assert differing_keys(plain(first), plain(again)) == []
    other = composed("seed=2", "engine=deployment")
    assert differing_keys(plain(first), plain(other)) == ["engine=deployment", "seed"]
    assert fixed(first) != fixed(other)


def test_what_may_change_when_a_run_goes_on_is_this_and_nothing_else():
    """Speed and output; not how secrets are made, what is recorded, or what is sent."""
    assert set(FREE) == {
        "sweep.", "engine.", "output", "logger", "run.directory", "run.resume", "run.extend", "run.trust_code", "run.accept_copy",
        "run.allow_version_change", "run.log", "run.metrics_port", "population.max_clients_per_node",
        "population.unready_nodes",
    }  # fmt: skip
    for override in ("run.reproducible=true", "run.unprotected_metrics=true", "compression.value_type=int8"):
        assert differing_keys(plain(composed()), plain(composed(override))) == [override.partition("=")[0]]
    assert differing_keys({"a": 1}, {"a": 1, "b": 2}) == ["b"]
    assert differing_keys({"a": 1, "b": 2}, {"a": 1}) == ["b"]

"""Settings: composed by Hydra, taken as their types, kept as plain values; what they build; what --help and the reference show of them."""

import inspect
import json
import pickle
import re
from dataclasses import fields
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from client.data import DATASETS
from experiments.cli.console import PACKAGE, USAGE
from experiments.cli.help import print_help
from experiments.run_files.reader import differences, fixed
from experiments.session.resume import run_settings
from experiments.settings.compose import choices_of
from experiments.settings.data import MEANS, DatasetSettings, arguments, load_dataset
from experiments.settings.experiment import build
from experiments.settings.groups import DeploymentSettings, build_optimizer, find_family
from experiments.settings.jobs import without_files
from experiments.settings.recorded import from_yaml, restored, to_yaml
from experiments.settings.reference import SETTINGS, experiments, reference
from experiments.settings.schema import FOR_DEPLOYMENTS, FREE, Settings
from experiments.settings.values import at_home, plain
from fedmf.errors import SettingError
from fedmf.mechanisms import of_run
from fedmf.mechanisms.schedules import rates
from runs import composed, model as model_of, page_section, run


@pytest.mark.parametrize("number", range(max(map(len, choices_of(Settings).values()))))
def test_every_choice_composes(number):
    """One of each group at a time; the shorter ones begin again."""
    chosen = {group: [*options][number % len(options)] for group, options in choices_of(Settings).items()}
    named = [f"{group}.name=a:b" for group, option in chosen.items() if option == "custom"]
    found = composed(*(f"{group}={option}" for group, option in chosen.items()), *named)
    for group, option in chosen.items():
        assert getattr(found, group).name == ("a:b" if option == "custom" else option)


def test_defaults_are_those_of_the_documentation_and_every_published_run_has_others():
    config = composed()
    chosen = [config.dataset.name, config.model.name, config.mechanism.name]
    assert chosen == ["digits", "logistic", "optimal"]
    population = config.population
    assert (population.cohort_size, population.epochs, population.rounds_per_epoch) == (64, 8, None)
    assert (config.privacy.epsilon, config.privacy.delta) == (8.0, 5e-5)
    assert config.compression.keep_probability == 0.1
    assert all(composed(f"+experiment={name}") != config for name in experiments())


def test_composing_leaves_hydra_of_the_application_and_later_settings_as_they_were():
    before = composed()
    with initialize_config_dir(str(Path(__file__).parent), version_base="1.3"):
        outer = GlobalHydra.instance().hydra
        assert composed("optimizer=adam", "optimizer.beta2=0.5", "seed=9") != before
        assert GlobalHydra.instance().hydra is outer
    assert composed("optimizer=adam").optimizer.beta2 != 0.5
    assert composed() == before


FILE = """
dataset: by_user_npz  # whose path is given later
model: {name: mlp, hidden: 12}
population.epochs: 3
privacy: {delta: 1e-3}
optimizer: {name: mine:signs, settings: {rate: 1e-2}}
"""


def test_a_run_begins_with_the_settings_of_a_file_and_what_is_given_besides_wins(tmp_path, monkeypatch):
    (tmp_path / "my.yaml").write_text(FILE)
    (tmp_path / "later.yaml").write_text("population: {epochs: 4}")
    monkeypatch.chdir(tmp_path)
    begun = run_settings([*without_files(["--config", "my.yaml"]), "dataset.path=x.npz"])
    assert (begun.model.hidden, begun.population.epochs, begun.privacy.delta) == (12, 3, 1e-3)
    assert (begun.optimizer.name, begun.optimizer.settings) == ("mine:signs", {"rate": 0.01})
    given = without_files(["--config=my.yaml", "--config", "later.yaml", "dataset=digits", "model=cnn"])
    assert run_settings([*given, "optimizer=sgd"]) == composed(
        "model=cnn", "population.epochs=4", "privacy.delta=1e-3"
    )
    for text, said in {
        "sead: 3": r"my\.yaml: sead is no setting of simulate; did you mean seed",
        "model: mlpp": r"my\.yaml: .*Could not find 'model/mlpp'",
        "a: [": r"my\.yaml: while parsing",
        "- seed": r"my\.yaml: contains no mapping",
        "seed: 1\nseed: 2": r"my\.yaml: .*duplicate key seed",
    }.items():
        (tmp_path / "my.yaml").write_text(text)
        with pytest.raises(SettingError, match=said):
            run_settings(["as=my.yaml"])


def test_a_run_begins_as_another_one_did_whose_code_is_imported_where_it_is_typed(tmp_path):
    for name, parts in ("a", "[1,2]"), ("b", "null"):
        (tmp_path / name / "checkpoint").mkdir(parents=True)
        other = composed("model=mlp", "model.hidden=12", "metrics=[mine:recall]", f"run.directory={name}", "output=json",
                         "run.resume=true", f"population.parts={parts}")  # fmt: skip
        (tmp_path / name / "config.yaml").write_text(to_yaml(other))
        with pytest.raises(SettingError, match=r"metrics\[0\] of .*give run\.trust_code=true"):
            run_settings([f"as={tmp_path / name}/config.yaml", "seed=4"])
        begun = run_settings([f"as={tmp_path / name}", "seed=4", "metrics=[mine:recall]"])
        assert begun == composed("model=mlp", "model.hidden=12", "metrics=[mine:recall]", "seed=4")
        kept = run_settings(
            [f"as={tmp_path / name}", "model=mlp", "metrics=[accuracy]", "run.trust_code=true"]
        )
        assert (kept.model.hidden, kept.metrics) == (12, ("accuracy",))


def test_experiments_of_a_folder_of_ones_own_are_found_and_listed(tmp_path, capsys):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 7")
    folder = without_files(["--config-dir", str(tmp_path)])
    assert run_settings([*folder, "+experiment=mine"]) == composed("seed=7")
    with pytest.raises(SettingError, match=r"'experiment': independent_own_best .*mine mnist_cnn"):
        run_settings([*folder, "+experiment=min"])
    print_help("simulate", "Train.", ["--config-dir", str(tmp_path), "--help"])
    assert re.search(r"linf_csgm,\s+mine,\s+mnist_cnn", capsys.readouterr().out)


def test_hydras_own_settings_are_for_its_command_line_alone():
    with pytest.raises(SettingError, match=r"^hydra\.run\.dir is no setting of simulate"):
        composed("hydra.run.dir=elsewhere")


def differing_keys(held, wanted):
    return [key for key, _, _ in differences(held, wanted)]


def test_plain_values_and_back_are_the_same_settings_and_those_of_another_version_are_refused():
    for overrides in ((), ("dataset=synthetic", "model=mlp", "engine=ray"), ("engine=deployment", "seed=3"),
                      ("optimizer=custom", "optimizer.name=a:b", "optimizer.settings={rate: 0.5}")):  # fmt: skip
        settings = composed(*overrides)
        assert restored(from_yaml(to_yaml(settings))) == pickle.loads(pickle.dumps(settings)) == settings
    now = plain(composed())
    assert from_yaml(to_yaml(now | {"dataset": {"name": "by_user_csv", "path": "a.csv", "test": None}}))
    fewer = {key: value for key, value in now.items() if key != "dataset"}
    for other, key in (
        (now | {"colour": "red"}, "colour"),
        (now | {"optimizer": {**now["optimizer"], "colour": "red"}}, r"optimizer\.name"),
        (fewer, "dataset"),
    ):
        with pytest.raises(
            SettingError, match=rf"do not fit this version of fedmf: {key} .*Finish the run with"
        ):
            restored(other)


def test_no_setting_is_read_by_one_engine_and_ignored_by_another():
    of_deployments = (
        "engine.round_timeout=5",
        "population.min_available=9",
        "population.max_clients_per_node=9",
        "population.nodes=nodes.json",
        "population.unready_nodes=without",
    )
    assert isinstance(composed("engine=deployment", *of_deployments).engine, DeploymentSettings)
    for engine, override, says in (
        *(("local", override, "round_timeout|is for deployments") for override in of_deployments),
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


COMMON = {item.name for item in fields(DatasetSettings)}


@pytest.mark.parametrize("name", DATASETS)
def test_the_keys_of_a_data_set_are_the_arguments_of_its_loader_with_their_defaults(name: str) -> None:
    settings = composed(f"dataset={name}")
    given, taken = arguments(settings.dataset), inspect.signature(DATASETS[name].load).parameters
    assert (settings.dataset.name, pickle.loads(pickle.dumps(settings))) == (name, settings)
    own = {key: argument.default for key, argument in taken.items() if key in MEANS and key not in COMMON}
    assert own.items() <= given.items()
    assert set(given) - COMMON <= set(taken)


def test_custom_settings_become_plain_arguments_hide_no_key_and_are_a_mapping() -> None:
    dataset = composed("dataset=custom", "dataset.name=a.b:c", "dataset.settings={size: 3}").dataset
    given = arguments(dataset)
    assert (given["name"], given["size"], given["path"]) == ("a.b:c", 3, None)
    assert set(given) == {*COMMON, "size"}
    for own, said in (({"path": "x"}, "is a setting of the group"), (3, "must be a mapping")):
        with pytest.raises(SettingError, match=said):
            arguments({"name": "mine:load", "path": None, "settings": own})
    with pytest.raises(SettingError, match=r"^dataset\.name is 'nowhere:load', which cannot be imported"):
        load_dataset({"name": "nowhere:load"})


def test_a_tilde_at_the_head_of_a_value_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert composed("dataset=femnist", "dataset.path=~/.tff").dataset.path == "/home/ann/.tff"
    assert at_home(["run.directory=~", "+a.b=~/c"]) == ["run.directory=/home/ann", "+a.b=/home/ann/c"]
    for override in ("~dataset", "a=b~/c", "a='~/b'", "a=[~/b]"):  # left to Hydra
        assert at_home([override]) == [override]


MINE = """
import numpy as np
from server import Optimizer, Sgd

def signs(rate=0.1) -> Optimizer:
    def update(release, state, parameters, progress):
        return parameters + np.float32(rate) * np.sign(release), {}

    return Optimizer(lambda parameters: {}, update, momentum=0.25, schedule="decay")

def leaving() -> Optimizer:
    raise SystemExit(0)

def drawing() -> Optimizer:
    def update(release, state, parameters, progress):
        return parameters + np.random.default_rng().normal(size=len(parameters)).astype("f4"), {}

    return Optimizer(lambda parameters: {}, update)

def unsaid(rate=0.1):
    return signs(rate)

def lying() -> Sgd:
    return 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The name of a module that can be imported, with custom optimizers."""
    (tmp_path / "mine_of_the_optimizer_tests.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    return "mine_of_the_optimizer_tests"


def custom(name, settings="null"):
    return composed("optimizer=custom", f"optimizer.name={name}", f"optimizer.settings={settings}")


@pytest.mark.parametrize(
    ("attribute", "settings", "said"),
    [
        ("unsaid", "null", "promises no Optimizer, so that it was not called"),
        ("signs", "{rat: 0.5}", r"rat is 0.5, but .*:signs does not use it; it takes rate"),
        ("signs", "{*rat: 0.5}", r"^optimizer\.settings\.\*rat is 0.5, but .*:signs does not use it"),
        ("leaving", "null", "which cannot be made: SystemExit: 0"),
        ("lying", "null", "which returned an object of type int, not an Optimizer"),
    ],
)
def test_what_is_no_optimizer_is_refused(mine, attribute, settings, said):
    with pytest.raises(SettingError, match=said):
        build_optimizer(custom(f"{mine}:{attribute}", settings).optimizer)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("optimizer=custom optimizer.name={mine}:drawing", "as a resumed run does.*must be a pure function"),
        ("optimizer=adam optimizer.precondition=true population.epochs=1",
         r"precondition is true, but population\.epochs is 1"),
        ("optimizer=adam optimizer.precondition=true clipping.adapt=0.5", "both scale the clients' updates"),
        ("dataset=synthetic dataset.clients=1000000000 population.cohort_size=100",
         "10,000,000 cohorts of 100: .*set rounds_per_epoch, at most 1,000,000"),
    ],
)  # fmt: skip
def test_what_no_run_could_do_is_refused_before_the_run(mine, given, said):
    with pytest.raises(SettingError, match=said):
        build(composed(*given.format(mine=mine).split()))


def test_the_noise_is_fitted_to_the_momentum_and_schedule_that_an_optimizer_says(mine):
    size = ["population.cohort_size=100", "population.rounds_per_epoch=4", "population.epochs=2"]
    for beta, shares, chosen in [
        (0.25, rates("decay", 8), ["optimizer=custom", f"optimizer.name={mine}:signs"]),
        (0.9, rates("cooldown", 8), ["optimizer=adam", "optimizer.schedule=cooldown"]),
        (0.9, None, ["optimizer.nesterov=true", "optimizer.weight_decay=0.1"]),
    ]:
        assert build(composed(*size, *chosen)).plan.factorization.workloads == of_run(4, 2, beta, shares)


def test_the_example_of_the_documentation_is_an_optimizer_that_a_run_takes(tmp_path, monkeypatch):
    text = page_section("extend.md", "Server optimizers")
    (code,) = re.findall(r"```python\n# mine\.py\n(.*?)```", text, re.DOTALL)
    (tmp_path / "mine_of_the_documentation.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    experiment = build(custom("mine_of_the_documentation:signs", "{rate: 0.02}"))
    assert experiment.optimizer.momentum == experiment.plan.factorization.workloads[0].momentum == 0.9


MINE_FAMILY = """
from fedmf.mechanisms import noising_family

FAMILY = noising_family("mine", lambda workload: [[float(i == j) for j in range(workload.rounds)] for i in range(workload.rounds)])
MATRIX = [[1.0]]
"""


@pytest.mark.long
def test_a_mechanism_of_ones_own_is_a_family_and_runs_bit_for_bit_as_the_built_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C^-1 = I: to the last bit the run of `independent`."""
    (tmp_path / "mine_of_the_mechanism_tests.py").write_text(MINE_FAMILY)
    monkeypatch.syspath_prepend(tmp_path)
    for attribute, message in (
        ("NOTHING", "cannot be imported"),
        ("MATRIX", "is of type list; it must be a"),
    ):
        with pytest.raises(SettingError, match=message):
            find_family(f"mine_of_the_mechanism_tests:{attribute}")
    settings = ["population.cohort_size=6", "population.rounds_per_epoch=3", "population.epochs=1"]
    settings.append("run.reproducible=true")
    named = ["mechanism=custom", "mechanism.name=mine_of_the_mechanism_tests:FAMILY"]
    own = run(tmp_path / "own", *settings, *named)
    built_in = run(tmp_path / "built_in", *settings, "mechanism=independent")
    assert json.loads((own / "privacy.json").read_text())["mechanism"] == "mine"
    np.testing.assert_array_equal(model_of(own), model_of(built_in))


def test_every_command_has_its_settings_and_is_listed():
    """A command is a package with a __main__.py, or a module that says what to do when it is `__main__`."""
    modules = {file.stem for file in PACKAGE.glob("*.py") if 'if __name__ == "__main__":' in file.read_text()}
    packages = {file.parent.name for file in PACKAGE.glob("*/__main__.py")}
    commands = {*SETTINGS, "data"}  # which takes two paths, and no settings
    assert commands == modules | packages - {"benchmark", "reproduce"}  # of a checkout alone
    assert commands == set(re.findall(r"(?m)^  (\w+)  ", USAGE))
    rows = [
        line for line in (PACKAGE.parent / "README.md").read_text().splitlines() if line.startswith("| `")
    ]
    assert {name for row in rows for name in re.findall(r"`([a-z_]+)", row.split(" | ")[0])} == commands


OFFERED = [
    item for item in reference("simulate").settings if item.choices and not item.type.startswith("tuple")
]


@pytest.mark.parametrize("item", OFFERED, ids=lambda item: item.key)
def test_a_value_offered_is_taken(item):
    choice = [f"{item.group}={item.of[0]}"] if item.of else []
    if item.key.removeprefix("population.") in FOR_DEPLOYMENTS:
        choice.append("engine=deployment")
    *_, value = item.choices
    assert reduce(getattr, item.key.split("."), composed(*choice, f"{item.key}={value}")) == value


INTERNAL = re.compile(r"_target_|omegaconf|_self_|\?\?\?|dataclass|experiments\.settings", re.IGNORECASE)


@pytest.mark.parametrize("name", SETTINGS)
def test_help_shows_every_key_with_default_and_meaning_in_100_columns_and_a_topic_all_choices(name, capsys):
    def shown(*topics):
        print_help(
            name, "Do it: `python -m experiments.plan`.\n\n    fedmf plan epsilon=1", ["--help", *topics]
        )
        return capsys.readouterr().out

    def words(text):  # columns tear them apart
        return {*text.replace(":", "").split()}

    known, text = reference(name), shown()
    assert not INTERNAL.search(text), INTERNAL.search(text)
    assert max(map(len, text.splitlines())) <= 100
    for item in known.settings:
        if not item.group or item.is_of(known.groups[item.group].default):
            assert words(item.meaning) <= words(text), item
            assert item.key in "".join(text.split())
    for group, about in known.groups.items():
        assert words(about.about) <= words(text)
        topic = "".join(shown(f"{group}=any").split())  # what is given is no matter
        own = [item for item in known.settings if item.group == group]
        assert all(choice in topic for item in own for choice in (item.key, *item.choices, *item.of))

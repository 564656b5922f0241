"""An epoch of very many rounds is announced before its noise is designed, and refused where nobody asked for it."""

import pytest

from experiments import mechanisms
from experiments.mechanisms import MechanismsSettings
from experiments.session import session as simulation
from experiments.settings import experiment, factorization
from experiments.settings.compose import compose
from experiments.settings.experiment import build
from fedmf.errors import SettingError
from runs import composed, typed

MANY = ("dataset=synthetic", "dataset.clients=1000000000", "population.cohort_size=100")
FEW = ("dataset=synthetic", "dataset.clients=60", "population.cohort_size=2", "mechanism=independent")
SAID = "an epoch has 30 rounds, whose noise is designed now"


def test_ten_million_rounds_that_nobody_asked_for_are_refused_with_the_key():
    with pytest.raises(
        SettingError,
        match=r"population.rounds_per_epoch is null, and 1,000,000,000 clients are 10,000,000 cohorts of 100: .*"
        r"set rounds_per_epoch, at most 1,000,000",
    ):
        build(composed(*MANY))


def test_a_long_epoch_is_said_with_its_rounds_and_the_key_before_it_is_designed(monkeypatch, capsys):
    def design(*given, **settings):
        assert SAID in capsys.readouterr().err
        raise KeyboardInterrupt

    monkeypatch.setattr(factorization, "LONG_EPOCH", 29)
    monkeypatch.setattr(experiment, "factorize", design)
    for named in ((), ("population.rounds_per_epoch=30",)):
        with pytest.raises(KeyboardInterrupt):
            build(composed(*FEW, *named))


def test_an_epoch_of_usual_length_is_not_announced_and_a_named_one_never_refused(monkeypatch, capsys):
    monkeypatch.setattr(factorization, "LONG_EPOCH", 30)
    build(composed(*FEW))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(factorization, "LONG_EPOCH", 10)
    monkeypatch.setattr(experiment, "LONGEST_EPOCH", 20)
    build(composed(*FEW, "population.rounds_per_epoch=30"))
    assert SAID in capsys.readouterr().err
    with pytest.raises(SettingError, match="30 cohorts of 2"):
        build(composed(*FEW))


def test_the_comparison_of_mechanisms_announces_a_long_epoch_too(monkeypatch, capsys):
    def design(*given):
        assert SAID in capsys.readouterr().err
        raise KeyboardInterrupt

    monkeypatch.setattr(factorization, "LONG_EPOCH", 29)
    monkeypatch.setattr(mechanisms, "designs", design)
    for rounds, raised in ((30, KeyboardInterrupt), (29, AssertionError)):
        with pytest.raises(raised):
            mechanisms.mechanisms(compose("mechanisms", [f"rounds={rounds}"], MechanismsSettings))


def test_an_interrupt_before_the_run_began_names_no_way_to_go_on_and_leaves_nothing(
    tmp_path, monkeypatch, capsys
):
    def interrupt(settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "build", interrupt)
    for named in ((), (f"run.directory={tmp_path / 'named'}",)):
        with pytest.raises(KeyboardInterrupt):
            typed(*FEW, *named, cwd=tmp_path)
        said = capsys.readouterr().err
        assert "interrupted before the run began" in said
        assert "run.resume" not in said
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert list((tmp_path / "runs").glob("*")) == []

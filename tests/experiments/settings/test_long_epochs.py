"""An epoch of very many rounds is refused unless it was asked for; a run that is interrupted before it begins leaves nothing."""

import pytest

from experiments.session import session as simulation
from experiments.settings.experiment import build
from fedmf.errors import SettingError
from runs import composed, typed


def test_ten_million_rounds_that_were_not_asked_for_are_refused_with_the_key():
    with pytest.raises(
        SettingError, match=r"10,000,000 cohorts of 100: .*set rounds_per_epoch, at most 1,000,000"
    ):
        build(composed("dataset=synthetic", "dataset.clients=1000000000", "population.cohort_size=100"))


def test_an_interrupt_before_the_run_began_names_no_way_to_go_on_and_leaves_nothing(
    tmp_path, monkeypatch, capsys
):
    def interrupt(settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "build", interrupt)
    for named in ((), (f"run.directory={tmp_path / 'named'}",)):
        with pytest.raises(KeyboardInterrupt):
            typed("mechanism=independent", *named, cwd=tmp_path)
        said = capsys.readouterr().err
        assert "interrupted before the run began" in said
        assert "run.resume" not in said
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert list((tmp_path / "runs").glob("*")) == []

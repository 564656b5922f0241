"""`plan` of L_inf-CSGM: its own epsilon, the noise in units of the clip norm, and the run's own figures."""

import json

import pytest

import runs
from experiments.plan.__main__ import main
from fedmf.accounting import linf_event, privacy_spent

pytestmark = pytest.mark.long

FIGURES = (
    "dimension=1000000", "cohort_size=100", "epochs=16", "rounds_per_epoch=34",
    "keep_probability=0.01", "linf_over_l2=0.006", "mechanism=independent",
)  # fmt: skip
LINF = "geometry=linf"


@pytest.fixture
def planned(capsys):
    def ask(*overrides, form="json"):
        with pytest.raises(SystemExit) as caught:
            main([*overrides, f"output={form}"])
        assert caught.value.code == 0
        text = capsys.readouterr().out
        return json.loads(text) if form == "json" else text

    return ask


def test_epsilon_is_that_of_all_padded_coordinates(planned):
    found = planned(*FIGURES, LINF, "noise_multiplier=0.05")
    event = linf_event(noise_over_linf=0.05 * 1024, keep_probability=0.01, coordinates=1 << 20)
    assert found["epsilon"] == pytest.approx(
        privacy_spent(event, 16, delta=1e-5, precision=found["floating_point"]["a"]).epsilon, rel=1e-12
    )
    assert (found["geometry"], found["linf_over_l2"]) == ("linf", 1 / 1024)
    assert found["counted_over_l2"] == pytest.approx(0.006 * 1024)


def test_noise_is_in_units_of_the_clip_norm(planned):
    """The bound of a coordinate is .006 clip norms: sigma = z sqrt(D) .006, over gamma n = 1."""
    found = planned(*FIGURES, LINF, "noise_multiplier=0.05")
    assert found["mean_noise_std"] == pytest.approx(0.05 * 1024 * 0.006)
    assert found["model_noise_std"] == pytest.approx(found["mean_noise_std"] * found["rms_error"])
    last = found["last_error"] * found["mean_noise_std"]
    plain = planned(*FIGURES, "noise_multiplier=0.05")
    assert found["noise_over_signal"] / plain["noise_over_signal"] == pytest.approx(0.006 * 1024)
    assert last == pytest.approx(plain["last_error"] * plain["mean_noise_std"] * 0.006 * 1024)
    assert (plain["geometry"], plain["counted_over_l2"]) == ("l2", 1)


def test_the_text_says_what_is_counted(planned):
    text = planned(*FIGURES, LINF, "epsilon=3", form="text")
    assert "from the L-infinity bound alone: all 1048576 coordinates may be at it" in text
    assert "6.144 times the clip norm" in text
    assert "L-infinity bound alone" not in planned(*FIGURES, "epsilon=3", form="text")


def test_the_plan_is_that_of_the_run_and_its_summary_gives_its_epsilon(planned, capsys, tmp_path):
    tiny = ("+experiment=linf_csgm", "population.cohort_size=8", "population.rounds_per_epoch=2",
            "population.epochs=1", "privacy.epsilon=3", "clipping.l2_norm=0.5")  # fmt: skip
    found = planned(*tiny)
    figures = runs.summary(runs.run(tmp_path / "r", *tiny))
    capsys.readouterr()
    for key in ("epsilon", "noise_multiplier", "linf_over_l2"):
        assert found[key] == figures[key], key
    # In units of the clip norm, 0.5.
    assert found["mean_noise_std"] == pytest.approx(figures["sigma"] / 0.5 / (0.1 * 8))
    again = planned("epochs=1", "keep_probability=0.1", "delta=5e-5",
                    f"linf_over_l2={figures['linf_over_l2']}", f"noise_multiplier={figures['noise_multiplier']}")  # fmt: skip
    assert again["floating_point"] is None  # without the dimension nobody can say what rounding adds
    assert again["epsilon"] == pytest.approx(figures["epsilon"], rel=1e-7)


def test_without_a_dimension_its_coordinates_cannot_be_counted(capsys):
    with pytest.raises(SystemExit) as caught:
        main([LINF, "epsilon=2"])
    assert caught.value.code == 2
    assert "counts every coordinate of a client's vector" in capsys.readouterr().err

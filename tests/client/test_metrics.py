"""Metrics against other people's code and numbers worked out by hand; a user's own lose nothing but themselves."""

import math
import sys
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn

from client import Metric
from client.data import IGNORED_TARGET, Examples
from client.metric_names import check_metrics, check_optimized
from client.metrics import find_metrics
from client.scoring import refuse_failures, score
from fedmf.errors import SettingError

CLASSES = 9


class Echo(nn.Module):
    """Returns its input as logits."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def draw(shape=(40,), seed=0):
    """Return random logits [*shape, CLASSES] and targets of a few classes only."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(*shape, CLASSES)).astype("f4"), rng.integers(0, 6, shape)


def scored(entries, x, y, **options):
    """Return the score by the metrics `entries`."""
    return score(Echo(), Examples(x, y), metrics=find_metrics(entries, classes=CLASSES), **options)


@pytest.fixture
def own(monkeypatch):
    """Return a function that makes a metric of one's own importable as own:NAME."""
    module = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "own", module)

    def add(name, metric):
        setattr(module, name, metric)
        return f"own:{name}"

    return add


@pytest.mark.parametrize("batch_size", [1, 7, 256])
@pytest.mark.parametrize("seed", range(3))
def test_f1_is_the_macro_average_of_scikit_learn(batch_size, seed):
    x, y = draw(seed=seed)
    expected = f1_score(y, x.argmax(-1), average="macro")
    occurring = set(y) | set(x.argmax(-1))
    assert set(y) < occurring  # some class is said that is never right, which counts as 0
    assert scored(["f1"], x, y, batch_size=batch_size).metrics["f1"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("batch_size", [1, 7, 256])
def test_top5_is_the_share_of_targets_with_fewer_than_five_larger_outputs(batch_size):
    x, y = draw()
    larger = (x > x[np.arange(len(y)), y][:, None]).sum(-1)
    assert 0 < (larger < 5).mean() < 1
    assert scored(["top5"], x, y, batch_size=batch_size).metrics["top5"] == (larger < 5).mean()


def test_f1_and_top5_count_the_targets_that_the_accuracy_counts():
    x, y = draw((8, 5))
    y[:, -1] = IGNORED_TARGET
    counted = (y != IGNORED_TARGET) & (y != 2)
    flat, targets = x[counted], y[counted]
    got = scored(["f1", "top5"], x, y, uncounted=(2,), batch_size=3)
    assert got.metrics["f1"] == pytest.approx(f1_score(targets, flat.argmax(-1), average="macro"), rel=1e-12)
    assert got.metrics["top5"] == scored(["top5"], flat, targets).metrics["top5"]
    assert got.counted == len(targets)


def test_perplexity_is_of_the_cross_entropy_over_all_but_padding_whatever_the_loss_is():
    x, y = draw((8, 5))
    y[:, -1] = IGNORED_TARGET
    real = y != IGNORED_TARGET
    likelihoods = torch.log_softmax(torch.from_numpy(x[real]).double(), -1)[range(real.sum()), y[real]]
    got = scored(
        ["perplexity"],
        x,
        y,
        uncounted=(2,),
        batch_size=3,
        loss=lambda outputs, targets: torch.tensor(7.0),
    )
    assert got.loss == pytest.approx(7)
    assert got.metrics["perplexity"] == pytest.approx(math.exp(-likelihoods.mean()), rel=1e-6)


def test_a_perplexity_beyond_all_floats_is_infinite():
    x = np.array([[1e4, *[0.0] * (CLASSES - 1)]], "f4")
    assert scored(["perplexity"], x, np.array([1])).metrics["perplexity"] == math.inf


def test_nothing_to_count_is_not_a_number(own):
    def of_all(outputs, targets) -> float:
        return float(len(targets))

    entries = ["top5", "f1", "perplexity", own("of_all", of_all)]
    got = scored(entries, draw((2, 3))[0], np.full((2, 3), IGNORED_TARGET))
    assert all(math.isnan(got.metrics[name]) for name in ("top5", "f1", "perplexity"))
    assert got.metrics["of_all"] == 0
    assert not got.failures


def test_top5_of_five_classes_is_refused():
    with pytest.raises(SettingError, match="top5, which is 1 for any model of 5 classes"):
        find_metrics(["top5"], classes=5)
    assert [metric.name for metric in find_metrics(["top5"], classes=6)] == ["top5"]


def test_a_function_of_ones_own_is_given_the_counted_outputs_of_the_whole_split_once(own):
    calls = []

    def keep(outputs, targets) -> float:
        calls.append((outputs, targets))
        return 0.25

    x, y = draw((8, 5))
    y[:, -1] = IGNORED_TARGET
    counted = (y != IGNORED_TARGET) & (y != 2)
    got = scored([own("keep", keep)], x, y, uncounted=(2,), batch_size=3)
    ((outputs, targets),) = calls
    assert got.metrics == {"keep": 0.25}
    assert (outputs.dtype, outputs.device.type) == (torch.float32, "cpu")
    np.testing.assert_array_equal(outputs.numpy(), x[counted])
    np.testing.assert_array_equal(targets.numpy(), y[counted])


def test_a_class_of_ones_own_is_given_batches_and_starts_anew_in_every_evaluation(own):
    class Batches(Metric):
        def __init__(self):
            self.seen = []

        def add(self, outputs, targets):
            self.seen.append(len(targets))

        def value(self):
            return float(self.seen == [16, 16, 8])

    metrics = find_metrics([own("Batches", Batches)], classes=CLASSES)
    for _ in range(2):
        assert score(Echo(), Examples(*draw()), metrics=metrics, batch_size=16).metrics == {"Batches": 1.0}


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (
            ["f2"],
            "'f2', which is no metric; it may hold accuracy, loss, top5, f1, perplexity and MODULE:FUNCTION",
        ),
        (["f1", "accuracy", "f1"], "f1 twice"),
        (["a:recall", "b:recall"], "recall twice"),
        (["a:f1"], "'a:f1', but f1 is recorded already"),
        (["a:epsilon"], "epsilon is recorded already and means something else"),
        (["a:"], "'a:', which names no function"),
        (["a:no name"], "'a:no name', which names no function"),
    ],
)
def test_a_metric_that_is_unknown_or_whose_name_is_not_clear_is_refused(entries, says):
    with pytest.raises(SettingError) as error:
        check_metrics(entries)
    assert says in str(error.value)


def test_what_does_not_say_that_it_gives_a_float_is_refused_and_not_called(own):
    def silent(outputs, targets):
        raise AssertionError("called")

    for path in (own("silent", silent), "os:system", own("Other", dict)):
        with pytest.raises(
            SettingError, match="does not say that it gives a float, so that it was not called"
        ):
            find_metrics([path], classes=CLASSES)
    with pytest.raises(SettingError, match="metrics is 'own:nothing', which cannot be imported"):
        find_metrics(["own:nothing"], classes=CLASSES)


def test_accuracy_and_loss_in_the_list_change_nothing():
    assert find_metrics(["accuracy", "loss"], classes=CLASSES) == ()


def test_what_is_optimized_must_be_recorded():
    check_optimized(None, [])
    for name in ("accuracy", "loss", "f1", "recall"):
        check_optimized(name, ["f1", "a:recall"])
    with pytest.raises(SettingError, match=r"it records accuracy, loss, f1\. Add top5 to metrics first"):
        check_optimized("top5", ["f1"])
    with pytest.raises(
        SettingError, match=r"'epsilon', which this run does not record; it records accuracy, loss\.$"
    ):
        check_optimized("epsilon", [])


def give(value):
    """Return a metric that gives `value`, or raises it."""

    def metric(outputs, targets) -> float:
        if isinstance(value, BaseException):
            raise value
        return value

    return metric


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (KeyError("no\nsuch"), "KeyError: 'no\\\\nsuch'"),
        (SystemExit("gone"), "SystemExit: gone"),
        (None, "it gave a NoneType, which is no number"),
        ("0.5", "it gave a str, which is no number"),
        (True, "it gave a bool"),
        (torch.ones(2), "it gave a Tensor, which is no number"),
        (torch.ones(0), "it gave a Tensor, which is no number"),
        (torch.ones(1, dtype=torch.bool), "it gave a bool, which is no number"),
        (torch.ones(1, dtype=torch.complex64), "it gave a complex, which is no number"),
        (math.inf, "it gave inf; a value that is not defined is nan"),
    ],
)
def test_a_metric_that_fails_loses_nothing_but_itself(own, value, says):
    x, y = draw()
    entries = [own("bad", give(value)), "f1", own("good", give(0.5))]
    got, usual = scored(entries, x, y), scored(["f1"], x, y)
    assert (got.accuracy, got.loss, got.metrics["f1"]) == (usual.accuracy, usual.loss, usual.metrics["f1"])
    assert got.metrics["good"] == 0.5
    assert math.isnan(got.metrics["bad"])
    assert set(got.failures) == {"bad"}
    metrics = find_metrics(entries, classes=CLASSES)
    with pytest.raises(SettingError, match=f"metrics holds own:bad, which cannot score it: .*{says}"):
        refuse_failures(got, metrics, "it")


@pytest.mark.parametrize(
    "value",
    [np.float32(0.5), torch.tensor(0.5), torch.tensor([[0.5]]), np.array([0.5]), Decimal("0.5"), 0.5],
)
def test_a_number_is_a_number_in_any_of_its_usual_types(own, value):
    assert scored([own("half", give(value))], *draw()).metrics == {"half": 0.5}


def test_a_value_that_is_not_defined_is_no_failure(own):
    got = scored([own("undefined", give(math.nan))], *draw())
    assert math.isnan(got.metrics["undefined"])
    assert not got.failures


def test_a_class_that_fails_at_any_step_is_left_alone_after_it(own):
    class Fails(Metric):
        calls = 0

        def __init__(self, at="add"):
            self.at = at
            if at == "start":
                raise ValueError("at start")

        def add(self, outputs, targets):
            type(self).calls += 1
            if self.at == "add":
                raise ValueError("at add")

        def value(self):
            raise AssertionError("asked although it failed")

    class FailsAtStart(Fails):
        def __init__(self):
            super().__init__("start")

    got = scored([own("Fails", Fails), own("FailsAtStart", FailsAtStart)], *draw(), batch_size=8)
    assert got.failures == {"Fails": "ValueError: at add", "FailsAtStart": "ValueError: at start"}
    assert Fails.calls == 1


def test_a_metric_whose_error_cannot_say_what_it_is_loses_itself_only(own):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("nothing to say")

    def mute(outputs, targets) -> float:
        raise Mute

    got = scored([own("mute", mute), own("half", give(0.5))], *draw())
    assert got.failures == {"mute": "Mute"}
    assert got.metrics["half"] == 0.5


def test_a_metric_that_writes_into_its_inputs_spoils_no_other(own):
    class Zeroes(Metric):
        def add(self, outputs, targets):
            outputs.zero_()
            targets.zero_()

        def value(self):
            return 0.0

    def zero(outputs, targets) -> float:
        outputs.zero_()
        targets.zero_()
        return 0.0

    def total(outputs, targets) -> float:
        return float(outputs.double().sum()) + float(targets.sum())

    x, y = draw()
    kept = x.copy(), y.copy()
    entries = [own("Zeroes", Zeroes), own("zero", zero), own("total", total), "f1"]
    got = scored(entries, x, y, batch_size=16)
    assert got.metrics["total"] == pytest.approx(kept[0].sum(dtype="f8") + kept[1].sum())
    assert got.metrics["f1"] == scored(["f1"], *kept).metrics["f1"]
    assert got.accuracy == scored([], *kept).accuracy


def test_a_metric_that_draws_leaves_the_generator_of_the_training_alone(own):
    def draws(outputs, targets) -> float:
        torch.manual_seed(5)
        return float(torch.rand(()))

    torch.manual_seed(1)
    before = torch.get_rng_state()
    scored([own("draws", draws)], *draw())
    assert torch.equal(torch.get_rng_state(), before)

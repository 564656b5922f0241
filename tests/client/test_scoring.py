"""Losses, scores and metrics against other people's code and numbers worked out by hand; a custom metric loses nothing but itself."""

import math
import sys
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch import nn

import users_own
from client import Metric
from client.data import IGNORED_TARGET, Examples
from client.metrics import check_metrics, check_optimized, find_metrics
from client.scoring import check_scored, counted, find_loss, score
from fedmf.errors import SettingError

OUTPUTS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([2, 0, 1, 1, 0])
ELEMENTWISE = {
    "mse": nn.functional.mse_loss,
    "bce_with_logits": nn.functional.binary_cross_entropy_with_logits,
}
LOGITS = np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.5, 0.25, 0.25]], dtype=np.float32))
CLASSES = 9


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_losses_by_element_compare_one_hot_rows_or_one_output_an_example_and_never_broadcast(name):
    loss, torchs = find_loss(name, "classification"), ELEMENTWISE[name]
    torch.testing.assert_close(loss(OUTPUTS, LABELS), torchs(OUTPUTS, torch.eye(3)[LABELS]))
    whole = torch.rand(5, 3)
    torch.testing.assert_close(loss(OUTPUTS, whole), torchs(OUTPUTS, whole))
    for targets in (torch.rand(5), torch.tensor([0, 1, 1, 0, 1])):
        torch.testing.assert_close(loss(OUTPUTS[:, :1], targets), torchs(OUTPUTS[:, 0], targets.float()))
    for targets in (torch.zeros(5), torch.zeros(3), torch.zeros(5, 2, dtype=torch.int64)):
        with pytest.raises(SettingError, match=rf"loss is '{name}'.*\[5, 3\].*must be of one shape"):
            loss(OUTPUTS, targets)


@pytest.mark.parametrize("name", ["cross_entropy", *ELEMENTWISE])
def test_ignored_targets_count_for_nothing_and_numbers_are_numbers(name):
    targets, kept, loss = LABELS.clone(), [0, 2, 4], find_loss(name, "classification")
    targets[[1, 3]] = IGNORED_TARGET
    torch.testing.assert_close(loss(OUTPUTS, targets), loss(OUTPUTS[kept], LABELS[kept]))
    assert counted(targets) == 3
    assert counted(torch.full((4, 1), float(IGNORED_TARGET))) == 4
    if name == "mse":
        assert float(loss(torch.zeros(4, 1), torch.full((4, 1), float(IGNORED_TARGET)))) == IGNORED_TARGET**2
    if name == "cross_entropy":  # the same expression for both tasks
        assert torch.equal(loss(OUTPUTS, LABELS), loss(OUTPUTS[None], LABELS[None]))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hinge", "cross_entropy, mse, bce_with_logits"),
        ("users_own:unannotated", "annotate the function with `-> Tensor`"),
        ("users_own:of_one", "cannot be called with outputs and targets"),
        ("users_own:missing", "cannot be imported"),
        ("os:system", "was not called"),
    ],
)
def test_what_is_no_loss_is_an_error(name, said):
    assert find_loss("users_own:hinge", "classification") is users_own.hinge
    with pytest.raises(SettingError, match=f"^loss is '{name}'.*{said}"):
        find_loss(name, "classification")


class Echo(nn.Module):
    """Returns its input as logits."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.scale


def test_padding_counts_for_nothing_and_uncounted_tokens_for_the_loss_only():
    x, y = np.stack([LOGITS, LOGITS]), np.array([[0, 1, IGNORED_TARGET], [1, 0, 0]])
    got = score(Echo(), Examples(x, y), uncounted=(0,))
    assert (got.accuracy, got.counted) == (1 / 2, 2)
    assert got.loss == pytest.approx(-sum(map(math.log, [0.7, 0.8, 0.2, 0.1, 0.5])) / 5, rel=1e-6)


@pytest.mark.parametrize("name", [*ELEMENTWISE, "users_own:hinge"])
def test_the_score_is_the_loss_that_is_trained_whatever_the_batches(name):
    model = nn.Linear(4, 3)
    x, y = np.random.default_rng(0).random((7, 4)).astype("f4"), np.arange(7) % 3
    whole = find_loss(name, "classification")(model(torch.from_numpy(x)), torch.from_numpy(y)).item()
    for batch_size in (1, 2, 7):
        found = score(model, Examples(x, y), loss=find_loss(name, "classification"), batch_size=batch_size)
        assert found.loss == pytest.approx(whole, rel=1e-6)


def draw(shape=(40,), seed=0):
    """Random logits [*shape, CLASSES] and targets of a few classes only."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(*shape, CLASSES)).astype("f4"), rng.integers(0, 6, shape)


def scored(entries, x, y, **options):
    return score(Echo(), Examples(x, y), metrics=find_metrics(entries, classes=CLASSES), **options)


@pytest.fixture
def own(monkeypatch):
    """A function that makes a custom metric importable as own:NAME."""
    module = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "own", module)

    def add(name, metric):
        setattr(module, name, metric)
        return f"own:{name}"

    return add


@pytest.mark.parametrize("batch_size", [1, 3, 256])
def test_metrics_are_those_of_others_on_the_targets_that_they_are_given(own, batch_size):
    """F1 as scikit-learn's macro average, top5 by its meaning; on the targets that the accuracy counts.

    Perplexity takes all but padding, whatever the loss is; a function the whole split once.
    """
    calls = []

    def keep(outputs, targets) -> float:
        calls.append((outputs, targets))
        return 0.25

    x, y = draw((8, 5))
    y[:, -1] = IGNORED_TARGET
    real, chosen = y != IGNORED_TARGET, (y != IGNORED_TARGET) & (y != 2)
    entries = ["f1", "top5", "perplexity", own("keep", keep)]
    given = {"uncounted": (2,), "batch_size": batch_size, "loss": lambda outputs, targets: torch.tensor(7.0)}
    got = scored(entries, x, y, **given)
    flat, targets = x[chosen], y[chosen]
    assert {*flat.argmax(-1)} - {*targets}  # some class is predicted that is never right, which counts as 0
    larger = (flat > flat[np.arange(len(targets)), targets][:, None]).sum(-1)
    assert got.metrics["f1"] == pytest.approx(f1_score(targets, flat.argmax(-1), average="macro"), rel=1e-12)
    assert 0 < got.metrics["top5"] == (larger < 5).mean() < 1
    assert (got.counted, got.loss) == (len(targets), pytest.approx(7))
    likelihoods = torch.log_softmax(torch.from_numpy(x[real]).double(), -1)[range(real.sum()), y[real]]
    assert got.metrics["perplexity"] == pytest.approx(math.exp(-likelihoods.mean()), rel=1e-6)
    ((outputs, labels),) = calls
    assert got.metrics["keep"] == 0.25
    assert (outputs.dtype, outputs.device.type) == (torch.float32, "cpu")
    np.testing.assert_array_equal(outputs.numpy(), flat)
    np.testing.assert_array_equal(labels.numpy(), targets)


def test_nothing_to_count_is_not_a_number_and_a_perplexity_beyond_all_floats_is_infinite(own):
    def of_all(outputs, targets) -> float:
        return float(len(targets))

    entries = ["top5", "f1", "perplexity", own("of_all", of_all)]
    got = scored(entries, draw((2, 3))[0], np.full((2, 3), IGNORED_TARGET))
    assert math.isnan(got.accuracy)
    assert math.isnan(got.loss)
    assert all(math.isnan(got.metrics[name]) for name in ("top5", "f1", "perplexity"))
    assert got.metrics["of_all"] == 0
    assert not got.failures
    x = np.array([[1e4, *[0.0] * (CLASSES - 1)]], "f4")
    assert scored(["perplexity"], x, np.array([1])).metrics["perplexity"] == math.inf


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (
            ["f2"],
            "'f2', which is no metric; it may hold accuracy, loss, top5, f1, perplexity, r2, mse, mae, label_accuracy, exact_match and MODULE:",
        ),
        (["f1", "accuracy", "f1"], "f1 twice"),
        (["a:recall", "b:recall"], "recall twice"),
        (["a:f1"], "'a:f1', but f1 is recorded already"),
        (["a:epsilon"], "epsilon is recorded already and means something else"),
        (["a:no name"], "'a:no name', which is no metric"),
    ],
)
def test_a_metric_that_is_unknown_or_whose_name_is_not_clear_is_an_error(entries, says):
    with pytest.raises(SettingError) as error:
        check_metrics(entries)
    assert says in str(error.value)


def test_what_does_not_state_that_it_gives_a_float_is_an_error_and_not_called(own):
    def silent(outputs, targets):
        raise AssertionError("called")

    for path, classes, said in (
        *((path, 9, "does not say that it gives a float, so that it was not")
          for path in (own("silent", silent), "os:system", own("Other", dict))),
        ("own:nothing", 9, "metrics is 'own:nothing', which cannot be imported"),
        ("top5", 5, "top5, which is 1 for any model of 5 classes"),
    ):  # fmt: skip
        with pytest.raises(SettingError, match=said):
            find_metrics([path], classes=classes)
    assert [*find_metrics(["accuracy", "top5", "loss"], classes=6)] == ["top5"]


def test_what_is_optimized_must_be_recorded():
    check_optimized(None, [])
    for name in ("accuracy", "loss", "f1", "recall"):
        check_optimized(name, ["f1", "a:recall"])
    for name, entries, said in (
        ("top5", ["f1"], r"it records accuracy, loss, f1\. Add top5 to metrics first"),
        ("epsilon", [], r"'epsilon', which this run does not record; .* loss\.$"),
    ):
        with pytest.raises(SettingError, match=said):
            check_optimized(name, entries)


def give(value):
    """A metric that gives `value`, or raises it."""

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
        (None, "TypeError: .*NoneType"),
        (torch.ones(2), "RuntimeError: .*2 elements"),
    ],
)
def test_a_metric_that_fails_loses_nothing_but_itself(own, value, says):
    x, y = draw()
    # A number is a number in any of its usual types.
    good = [np.float32(0.5), torch.tensor([[0.5]]), np.array([[0.5]]), Decimal("0.5")]
    entries = [own("bad", give(value)), "f1", *(own(f"good{i}", give(one)) for i, one in enumerate(good))]
    got, usual = scored(entries, x, y), scored(["f1"], x, y)
    assert (got.accuracy, got.loss, got.metrics["f1"]) == (usual.accuracy, usual.loss, usual.metrics["f1"])
    assert [got.metrics[f"good{i}"] for i in range(len(good))] == [0.5] * len(good)
    assert math.isnan(got.metrics["bad"])
    assert set(got.failures) == {"bad"}
    with pytest.raises(SettingError, match=f"metrics holds bad, which cannot score it: .*{says}"):
        check_scored(got, "it")


def test_a_custom_class_is_given_batches_anew_in_every_evaluation_and_left_alone_once_it_fails(own):
    class Batches(Metric):
        def __init__(self):
            self.seen = []

        def add(self, outputs, targets):
            self.seen.append(len(targets))

        def value(self):
            return float(self.seen == [16, 16, 8])

    class Fails(Batches):
        def add(self, outputs, targets):
            assert not self.seen, "asked although it failed"
            super().add(outputs, targets)
            raise ValueError("at add")

        value = None

    class FailsAtStart(Fails):
        def __init__(self):
            raise ValueError("at start")

    entries = [own(kind.__name__, kind) for kind in (Batches, Fails, FailsAtStart)]
    metrics = find_metrics(entries, classes=CLASSES)
    for _ in range(2):
        got = score(Echo(), Examples(*draw()), metrics=metrics, batch_size=16)
        assert got.metrics["Batches"] == 1
        assert got.failures == {"Fails": "ValueError: at add", "FailsAtStart": "ValueError: at start"}


def test_a_metric_that_writes_into_its_inputs_or_draws_spoils_nothing(own):
    class Zeroes(Metric):
        def add(self, outputs, targets):
            outputs.zero_()
            targets.zero_()

        def value(self):
            torch.manual_seed(5)
            return float(torch.rand(())) * 0

    def zero(outputs, targets) -> float:
        outputs.zero_()
        targets.zero_()
        return 0.0

    def total(outputs, targets) -> float:
        return float(outputs.double().sum()) + float(targets.sum())

    x, y = draw()
    kept = x.copy(), y.copy()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    got = scored([own("Zeroes", Zeroes), own("zero", zero), own("total", total), "f1"], x, y, batch_size=16)
    assert torch.equal(torch.get_rng_state(), before)
    assert got.metrics["total"] == pytest.approx(kept[0].sum(dtype="f8") + kept[1].sum())
    assert got.metrics["f1"] == scored(["f1"], *kept).metrics["f1"]
    assert got.accuracy == scored([], *kept).accuracy

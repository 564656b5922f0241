"""The losses against torch's own formulas on targets that were made fit by hand."""

import numpy as np
import pytest
import torch
from torch import nn

import own_training
from client.data import IGNORED_TARGET, Examples
from client.losses import counted, find_loss
from client.scoring import score
from fedmf.errors import SettingError

OUTPUTS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
CLASSES = torch.tensor([2, 0, 1, 1, 0])
ELEMENTWISE = {
    "mse": nn.functional.mse_loss,
    "bce_with_logits": nn.functional.binary_cross_entropy_with_logits,
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_class_numbers_count_as_one_hot_rows(name):
    one_hot = torch.eye(3)[CLASSES]
    torch.testing.assert_close(find_loss(name)(OUTPUTS, CLASSES), ELEMENTWISE[name](OUTPUTS, one_hot))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_targets_of_the_outputs_shape_are_compared_element_by_element(name):
    targets = torch.rand(5, 3)
    torch.testing.assert_close(find_loss(name)(OUTPUTS, targets), ELEMENTWISE[name](OUTPUTS, targets))


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize(
    "targets", [torch.rand(5), torch.tensor([0, 1, 1, 0, 1])], ids=["numbers", "integers"]
)
def test_one_output_per_example_is_compared_with_its_target_and_never_broadcast(name, targets):
    expected = ELEMENTWISE[name](OUTPUTS[:, 0], targets.float())
    torch.testing.assert_close(find_loss(name)(OUTPUTS[:, :1], targets), expected)


@pytest.mark.parametrize("name", ["cross_entropy", *ELEMENTWISE])
def test_ignored_targets_count_for_nothing(name):
    targets = CLASSES.clone()
    targets[[1, 3]] = IGNORED_TARGET
    kept = [0, 2, 4]
    loss = find_loss(name)
    torch.testing.assert_close(loss(OUTPUTS, targets), loss(OUTPUTS[kept], CLASSES[kept]))
    assert counted(targets) == 3


def test_a_number_equal_to_the_ignored_class_is_a_number():
    targets = torch.full((4, 1), float(IGNORED_TARGET))
    assert counted(targets) == 4
    assert float(find_loss("mse")(torch.zeros(4, 1), targets)) == IGNORED_TARGET**2


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize(
    "targets",
    [torch.zeros(5), torch.zeros(3), torch.zeros(5, 1), torch.zeros(5, 2, dtype=torch.int64)],
    ids=["[5]", "[3]", "[5, 1]", "[5, 2]"],
)
def test_shapes_that_would_be_broadcast_are_refused(name, targets):
    with pytest.raises(SettingError, match=rf"loss is '{name}'.*\[5, 3\].*must be of one shape"):
        find_loss(name)(OUTPUTS, targets)


def test_a_loss_of_ones_own_is_found_by_its_import_path():
    assert find_loss("own_training:hinge") is own_training.hinge


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hinge", "cross_entropy, mse, bce_with_logits"),
        ("own_training:unannotated", "annotate the function with `-> Tensor`"),
        ("own_training:of_one", "cannot be called with outputs and targets"),
        ("own_training:missing", "cannot be imported"),
        ("os:system", "was not called"),
    ],
)
def test_what_is_no_loss_is_refused(name, said):
    with pytest.raises(SettingError, match=f"^loss is '{name}'.*{said}"):
        find_loss(name)


@pytest.mark.parametrize("name", ["cross_entropy", *ELEMENTWISE, "own_training:hinge"])
def test_the_score_is_the_loss_that_is_trained_whatever_the_batches(name):
    model = nn.Linear(4, 3)
    x, y = np.random.default_rng(0).random((7, 4)).astype("f4"), np.arange(7) % 3
    whole = find_loss(name)(model(torch.from_numpy(x)), torch.from_numpy(y)).item()
    for batch_size in (2, 7):
        found = score(model, Examples(x, y), loss=find_loss(name), batch_size=batch_size)
        assert found.loss == pytest.approx(whole, rel=1e-6)

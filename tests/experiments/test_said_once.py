"""What of the data cannot be read is said once in a run: by the process that loads them for it, not by each worker."""

from pathlib import Path

import pytest

import small_files
from experiments.settings.client import build_for_clients
from experiments.settings.data import arguments, load_dataset
from runs import composed


def test_a_worker_does_not_say_again_what_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = small_files.leaf(tmp_path, "femnist", lambda data: data["bob"]["x"][2].pop())
    settings = composed(
        "dataset=femnist", f"dataset.path={folder}", "model=logistic", "population.cohort_size=3"
    )
    load_dataset(arguments(settings.dataset))
    assert caplog.text.count("cannot be read") == 1
    build_for_clients(settings)
    assert caplog.text.count("cannot be read") == 1
    # a node of a deployment plays clients too, and nobody else loads its data
    load_dataset(arguments(settings.dataset), clients_only=True)
    assert caplog.text.count("cannot be read") == 2

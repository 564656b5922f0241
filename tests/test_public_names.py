"""The public face: what `fedmf`, `server` and `client` promise by name is there, and cheap until it is used."""

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import fedmf.version

ROOT = Path(__file__).resolve().parents[1]

# Written out, so that no name vanishes unnoticed: removing one breaks a user's import.
PUBLIC = {
    "fedmf": """
        ACCOUNTANTS ADJACENCIES ROTATIONS VALUE_TYPES Bounds ClientPlan Compression Conduct DataError DivergedError
        EpochEvent Factorization FedmfError Layout Ledger NotCoveredError Participation ParticipationError Plan
        PrivacyBudgetExhausted PrivacySpent PrivacyTarget PublicSeed ReleaseOrderError RunDirectoryError RunFactorization
        RunStoppedError SecretKey SettingError Statement Workload __version__ calibrate_noise_multiplier
        continual_counter design design_run make_bounds make_client_plan make_plan misgivings momentum of_run online_learner prefix_sum
        privacy_spent rounds_that_fit write_statement
    """,
    "server": """
        Adagrad Adam Attendance Checkpoint DeployedPopulation FedMF KnownNode KnownNodes Optimizer Population Release
        ReplyPolicy ServerState Sgd SimulatedPopulation UnreadyNodes Yogi first_state make_server_app
    """,
    "client": """
        DEVICES Dataset Examples Metric Trainer TrainingSettings flat_parameters from_arrays layout_of make_client_app
        rehearse with_adapters
    """,
    "fedmf.audit": """
        Finding Stated StatedEpoch coupled epsilon_lower_bound mask_laws one_run_lower_bound residuals unmixed
    """,
}
HEAVY = ("torch", "scipy", "flwr", "sklearn", "dp_accounting", "numpy", "cryptography", "importlib.metadata")


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names_are_those_written_here_and_each_is_there(package):
    face = importlib.import_module(package)
    assert sorted(face.__all__) == sorted(PUBLIC[package].split())
    assert set(face.__all__) <= set(dir(face))
    assert all(getattr(face, name) is not None for name in face.__all__)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nonsense'"):
        _ = face.nonsense
    # A module of the same name would hide it.
    assert not {path.stem for path in ROOT.joinpath(*package.split(".")).iterdir()} & set(face.__all__)


@pytest.mark.parametrize(
    ("program", "kept_out"),
    [
        ("import fedmf, server, client", HEAVY),
        (
            "from client import Dataset, Examples, TrainingSettings; from client.data import load; "
            "from fedmf import ClientPlan, PublicSeed, make_bounds, make_client_plan",
            ("torch", "scipy", "flwr", "sklearn", "h5py", "pyarrow", "PIL"),
        ),
    ],
)
def test_packages_and_what_a_node_knows_of_data_and_run_import_nothing_heavy(program, kept_out):
    shown = f"{program}; import sys; print([name for name in {kept_out} if name in sys.modules])"
    command = [sys.executable, "-c", shown]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_checkout_that_is_not_installed_has_a_version_too(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", missing)
        assert importlib.reload(fedmf.version).__version__ == "0+uninstalled"
    assert importlib.reload(fedmf.version).__version__[0].isdigit()


def test_type_information_is_declared_and_packaged():
    settings = (ROOT / "pyproject.toml").read_text()
    for package in ("fedmf", "server", "client", "experiments"):
        assert (ROOT / package / "py.typed").is_file()
        assert f'{package} = ["py.typed"' in settings

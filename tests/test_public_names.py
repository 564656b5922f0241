"""The public face: what `fedmf`, `server` and `client` promise by name is there, and cheap until it is used."""

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import fedmf.version

ROOT = Path(__file__).resolve().parents[1]

# Written out, so that no name vanishes unnoticed: whoever takes one away breaks a user's import.
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
        DEVICES Dataset Examples Metric Trainer TrainingSettings flat_parameters layout_of make_client_app
        rehearse with_adapters
    """,
}
HEAVY = ("torch", "scipy", "flwr", "sklearn", "dp_accounting", "numpy", "cryptography", "importlib.metadata")


def run(program):
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names_are_those_written_here(package):
    assert sorted(importlib.import_module(package).__all__) == sorted(PUBLIC[package].split())


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_there_and_listed(package):
    face = importlib.import_module(package)
    for name in face.__all__:
        assert getattr(face, name) is not None, name
        assert name in dir(face)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nonsense'"):
        _ = face.nonsense


def test_no_public_name_is_also_a_module_which_would_hide_it():
    for package in PUBLIC:
        modules = {path.stem for path in (ROOT / package).iterdir()}
        assert not modules & set(importlib.import_module(package).__all__), package


def test_the_public_names_of_the_audit_are_those_written_here():
    names = """
        Finding Stated StatedEpoch coupled epsilon_lower_bound mask_laws one_run_lower_bound residuals unmixed
    """
    face = importlib.import_module("fedmf.audit")
    assert set(face.__all__) == set(names.split())
    assert all(getattr(face, name).__doc__ for name in face.__all__)


def test_importing_a_package_imports_nothing_heavy():
    loaded = run(f"import sys, fedmf, server, client; print([n for n in {HEAVY} if n in sys.modules])")
    assert loaded.strip() == "[]"


def test_a_node_knows_its_data_and_the_rules_of_the_run_without_torch_or_scipy():
    program = (
        "import sys; from client import Dataset, Examples, TrainingSettings; from client.data import load; "
        "from fedmf import ClientPlan, PublicSeed, make_bounds, make_client_plan; "
        "print([n for n in ('torch', 'scipy', 'flwr', 'sklearn', 'h5py', 'pyarrow', 'PIL') if n in sys.modules])"
    )
    assert run(program).strip() == "[]"


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

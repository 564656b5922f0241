"""The pages that runs and comparisons write, of small real runs: what a browser opens in the tests."""

import json
from pathlib import Path

import numpy as np

import written_run
from experiments import run
from experiments.compare import CompareSettings, compare
from experiments.pages.run_page import write_report
from experiments.settings.compose import compose

SHORT = ("population.epochs=1", "population.rounds_per_epoch=4", "population.cohort_size=32")
# The longest unit of privacy that a loader writes, and a name of a family and a metric without a break.
LONG_UNIT = (
    "one user cut into clients of at most 5 examples: the unit of privacy is the cut client, not the user, on the word of "
    "the operator of the node that holds it"
)
LONG_NAME = "my_own_package.factorizations.experimental:banded_and_tuned_for_this_federation"


RUNS = {
    "private": ("population.epochs=2",),
    "not_private": ("privacy.epsilon=null", "privacy.noise_multiplier=0"),
    "unmasked": ("compression.keep_probability=1",),
    "metrics": ("metrics=[top5,f1,perplexity]", "optimizer=adam", "run.unprotected_metrics=true"),
    "cut_users": ("dataset.examples_per_client=5",),
}


class Pages:
    """The file of each kind of page below `folder`, by name; what is asked for is made once."""

    def __init__(self, folder):
        self._folder, self._made = folder, {}

    def __getitem__(self, name):
        """Return the page `name`: one of `RUNS`, long_unit or comparison."""
        if name not in self._made:
            self._made[name] = self._make(name, self._folder / name)
        return self._made[name]

    def _make(self, name, directory):
        if name == "long_unit":
            return long_unit(directory)
        if name == "long_comparison":
            return long_comparison(directory)
        if name == "comparison":
            return comparison(directory)
        data = by_user(self._folder / "data.npz") if name == "cut_users" else ()
        return simulated(directory, *data, *RUNS[name])


def simulated(directory, *overrides):
    """Return the report of a short run."""
    return run(*SHORT, *overrides, f"run.directory={directory}", seed=1).directory / "report.html"


def by_user(file, users=120):
    """Write the digits as a file by user, and return the overrides that name it."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    user = np.random.default_rng(0).integers(0, users, len(y))
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, x=(x * 15.9375).astype("uint8").reshape(-1, 8, 8), y=y, user=user)
    return "dataset=by_user_npz", f"dataset.path={file}"


def long_unit(directory):
    """Return the report of a run whose words are the longest that there are, resumed twice on other machines."""
    session = {
        "started": "2026-01-01T00:00:00Z",
        "until": "2026-01-02T03:00:00Z",
        "wall_seconds": 9e4,
        "first_round": 1,
        "software": {"fedmf": "0.1.0", "git_commit": "0123456789abcdef0123", "git_modified": True},
        "machine": {"system": "Linux on x86_64", "cores": 96, "memory_bytes": 10**11, "accelerator": None},
    }
    said = {"unit_of_privacy": LONG_UNIT, "adjacency": "zero_out"}
    lines = [{**line, "measured_value_bytes": 1e6} for line in written_run.metrics()]
    written_run.write(
        directory,
        summary={**said, "mechanism": LONG_NAME, "uplink_bytes_per_client": 419_430.4},
        privacy={**said, "mechanism": LONG_NAME},
        mechanism={"family": LONG_NAME, "update_noise_std": 0.03},
        metrics=lines,
    )
    (directory / "provenance.json").write_text(json.dumps({"sessions": [session, session]}))
    write_report(directory)
    return directory / "report.html"


def long_comparison(directory):
    """Return the page of runs that differ in many settings, two of them of the longest names that there are."""
    for number, name in enumerate((LONG_NAME, LONG_NAME.replace("banded", "plain"), "optimal")):
        for seed in (1, 2):
            written_run.write(
                directory / f"{name.rpartition(':')[2]}-{seed}",
                config={
                    "seed": seed,
                    "metrics": ["f1", "top5"],
                    "mechanism": {"name": name},
                    "population": {"epochs": 2 + number, "cohort_size": 64 + number},
                    "optimizer": {"name": "sgd", "learning_rate": 0.1 * (1 + number), "momentum": 0.9},
                    "privacy": {"epsilon": 8.0 + number, "delta": 1e-4},
                },
                summary={"epsilon": 8.0 + number, "f1": 0.5, "top5": 0.9 + 0.01 * seed, "epochs": 2 + number},
            )
    return compared(directory)


def compared(directory):
    """Return the page that compares the runs below a directory."""
    compare(compose("compare", [f"directory={directory}", "output=json"], CompareSettings))
    return Path(directory) / "compare.html"


def comparison(
    directory, mechanisms=("optimal", "independent"), epsilons=(4, 16), keeps=(0.1, 1), seeds=(1, 2), more=()
):
    """Return the page of a sweep of mechanism, epsilon, keep probability and seed."""
    for mechanism in mechanisms:
        for epsilon in epsilons:
            for keep in keeps:
                for seed in seeds:
                    run(
                        *SHORT,
                        *more,
                        f"mechanism={mechanism}",
                        f"privacy.epsilon={epsilon}",
                        f"compression.keep_probability={keep}",
                        f"run.directory={directory}/{mechanism}-{epsilon}-{keep}-{seed}",
                        seed=seed,
                    )
    return compared(directory)

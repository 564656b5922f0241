"""A run directory as `simulate` leaves it, written by hand with round numbers."""

import json
from itertools import product

import yaml

SUMMARY = {
    "accuracy": 0.935,
    "loss": 0.31,
    "epsilon": 8.0,
    "delta": 1e-4,
    "rounds": 6,
    "parameters": 650,
    "clients": 1437,
    "cohort_size": 64,
    "rounds_per_epoch": 3,
    "epochs": 2,
    "keep_probability": 0.1,
    "linf_over_l2": 0.15,
    "noise_multiplier": 0.199,
    "sigma": 0.2,
    "compression_ratio": 6.34765625,
    "uplink_bytes_per_client": 921.6,
    "envelope_bytes_per_client": 512,
    "wall_seconds": 12.5,
    "shape": {"input_shape": [8, 8], "classes": 10, "task": "image"},
}
CONFIG = {
    "dataset": {"name": "digits", "path": None},
    "model": {"name": "logistic"},
    "compression": {"keep_probability": 0.1, "rotation": "hadamard", "value_type": "float32"},
    "privacy": {"epsilon": 8.0, "delta": 1e-4},
    "seed": 1,
    "run": {"reproducible": False, "unprotected_metrics": False},
}
PRIVACY = {
    "paragraph": "An observer of all models learns little of one image.\n\nIt holds for <one> client & run.",
    "unit_of_privacy": "one image = one client",
    "adjacency": "zero_out",
    "epsilon": 8.0,
    "mechanism": {"family": "optimal", "rounds": 3},
    "not_covered": ["test examples", "hyper-parameter search"],
}
MECHANISM = {
    "family": "optimal",
    "per_round_error": [1.2, 1.4, 1.5, 1.6, 1.7, 1.8],
    "independent_per_round_error": [1.0, 1.5, 2.5, 2.6, 2.8, 3.0],
    "lowest_rms_error": 1.5,
}


def metrics(private=True, accuracies=(0.2, 0.5, 0.8, 0.9, 0.94, 0.935)):
    """Return one line for each of six rounds."""
    return [
        {
            "round": number,
            "epoch": (number - 1) // 3,
            "step": (number - 1) % 3,
            "cohort_size": 64,
            "replies": 64,
            "epsilon": (4.0 if number <= 3 else 8.0) if private else None,
            "uplink_bytes": 64 * 921.6,
            "downlink_bytes": 64 * 2600,
            "seconds": 0.1,
            "accuracy": accuracy,
            "loss": 1 - accuracy,
        }
        for number, accuracy in enumerate(accuracies, start=1)
    ]


def write(directory, **changes):
    """Write a run. A change updates the document of its name; `metrics` replaces, None leaves a file out."""
    directory.mkdir(parents=True, exist_ok=True)
    documents = {"summary.json": SUMMARY, "privacy.json": PRIVACY, "mechanism.json": MECHANISM}
    for name, document in documents.items():
        change = changes.get(name.removesuffix(".json"), {})
        if change is not None:
            (directory / name).write_text(json.dumps(document | change))
    config = CONFIG | changes.get("config", {})
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    lines = changes.get("metrics", metrics())
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def sweep(
    directory,
    mechanisms=("optimal",),
    epsilons=(8.0,),
    keeps=(0.1,),
    seeds=(1, 2),
):
    """Write a run for every combination, and return the directory. Seeds are 0.02 apart in accuracy."""
    for mechanism, epsilon, keep, seed in product(mechanisms, epsilons, keeps, seeds):
        accuracy = 0.5 + 0.1 * mechanisms.index(mechanism) + 0.01 * epsilon + 0.02 * seed
        write(
            directory / f"{mechanism}-{epsilon}-{keep}-{seed}",
            config={
                "seed": seed,
                "mechanism": {"name": mechanism},
                "privacy": {"epsilon": epsilon, "delta": 1e-4},
                "compression": {"keep_probability": keep, "rotation": "identity"},
                "engine": {"name": "local", "workers": seed},
            },
            # A calibration ends close to its target, at another distance for each mechanism.
            summary={
                "accuracy": accuracy,
                "epsilon": epsilon * (1 - 1e-4 * len(mechanism)),
                "uplink_bytes_per_client": 5000 * keep,
                "keep_probability": keep,
            },
            metrics=metrics(accuracies=(0.2, 0.3, 0.4, 0.45, 0.5, accuracy)),
        )
    return directory

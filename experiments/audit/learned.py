"""A learned attack: it is told of no fault, and finds one that moves anything it looks at.

A linear discriminant is fitted on half of the runs, its threshold is chosen there by cross-validation, and the other
half is counted. So the rule is fixed before the counted runs are seen, and the bound assumes nothing.
"""

from functools import partial

import numpy as np
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from experiments.audit.digits import Runs
from experiments.audit.law import Bound, Count, Float64, Law, best_rule, count

FOLDS = 5
NOTHING = 1e-6  # in units of the stated noise; closer than this is equal, as far as float32 models tell


def learned_count(law: Law, runs: Runs, steps: np.ndarray, bound: Bound) -> Count:
    """Return how the rule learned from the first half of the runs does on the others.

    `law` is the stated one, `steps` (clients, epochs) when each client takes part; `bound` what the rule is to raise.
    """
    half = len(runs.present) // 4 * 2  # pairs stay together
    seen, counted = runs.part(slice(half)), runs.part(slice(half, None))
    known, fresh = (features(law, part, steps) for part in (seen, counted))
    model = discriminant()
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    judged = cross_val_predict(model, known, seen.present, cv=folds, method="decision_function")
    rule = best_rule(
        judged[seen.present], judged[~seen.present], runs=len(counted.present), bound=partial(bound)
    )
    return count(rule, model.fit(known, seen.present).decision_function(fresh), counted.present)


def discriminant() -> Pipeline:
    """Return the classifier, not fitted: Fisher's discriminant with Ledoit and Wolf's shrinkage."""
    return make_pipeline(StandardScaler(), LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"))


def features(law: Law, runs: Runs, steps: np.ndarray) -> Float64:
    """Return what the discriminant looks at, (runs, features).

    The log-likelihood ratio of the stated law; each coordinate's mean over epochs; of each epoch the mean and the mean
    square over coordinates, and how close the nearest coordinate is to no copy and to one copy (a coordinate without
    noise is at one of them); and of each whitened row, counted from the canary's own round on, mean and mean square.
    """
    seen, shifts = runs.observations, law.shifts[runs.canaries][:, :, None]
    to_none, to_one = (np.log(np.abs(distance).min(axis=2) + NOTHING) for distance in (seen, seen - shifts))
    own = steps[runs.canaries]  # (runs, epochs)
    turns = (own[:, :, None] + np.arange(runs.rows.shape[2])) % runs.rows.shape[2]
    rows = np.take_along_axis(runs.rows, turns[..., None], axis=2)
    parts = [
        law.score(seen, runs.canaries)[:, None],
        seen.mean(axis=1),
        seen.mean(axis=2),
        (seen**2).mean(axis=2),
        to_none,
        to_one,
        rows.mean(axis=3).reshape(len(rows), -1),
        (rows**2).mean(axis=3).reshape(len(rows), -1),
    ]
    return np.concatenate(parts, axis=1)

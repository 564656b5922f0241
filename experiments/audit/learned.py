"""A learned attack: it is told of no fault, and finds one that moves anything it looks at.

A linear discriminant (logistic regression) is fitted on half of the runs, its threshold is chosen there by
cross-validation, and the other half is counted. So the rule is fixed before the counted runs are seen, and the bound
assumes nothing.
"""

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from experiments.audit.digits import Runs
from experiments.audit.law import Bound, Clients, Count, Float64, Law, best_rule, count

FOLDS = 5
REGULARIZATION = 0.01  # scikit-learn's C: some hundred runs must not be outnumbered by ninety features
NOTHING = 1e-6  # of a copy; what is closer than this is equal, as far as float32 models tell


def learned_count(law: Law, runs: Runs, steps: Clients, bound: Bound) -> Count:
    """Return how the rule learned from the first half of the runs does on the others.

    `law` is the stated one, `steps` (clients, epochs) when each client takes part; `bound` what the rule is to raise.
    """
    half = len(runs.present) // 4 * 2  # pairs stay together
    seen, counted = runs.part(slice(half)), runs.part(slice(half, None))
    known, fresh = (features(law, part, steps) for part in (seen, counted))
    model, folds = discriminant(), StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    judged = cross_val_predict(model, known, seen.present, cv=folds, method="decision_function")
    rule = best_rule(judged[seen.present], judged[~seen.present], runs=len(counted.present), bound=bound)
    return count(rule, model.fit(known, seen.present).decision_function(fresh), counted.present)


def discriminant() -> Pipeline:
    """Return the classifier, not fitted."""
    return make_pipeline(StandardScaler(), LogisticRegression(C=REGULARIZATION, max_iter=1000))


def features(law: Law, runs: Runs, steps: Clients) -> Float64:
    """Return what the discriminant looks at, (runs, features).

    The log-likelihood ratio of the stated law, and each coordinate's mean over epochs. Of each epoch, the mean and the
    size of every round's sum, the canary's own round first; and how close to no copy and to one copy some estimates
    are, at the nearest coordinate and in the median: where noise is missing, they are equal.
    """
    rounds = own_round_first(runs, steps)
    looks = estimates(law, runs, rounds)
    parts = [
        law.score(runs.observations, runs.canaries)[:, None],
        runs.observations.mean(axis=1),
        rounds.mean(axis=3),
        _log((rounds**2).mean(axis=3)),
        _log((runs.observations**2).mean(axis=2)),
    ]
    for copies in (0, 1):
        distances = _log(np.abs(looks - copies))
        parts += [distances.min(axis=3), np.median(distances, axis=3)]
    return np.concatenate([part.reshape(len(looks), -1) for part in parts], axis=1)


def own_round_first(runs: Runs, steps: Clients) -> Float64:
    """Return the sums (runs, epochs, T, coordinates) with rounds counted from the canary's own on, past the end."""
    rounds = runs.sums.shape[2]
    turns = (steps[runs.canaries][:, :, None] + np.arange(rounds)) % rounds
    return np.take_along_axis(runs.sums, turns[..., None], axis=2)


def estimates(law: Law, runs: Runs, rounds: Float64) -> Float64:
    """Return estimates of the copies that the canary's own round holds, (runs, epochs, T + 1, coordinates).

    The round's sum; the sum without each other round's, which noise that repeats would leave clean; the best one.
    """
    own = rounds[:, :, :1]
    best = runs.observations / law.shifts[runs.canaries][:, :, None]
    return np.concatenate([own, own - rounds[:, :, 1:], best[:, :, None]], axis=2)


def _log(sizes: Float64) -> Float64:
    return np.asarray(np.log(sizes + NOTHING))

"""Continual counting: private running sums with a stated (epsilon, delta), and online learning on them."""

from fedmf.counting.counter import Counter, CounterState, continual_counter
from fedmf.counting.online import (
    OnlineLearner,
    best_learning_rate,
    online_learner,
    regret_bound,
    square_root_regret_bound,
)

__all__ = [
    "Counter",
    "CounterState",
    "OnlineLearner",
    "best_learning_rate",
    "continual_counter",
    "online_learner",
    "regret_bound",
    "square_root_regret_bound",
]

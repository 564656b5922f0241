"""How long a run still takes, by a number that never grows while it is shown.

What is left is the median of the latest rounds' times for every round that is left, less the part of the round under
way that is done, and the time of the test examples still to be scored at the rate so far. The first round of a session
counts only until another is known: processes start in it. Scoring is taken out of the rounds it happens in, rounds that
an earlier session released out of everything.

The number shown is the smallest so far. The first are larger than the estimate, by up to a half while few rounds are
known: a number that begins too small could never become right. Where the rounds have become so slow that more is left than it says, it is
shown as "over": it is then true as well, and falls again once the rest is smaller.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable

from experiments.pages.wording import whole_duration

_LATEST = 30  # rounds
_PATIENCE = 30.0  # seconds; a run shows nothing before its first score is timed or these have passed
_FEW, _MANY = 3, 10  # rounds: below the first nothing is shown, below the other more than the estimate
_TOO_SLOW = 1.25  # times as much left as is shown


class TimeLeft:
    """The time left of a session of a run of `rounds`; `examples_after(round)` are test examples still to be scored.

    `clock` gives seconds that never fall.
    """

    def __init__(
        self, rounds: int, examples_after: Callable[[int], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rounds = rounds
        self._examples_after = examples_after
        self._clock = clock
        self._first: float | None = None  # seconds of the session's first round
        self._latest: deque[float] = deque(maxlen=_LATEST)
        self._scoring = 0.0  # seconds, in the round under way
        self._scored = (0.0, 0)  # seconds and examples of this session
        self._part = 0.0  # of the round under way that is done
        self._shown: float | None = None
        self._released = 0
        self.begin()

    def begin(self) -> None:
        """Count from now on: the session's first round begins."""
        self._began = self._round_began = self._clock()

    def clients(self, done: int, asked: int) -> None:
        """Take note that `done` of the `asked` clients of the round under way have been played."""
        self._part = done / asked if asked else 0.0

    def scored(self, seconds: float, examples: int) -> None:
        """Take note of the time that scoring `examples` has just taken."""
        self._scoring += seconds
        self._scored = (self._scored[0] + seconds, self._scored[1] + examples)

    def released(self, number: int) -> None:
        """Take note that round `number` is over, its scoring included."""
        now = self._clock()
        took = max(0.0, now - self._round_began - self._scoring)
        if self._first is None:
            self._first = took
        else:
            self._latest.append(took)
        self._released, self._round_began, self._scoring, self._part = number, now, 0.0, 0.0

    @property
    def in_round(self) -> float:
        """Seconds since the round under way began."""
        return self._clock() - self._round_began

    @property
    def elapsed(self) -> float:
        """Seconds since the session began."""
        return self._clock() - self._began

    @property
    def round_seconds(self) -> float | None:
        """Seconds that a round takes, None before one is over."""
        return statistics.median(self._latest) if self._latest else self._first

    def estimate(self) -> float | None:
        """Return the seconds that are left by what is known now, None where too little is."""
        a_round, (seconds, examples) = self.round_seconds, self._scored
        to_score = self._examples_after(self._released)
        if a_round is None or (to_score and not examples and self.elapsed < _PATIENCE):
            return None
        rate = seconds / examples if examples else 0.0
        return a_round * (self._rounds - self._released - self._part) + rate * to_score

    def text(self) -> str:
        """Return what is shown, "" where too little is known: a number that is never above one shown before."""
        left = self.estimate()
        known = len(self._latest)
        if left is None or (known < _FEW and self.elapsed < _PATIENCE):
            return ""
        left *= 1 + max(0.0, (_MANY - known) / (2 * _MANY))
        self._shown = left if self._shown is None else min(self._shown, left)
        is_slow = left > _TOO_SLOW * self._shown and left > self._shown + 1
        return f"{'over ' if is_slow else ''}{whole_duration(self._shown)} left"

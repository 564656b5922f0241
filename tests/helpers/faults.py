"""Faults as edits of the product's source, in force while a scene is run, and those of the noise with the tests that must catch each.

A fault is one or a few edits, as a developer could make them by mistake: (function, text, other text). The edited function is
compiled and its code put in the place of the honest one. `NOISE` must be caught, `ESCAPES` are not, `BY_CHANCE` in some runs.
"""

import ast
import inspect
from contextlib import contextmanager
from functools import partial
from textwrap import dedent, indent

from client.privatize import privatize
from experiments.audit.sabotage import VARIANCE, Sabotage
from fedmf.mechanisms.noise import next_noise
from fedmf.randomness import SecretKey, gaussian_row
from server.state import begin_epoch, first_state, make_release

SENSITIVITY = ("coupled sensitivity",)  # the tests that must catch most faults
LAST_EPOCH = "epoch == plan.participation.epochs - 1"
UNBOUNDED = "if bounds.l2_norm is None:"


@contextmanager
def edited(*edits):
    """Put edits of the source in force for the block; a further line of the other text is indented as its first one is.

    The edited functions share a dictionary MEMORY, which is empty at first, for what one fault keeps between them.
    """
    memory, honest, sources = {}, {}, {}
    for function, old, new in edits:
        source = sources.get(function) or dedent(inspect.getsource(function))
        assert source.count(old) == 1, f"{function.__qualname__} does not have once: {old}"
        before, _, after = source.partition(old)
        line = before.rpartition("\n")[2]
        margin = line[: len(line) - len(line.lstrip())]
        sources[function] = before + new.replace("\n", f"\n{margin}") + after
    try:
        for function, source in sources.items():
            tree = ast.parse(source)
            tree.body[0].decorator_list = []
            namespace = dict(function.__globals__)
            exec(compile(tree, f"<edited {function.__qualname__}>", "exec"), namespace)
            honest[function] = function.__code__
            function.__globals__["MEMORY"] = memory
            function.__code__ = namespace[function.__name__].__code__
        yield
    finally:
        for function, code in honest.items():
            function.__code__ = code
            function.__globals__.pop("MEMORY", None)


def fault(name, caught_by, *edits, applies=lambda scene: True):
    return Sabotage(name, "", caught_by, partial(edited, *edits), applies)


def masked(scene):
    return scene.keep_probability < 1


def when(due, *edits):
    """Put edits of whole statements in force in the rounds of which `due` is true, before the round of `state`."""
    switched = (
        (function, old, f"if MEMORY['due']:\n{indent(new, '    ')}\nelse:\n    {old}")
        for function, old, new in edits
    )
    beginning = "if step or len("
    return ((begin_epoch, beginning, f"MEMORY['due'] = {due}\n{beginning}"), *switched)


def released(change):
    """Change what is released; `unrotated` is the sum without noise."""
    made = "release = Release("
    return make_release, made, f"{change}\n{made}"


FIRST_KEY = (first_state, "return ServerState(", "MEMORY['first'] = key\nreturn ServerState(")
EXACT = released("MEMORY['exact'] = unrotated.copy()")


# faults of the noise that a release has


CORRELATION, REPEATED = ("residual correlation",), ("residual repeated rows",)
DIRECTIONS, TAILS, GRID = ("residual directions",), ("residual tails",), ("residual grid",)
SIGMA, ROW, DRAWN = "plan.sigma_in(secrets.epoch)", 'key.derive("noise row", row)', "return numbers"
GENERATOR = f'np.random.default_rng(int.from_bytes({ROW}.reveal(), "little"))'


def timed(name, factor, applies=lambda scene: True):
    """Multiply the noise of each release by a factor."""
    edit = (make_release, SIGMA, f"{SIGMA} * ({factor})")
    return fault(name, VARIANCE, edit, applies=applies)


def keyed(name, caught_by, key, *edits, applies=lambda scene: True):
    """Draw a fresh row of noise from another key than that of its epoch and number."""
    return fault(name, caught_by, (gaussian_row, ROW, key), *edits, applies=applies)


def drawn(name, caught_by, row, applies=lambda scene: True):
    """Return another row than the one that was drawn: `numbers`, of an expression or of several lines."""
    *lines, last = row.splitlines()
    return fault(
        name, caught_by, (gaussian_row, DRAWN, "\n".join([*lines, f"return {last}"])), applies=applies
    )


def third(name, caught_by, row):
    """Return for the third row of an epoch one that is made of the `first`."""
    return drawn(
        name, caught_by, f"first = gaussian_row(key, 0, dimension) if row == 2 else 0\n{row} if row == 2 else numbers"
    )  # fmt: skip


def correlated(name, caught_by, row):
    return fault(name, caught_by, (next_noise, "NoiseRow(mean, stream.own(state.step), fresh)", row))


def public_from(epoch):
    """Draw the noise of an epoch (from 0) and of all later ones by a key that anyone can compute."""
    public = f"secrets.key if secrets.epoch < {epoch} else SecretKey.reproducible(secrets.epoch)"
    return make_release, "stream, secrets.key", f"stream, {public}"


# fmt: off
NOISE = (
    timed("noise times 0.958", "0.958"),
    timed("no noise in two of three rounds", "state.position(plan)[1] % 3 == 0"),
    timed("noise in the first epoch only", "secrets.epoch == 0"),
    timed("noise in the last epoch only", f"secrets.{LAST_EPOCH}"),
    timed("noise halved in the last epoch", f"1 - (secrets.{LAST_EPOCH}) / 2"),
    timed("no noise on int8 values", "plan.compression.value_type != 'int8'", lambda scene: scene.value_type == "int8"),
    timed("no noise where coordinates are padded and masked",
          "plan.rotation.padded == plan.dimension or plan.compression.keep_probability == 1",
          lambda scene: scene.dimension in (200, 255) and masked(scene)),
    timed("noise for the mean", "1 / plan.denominator"),
    timed("noise scaled by replies", "len(answered) / plan.participation.cohort_size", lambda scene: scene.silent),
    timed("row norms of C", "np.linalg.norm(mechanism.materialize_strategy(), axis=1).min()"
                            " / plan.factorization.epochs[secrets.epoch].sensitivity"),
    fault("sigma of every epoch from the first one's column norm", VARIANCE, (make_release, SIGMA, "plan.sigma_in(0)"),
          applies=lambda scene: scene.mechanism == "banded_toeplitz"),
    fault("noise only where something was sent", SENSITIVITY,
          released("noisy_sum = np.where(unrotated == 0, 0, noisy_sum)"), applies=masked),
    fault("no noise where a client was clipped", VARIANCE,
          (privatize, UNBOUNDED, f"MEMORY['over'] = MEMORY.get('over') or turned.norm > 1.5 * bounds.l2_norm\n{UNBOUNDED}"),
          (make_release, SIGMA, f"{SIGMA} * (not MEMORY.pop('over', False))"), applies=lambda scene: scene.speaking),
    keyed("one noise row for all rounds", REPEATED, 'key.derive("noise row", 0)'),
    keyed("row r of an epoch is row r mod 8", REPEATED, 'key.derive("noise row", row % 8)',
          applies=lambda scene: scene.rounds_per_epoch > 8),
    keyed("row r of an epoch is row r mod 21", REPEATED, 'key.derive("noise row", row % 21)',
          applies=lambda scene: scene.rounds_per_epoch > 21),
    keyed("noise that anyone can compute", REPEATED, f"SecretKey.reproducible(0){ROW[3:]}"),
    keyed("the same noise in all epochs", REPEATED, f"MEMORY['first']{ROW[3:]}", FIRST_KEY),
    fault("rows from a public seed from the third epoch on", CORRELATION, public_from(2)),
    fault("rows from a public seed from the seventh epoch on", CORRELATION, public_from(6),
          applies=lambda scene: scene.epochs > 6),
    third("a noise row that returns moved", REPEATED, "np.roll(first, 7)"),
    third("a noise row that returns backwards", REPEATED, "first[::-1].copy()"),
    third("a noise row that returns permuted", CORRELATION,
          "first[PublicSeed(0).generator('sabotage', dimension).permutation(dimension)]"),
    third("a noise row that returns with public signs", CORRELATION, "first * PublicSeed(0).signs(dimension, 'sabotage')"),
    third("a coordinate whose noise returns", CORRELATION, "np.concatenate([first[:1], numbers[1:]])"),
    drawn("no noise along one direction", DIRECTIONS,
          "lost = PublicSeed(0).generator('sabotage direction').standard_normal(dimension)\n"
          "numbers - lost * (lost @ numbers) / (lost @ lost)"),
    drawn("less noise here and more there", VARIANCE, "numbers * np.resize([0.95, (2 - 0.95**2) ** 0.5], dimension)"),
    drawn("noise shared by pairs of coordinates", CORRELATION, "np.repeat(numbers[: (dimension + 1) // 2], 2)[:dimension]"),
    drawn("noise in tiles", REPEATED, "np.resize(numbers[:20_000], dimension)", lambda scene: scene.dimension > 20_000),
    drawn("coordinates beyond 2^17 are the first ones", REPEATED, "np.resize(numbers[: 1 << 17], dimension)",
          lambda scene: scene.dimension > 1 << 17),
    drawn("noise with no tails", TAILS, f"{GENERATOR}.uniform(-1, 1, (3, dimension)).sum(axis=0) * 2.0**44"),
    correlated("noise without C", CORRELATION, "NoiseRow(0 * mean, 1.0, fresh)"),
    correlated("another C", CORRELATION, "NoiseRow(-mean, 2 - stream.own(state.step), fresh)"),
    correlated("noise rounded to float16", GRID, "NoiseRow(0 * mean, 1.0, np.float64("
               "(STEP * (mean + stream.own(state.step) * fresh)).astype(np.float16)) / STEP)"),
    fault("a ratchet that stands still", REPEATED, (SecretKey.ratchet, 'self.derive("next epoch")', "self")),
)

BOX_AND_MULLER = f"""rng, pairs = {GENERATOR}, -(-dimension // 2)
radius = np.sqrt(-2 * np.log((rng.integers(2**53, size=pairs) + 0.5) / 2**53)).astype(np.float32)
angle = 2 * np.pi * (rng.integers(2**24, size=pairs) + 0.5) / 2**24
planar = np.stack([np.cos(angle), np.sin(angle)]).astype(np.float32) * radius
planar.ravel()[:dimension].astype(np.float64) * 2.0**44"""
TWO_CORRELATED = """if dimension > 42:
    numbers[42] = 0.3 * numbers[5] + (1 - 0.3**2) ** 0.5 * numbers[42]
numbers"""
ESCAPES = (
    drawn("float32 rows", (), BOX_AND_MULLER),
    keyed("noise of a short key", (), f"SecretKey.reproducible(int.from_bytes({ROW}.reveal()[:4])){ROW[3:]}"),
)
BY_CHANCE = (
    drawn("two coordinates with correlated noise", (), TWO_CORRELATED),
    timed("no noise in one epoch of a thousand", "int.from_bytes(secrets.key.derive('rare').reveal()[:8]) % 1000 != 0"),
)
# fmt: on

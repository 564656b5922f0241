"""Faults put into the pipeline on purpose, beyond the five controls of the command, and the tests that must catch each.

In every one functions of the product are replaced while a scene is run. `CAUGHT` has those that the audit must catch,
`ESCAPES` those that it cannot, `BY_CHANCE` those that it catches in some runs. `python -m audit.sabotages` prints what caught
each, and in which scene.
"""

import json
import logging
import sys

import numpy as np

from audit import noise_faults as noise, pipeline_faults as pipeline
from experiments.audit.__main__ import KINDS
from experiments.audit.sabotage import (
    CONTROLS,
    UNCLIPPED,
    VARIANCE,
    Sabotage,
    drawn_by,
    patched,
    scaled_noise,
)
from fedmf.mechanisms.noise import NoiseRow
from fedmf.normals import STEP
from fedmf.plan import Plan
from fedmf.randomness import PublicSeed, SecretKey, gaussian_row

SENSITIVITY, OWN_ROUND, JOURNAL = ("coupled sensitivity",), ("coupled own round",), ("coupled journal",)
CORRELATION, REPEATED = ("residual correlation",), ("residual repeated rows",)
DIRECTIONS, TAILS, GRID = ("residual directions",), ("residual tails",), ("residual grid",)
MASKS = ("mask correlation",)


def everywhere(scene):
    return True


def masked(scene):
    return scene.keep_probability < 1


def resumed(scene):
    return scene.resume_after is not None


def fault(name, caught_by, patches, applies=everywhere):
    return Sabotage(name, "", caught_by, patches, applies)


def timed(name, factor_at, applies=everywhere):
    """Scale the noise of some rounds."""
    return fault(name, VARIANCE, lambda: scaled_noise(factor_at), applies)


def drawn(name, caught_by, draw, applies=everywhere):
    """Draw fresh rows of noise with `draw(key, row, dimension)`."""
    return fault(name, caught_by, lambda: drawn_by(draw), applies)


# fmt: off
CAUGHT = (
    timed("noise times 0.958", lambda plan, epoch, step: 0.958),
    timed("no noise in two of three rounds", lambda plan, epoch, step: float(step % 3 == 0)),
    timed("noise in the first epoch only", lambda plan, epoch, step: float(epoch == 0)),
    timed("noise in the last epoch only", lambda plan, epoch, step: float(noise.is_last(plan, epoch))),
    timed("noise halved in the last epoch", lambda plan, epoch, step: 1 - noise.is_last(plan, epoch) / 2),
    timed("no noise on int8 values",
          lambda plan, *_: float(plan.compression.value_type != "int8"), lambda scene: scene.value_type == "int8"),
    timed("no noise where coordinates are padded and masked", noise.unpadded_or_unmasked,
          lambda scene: scene.dimension in (200, 255) and masked(scene)),
    timed("noise for the mean", lambda plan, *_: 1 / plan.denominator),
    fault("row norms of C", VARIANCE, lambda: noise.of_plan(noise.by_row_norms)),
    fault("noise only where something was sent", SENSITIVITY, lambda: noise.after_release(noise.only_where_sent), masked),
    fault("no noise where a client was clipped", VARIANCE, noise.none_where_clipped, lambda scene: scene.speaking),
    drawn("one noise row for all rounds", REPEATED, lambda key, row, d: gaussian_row(key, 0, d)),
    drawn("a noise row that returns moved", REPEATED, noise.third_from_first(lambda own, first: np.roll(first, 7))),
    drawn("a noise row that returns backwards", REPEATED, noise.third_from_first(lambda own, first: first[::-1].copy())),
    drawn("a noise row that returns permuted", CORRELATION, noise.third_from_first(noise.permuted)),
    drawn("no noise along one direction", DIRECTIONS, noise.changed(noise.without_a_direction)),
    drawn("a noise row that returns with public signs", CORRELATION,
          noise.third_from_first(lambda own, first: first * PublicSeed(0).signs(len(first), "sabotage"))),
    drawn("a coordinate whose noise returns", CORRELATION,
          noise.third_from_first(lambda own, first: np.concatenate([first[:1], own[1:]]))),
    drawn("less noise here and more there", VARIANCE,
          noise.changed(lambda drawn: drawn * np.resize([0.95, (2 - 0.95**2) ** 0.5], len(drawn)))),
    drawn("noise shared by pairs of coordinates", CORRELATION,
          lambda key, row, d: np.repeat(gaussian_row(key, row, (d + 1) // 2), 2)[:d]),
    drawn("noise in tiles", REPEATED,
          lambda key, row, d: np.resize(gaussian_row(key, row, min(d, noise.TILE)), d), lambda scene: scene.dimension > noise.TILE),
    drawn("noise with no tails", TAILS,
          lambda key, row, d: noise.generator(key, row).uniform(-1, 1, (3, d)).sum(axis=0) / STEP),
    drawn("noise that anyone can compute", REPEATED, lambda key, row, d: gaussian_row(SecretKey.reproducible(0), row, d)),
    fault("the same noise in all epochs", REPEATED,
          lambda: noise.with_key(lambda first, purpose, at: (first, purpose, *at) if purpose == "noise row" else None)),
    fault("noise without C", CORRELATION, lambda: noise.correlated(lambda row: NoiseRow(0 * row.mean, 1.0, row.fresh))),
    fault("another C", CORRELATION, lambda: noise.correlated(lambda row: NoiseRow(-row.mean, 2 - row.own, row.fresh))),
    fault("noise rounded to float16", GRID, lambda: noise.correlated(noise.of_float16)),
    fault("masks shared by pairs", MASKS, lambda: pipeline.of_the_cohort(lambda place: place - place % 2), masked),
    fault("one mask for all in the last epoch", MASKS, lambda: pipeline.masks_of(pipeline.in_the_last_epoch), masked),
    fault("the same masks in all epochs", MASKS,
          lambda: noise.with_key(lambda first, purpose, at: (first, purpose, at[0], 0) if purpose == "mask" else None), masked),
    fault("masks that return at another place", MASKS, lambda: pipeline.masks_of(pipeline.elsewhere), masked),
    fault("one mask for all, moved", MASKS, pipeline.one_mask_moved, masked),
    fault("a ratchet that stands still", REPEATED, lambda: patched((SecretKey, "ratchet", lambda self: self))),
    fault("no clipping in the last epoch", SENSITIVITY,
          lambda: pipeline.when(UNCLIPPED, lambda plan, epoch, step: noise.is_last(plan, epoch))),
    fault("no clipping in round 5", SENSITIVITY, lambda: pipeline.when(UNCLIPPED, pipeline.in_round(5))),
    fault("larger bounds for one client", SENSITIVITY, pipeline.larger_bounds_for_one),
    fault("no clipping by the server", SENSITIVITY, lambda: patched(*pipeline.HOSTILE, *UNCLIPPED[2:])),
    fault("the server passes on what is not finite", SENSITIVITY, lambda: patched(*pipeline.HOSTILE, *pipeline.UNLOOKED)),
    fault("what is not finite is passed on", SENSITIVITY, lambda: patched(*pipeline.NOT_FINITE)),
    fault("what is not finite is passed on in round 1", SENSITIVITY,
          lambda: pipeline.when(pipeline.NOT_FINITE, pipeline.in_round(1))),
    fault("what is not finite is passed on in round 3", SENSITIVITY,
          lambda: pipeline.when(pipeline.NOT_FINITE, pipeline.in_round(3))),
    fault("what is not finite is passed on in round 5", SENSITIVITY,
          lambda: pipeline.when(pipeline.NOT_FINITE, pipeline.in_round(5))),
    fault("changes in place of updates", SENSITIVITY, lambda: pipeline.adding_each(pipeline.changes)),
    fault("a second participation", SENSITIVITY, pipeline.taking_part_twice),
    fault("a client that answers twice counts twice", SENSITIVITY, pipeline.counting_twice, lambda scene: scene.silent),
    fault("divided by who spoke", SENSITIVITY, noise.divided_by_who_spoke),
    fault("momentum that leaks", JOURNAL, pipeline.leaking_momentum),
    fault("an initial model that leaks", OWN_ROUND, pipeline.leaking_start),
    fault("noise drawn anew after a resume", JOURNAL, pipeline.drawn_anew, resumed),
    fault("a journal ahead of the noise", JOURNAL, pipeline.ahead_of_the_noise, resumed),
    # shared/docs/SABOTAGES.md
    fault("no L2 clip on the path that every run takes", SENSITIVITY, pipeline.unclipped_beside_a_start, masked),
    fault("kept values multiplied by the number of examples", SENSITIVITY, lambda: pipeline.sending(lambda examples: examples), masked),
    fault("rows from a public seed from the third epoch on", CORRELATION, lambda: noise.public_from(2)),
    fault("sigma of every epoch from the first one's column norm", VARIANCE,
          lambda: patched((Plan, "sigma_in", lambda self, epoch, honest=Plan.sigma_in: honest(self, 0))), lambda scene: scene.mechanism == "banded_toeplitz"),
    drawn("row r of an epoch is row r mod 8", REPEATED,
          lambda key, row, d: gaussian_row(key, row % 8, d),
          lambda scene: scene.rounds_per_epoch > 8 or scene.mechanism == "banded_toeplitz"),
    fault("mask key of the first three letters", MASKS,
          lambda: pipeline.masks_of(lambda strategy, client, step, key: (key, client[:3], step)), masked),
    fault("noise scaled by replies", VARIANCE,
          lambda: noise.of_plan(lambda plan, state, answered: noise.scaled(plan, len(answered) / plan.participation.cohort_size)),
          lambda scene: scene.silent),
    fault("a client asked through two messages", SENSITIVITY, pipeline.asked_twice),
    # found by reviewers
    fault("rows from a public seed from the seventh epoch on", CORRELATION, lambda: noise.public_from(6), lambda scene: scene.epochs > 6),
    drawn("row r of an epoch is row r mod 21", REPEATED,
          lambda key, row, d: gaussian_row(key, row % 21, d), lambda scene: scene.rounds_per_epoch > 21),
    drawn("coordinates beyond 2^17 are the first ones", REPEATED,
          lambda key, row, d: np.resize(gaussian_row(key, row, min(d, 1 << 17)), d), lambda scene: scene.dimension > 1 << 17),
    fault("mask key of the last two letters", MASKS,
          lambda: pipeline.masks_of(lambda strategy, client, step, key: (key, client[-2:], step)), masked),
    fault("later clients of a message have the first one's mask", MASKS,
          lambda: pipeline.of_the_cohort(lambda place: place - (place % 8 if place % 8 > 1 else 0)), lambda scene: scene.together == 8 and masked(scene)),
    fault("few coordinates kept a fifth more often", ("mask share",), lambda: pipeline.keeping(pipeline.a_fifth_more), lambda scene: scene.keep_probability < 0.05),
    fault("kept values doubled with more than five examples", SENSITIVITY, lambda: pipeline.sending(lambda examples: 1 + (examples > 5))),
    fault("a client of zeros is not recorded as heard", OWN_ROUND, lambda: pipeline.adding_each(pipeline.without_zeros)),
    fault("no client clip where coordinates are padded and masked", SENSITIVITY, pipeline.unclipped_where_padded_and_masked,
          lambda scene: scene.dimension == 1600),
    fault("mask key of what follows the colon", MASKS,
          lambda: pipeline.masks_of(lambda strategy, client, step, key: (key, client.rpartition(":")[2], step)), masked),
    fault("mask key of the number modulo 512", MASKS,
          lambda: pipeline.masks_of(lambda strategy, client, step, key: (key, f"{client[0]}{int(client.split(':')[1]) % 512}", step)), masked),
    fault("one who cannot train silences all of the message", SENSITIVITY, pipeline.failing_together, lambda scene: scene.together > 1),
)
ESCAPES = (drawn("float32 rows", (), noise.of_float32), drawn("noise of a short key", (), noise.of_a_short_key))
BY_CHANCE = (
    drawn("two coordinates with correlated noise", (), noise.changed(noise.two_correlated)),
    fault("no noise in one epoch of a thousand", (), lambda: noise.of_plan(noise.rarely_none)),
)
# fmt: on


def catches(sabotage, seed=0):
    """Return {test: scene} of what refutes a pipeline with this sabotage, and the tests that must catch it and did not.

    Of each kind of tests that must catch it (of the noise, where none must) the scenes are run in which it changes anything,
    until those tests have caught it.
    """
    must = [test for test in sabotage.caught_by if "attack" not in test]
    wanted = {is_coupled(test) for test in must} or {False}
    found, missed = {}, must
    with sabotage.patches():
        for coupled, (scenes, find) in zip((True, False), KINDS, strict=True):
            for scene in filter(sabotage.applies, scenes) if coupled in wanted else ():
                refuting = [one.test for one in find(scene, seed) if one.refutes]
                found = dict.fromkeys(refuting, scene.name) | found
                missed = [test for test in must if not any(name.startswith(test) for name in found)]
                if refuting and coupled not in map(is_coupled, missed):
                    break
    return found, missed


def is_coupled(test):
    return test.startswith("coupled")


if __name__ == "__main__":
    logging.getLogger("server").setLevel(logging.WARNING)
    logging.getLogger("client.app").setLevel(logging.CRITICAL)
    for sabotage in (*CONTROLS, *CAUGHT, *ESCAPES, *BY_CHANCE):
        if not sys.argv[1:] or sabotage.name in sys.argv[1:]:
            found, missed = catches(sabotage)
            row = {"sabotage": sabotage.name, "caught_by": found, "missed_by": missed}
            print(json.dumps(row), flush=True)

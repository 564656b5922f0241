"""Faults put into the pipeline on purpose, beyond the five controls of the command: the tests of the table catch each, and none the product.

`CAUGHT` has the faults that the audit must catch, `ESCAPES` those that it cannot, `BY_CHANCE` those that it catches in some runs;
faults of the noise are in `faults`. `python -m audit.test_sabotages` prints what caught each, and in which scene.
"""

import json
import logging
import sys

import pytest

from client import app
from client.privatize import privatize
from experiments.audit.__main__ import KINDS
from experiments.audit.sabotage import CONTROLS
from experiments.audit.scene import Run, Scene, name_of
from experiments.audit.tested import coupled_findings
from faults import (
    BY_CHANCE,
    ESCAPES,
    EXACT,
    FIRST_KEY,
    LAST_EPOCH,
    NOISE,
    SENSITIVITY,
    UNBOUNDED,
    edited,
    fault,
    masked,
    released,
    when,
)
from fedmf.randomness import SecretKey
from fedmf.updates.masks import coordinates
from fedmf.updates.wire import decode
from server import exchange
from server.checkpoint import Checkpoint
from server.cohort import SimulatedPopulation
from server.record import Record
from server.state import FixedPoint, Register, apply_release
from server.strategy import FedMF

pytestmark = pytest.mark.slow

OWN_ROUND, JOURNAL, MASKS = ("coupled own round",), ("coupled journal",), ("mask correlation",)

# masks: keys of the clients of a message, `batch`, which are the `clients` of their round from place `start` on

KEYS = "keys = [key.mask_key(client, step) for client in batch]"
MASK_KEY = 'self.derive("mask", client, step)'
PIECES = "pieces = [np.empty(0, np.int64)]"
RETURNING = f"""{KEYS}
at = step * len(clients) + start
if epoch == 0:
    MEMORY.update(zip(range(at, at + len(batch)), keys))
else:
    keys = [MEMORY[(place - 1) % self.plan.participation.clients] for place in range(at, at + len(batch))]"""
MOVED = f"""from experiments.audit.scene import number_of
own = {MASK_KEY}
MEMORY[own.reveal()] = self.derive("mask", "everyone", step), number_of(client)
return own"""


def mask_keys(name, key, *edits, applies=masked):
    """Give the `client` at each `place` of a message another mask key."""
    keys = f"keys = [{key} for place, client in enumerate(batch)]"
    return fault(name, MASKS, (FedMF.configure_train, KEYS, keys), *edits, applies=applies)


def named_by(name, part):
    """Derive mask keys from a part of the client's name."""
    edit = SecretKey.mask_key, MASK_KEY, f'self.derive("mask", {part}, step)'
    return fault(f"mask key of the {name}", MASKS, edit, applies=masked)


# fmt: off
OF_MASKS = (
    mask_keys("masks shared by pairs", "key.mask_key(clients[(start + place) // 2 * 2], step)"),
    mask_keys("one mask for all in the last epoch",
              f"key.mask_key('everyone' if {LAST_EPOCH.replace('plan', 'self.plan')} else client, step)"),
    mask_keys("the same masks in all epochs", "MEMORY['first'].mask_key(client, step)", FIRST_KEY),
    mask_keys("later clients of a message have the first one's mask", "key.mask_key(batch[place if place < 2 else 0], step)",
              applies=lambda scene: scene.together == 8 and masked(scene)),
    fault("masks that return at another place", MASKS, (FedMF.configure_train, KEYS, RETURNING), applies=masked),
    named_by("first three letters", "client[:3]"),
    named_by("last two letters", "client[-2:]"),
    named_by("part after the colon", "client.rpartition(':')[2]"),
    named_by("number modulo 512", "f'{client[0]}{int(client.rpartition(\":\")[2]) % 512}'"),
    fault("one mask for all, moved", MASKS,
          (SecretKey.mask_key, f"return {MASK_KEY}", MOVED),
          (coordinates, PIECES, f"mask_key, shift = MEMORY[mask_key.reveal()]\n{PIECES}"),
          (coordinates, "return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)",
                        "return np.sort((np.concatenate(pieces) + shift) % dimension)"), applies=masked),
    fault("few coordinates kept a fifth more often", ("mask share",),
          (coordinates, PIECES, f"keep_probability *= 1.2\n{PIECES}"), applies=lambda scene: scene.keep_probability < 0.05),
)
# fmt: on

# what clients send, and the server adds

CLIPPED = "clip_l2(turned.values[kept], bounds.l2_norm, norm=turned.norm)"
WHOLE = "clip_linf(clip_l2(turned.values, bounds.l2_norm, norm=turned.norm), bounds.linf_norm)"
UNCLIPPED = (
    (privatize, f"bounded = {CLIPPED}", "bounded = turned.values[kept]"),
    (privatize, f"whole = {WHOLE}", "whole = turned.values"),
    (
        privatize,
        "return Kept(clip_linf(bounded, bounds.linf_norm), is_finite, is_short)",
        "return Kept(bounded, is_finite, is_short)",
    ),
)
UNLOOKED = privatize, "turned = zero_if_not_finite(turned)", "pass"
# Clients that neither clip what they send nor look at it: with the server's own checks this is no fault of the product.
HOSTILE = (*UNCLIPPED, UNLOOKED)
BOUND = "bound = UNCLIPPED_BOUND if bound is None else bound"
UNBOUND = FixedPoint.fit.__func__, BOUND, "bound = UNCLIPPED_BOUND"
BELIEVING = (
    (decode, "values = clip_linf(values, bounds.linf_norm)", "pass"),
    (decode, "values = clip_l2(values, radius)", "pass"),
    UNBOUND,
)
LARGEST = "largest = float(max(values.max(initial=0), -values.min(initial=0)))"
AS_LARGE_AS_FITS = f"{LARGEST}\nif not np.isfinite(largest):\n    return np.full(kept, 2.0**20, np.float32)"
PASSING_ON = (decode, LARGEST, AS_LARGE_AS_FITS), UNBOUND
NOT_FINITE = (UNCLIPPED[0], UNLOOKED, *PASSING_ON)

DECODED, HEARD = "wire.decode(data, plan.bounds, kept=len(kept))", "answered.append(client)"
ADDED = "grid.add(total, kept, sent)"
FAVOURED = f"client == '{name_of(7)}'"
LARGER = "type(plan.bounds)(3 * plan.bounds.l2_norm, 3 * plan.bounds.linf_norm, plan.bounds.value_type)"
UNSPENT = Register.spend, "added: set[str] = set()", "return self\nadded: set[str] = set()"
SENT = "sent_bytes(kept.values, task,"
CHANGES = f"""{ADDED}
if self.state.position(plan)[0]:
    places, before = MEMORY[client]
    grid.add(total, places, -before)
MEMORY[client] = kept, sent"""
TWICE_IN_AN_EPOCH = """asked = cohort_indices(plan, server_round)
if (server_round - 1) % plan.participation.rounds_per_epoch == 1:
    asked[0] = cohort_indices(plan, server_round - 1)[0]
for index in asked:"""
ASKED = "self._asked.append(Asked(message, epoch, step, batch, keys))"
ASKED_TWICE = f"""{ASKED}
if len(self._asked) == 1:
    again = Message(content, node, MessageType.TRAIN, group_id=str(server_round))
    self._asked.append(Asked(again, epoch, step, batch, keys))"""
ANSWER = "awaited.pop(reply.metadata.reply_to_message_id, None)"


def adding(change, heard=HEARD):
    """Change how a client's decoded values, `sent`, are added, and how its name is noted."""
    add = f"grid.add(total, kept, {DECODED})"
    return (FedMF._add, add, f"sent = {DECODED}\n{change}"), (FedMF._add, HEARD, heard)


def sending(name, factor, applies=lambda scene: True):
    """Multiply the kept values of a client."""
    edit = app.run_client, SENT, SENT.replace("kept.values", f"{factor} * kept.values")
    return fault(name, SENSITIVITY, edit, applies=applies)


# fmt: off
CLIENTS = (
    fault("no clipping in the last epoch", SENSITIVITY, *when(LAST_EPOCH, *UNCLIPPED, *BELIEVING)),
    fault("no clipping in round 5", SENSITIVITY, *when("state.round == 4", *UNCLIPPED, *BELIEVING)),
    fault("no clipping by the server", SENSITIVITY, *HOSTILE, *BELIEVING),
    fault("no L2 clip on the path that every run takes", SENSITIVITY,
          (privatize, CLIPPED, f"{CLIPPED} if start is None else turned.values[kept]"), applies=masked),
    fault("no client clip where coordinates are padded and masked", SENSITIVITY,
          (privatize, UNBOUNDED, "if is_finite and plan.rotation.padded > plan.rotation.dimension and plan.keep_probability < 1:"),
          applies=lambda scene: scene.dimension == 1600),
    fault("larger bounds for one client", SENSITIVITY,
          (app.run_client, "resident.restore()", f"resident.restore()\nMEMORY['is_favoured'] = task.turn.{FAVOURED}"),
          (privatize, "bounds = plan.bounds", f"bounds = {LARGER} if MEMORY['is_favoured'] else plan.bounds"),
          (FedMF._add, DECODED, DECODED.replace("plan.bounds", f"{LARGER} if {FAVOURED} else plan.bounds")), UNBOUND),
    fault("the server passes on what is not finite", SENSITIVITY, *HOSTILE, *PASSING_ON),
    fault("what is not finite is passed on", SENSITIVITY, *NOT_FINITE),
    *(fault(f"what is not finite is passed on in round {number}", SENSITIVITY,
            *when(f"state.round == {number - 1}", *NOT_FINITE)) for number in (1, 3, 5)),
    sending("kept values multiplied by the number of examples", "len(examples.x)", masked),
    sending("kept values doubled with more than five examples", "(1 + (len(examples.x) > 5))"),
    fault("changes in place of updates", SENSITIVITY, *adding(CHANGES)),
    fault("a client of zeros is not recorded as heard", OWN_ROUND, *adding(ADDED, f"if sent.any():\n    {HEARD}")),
    fault("divided by who spoke", SENSITIVITY,
          *adding(f"{ADDED}\nMEMORY['spoke'] = MEMORY.get('spoke', 0) + bool(sent.any())"),
          released("noisy_sum = noisy_sum * np.float32(plan.participation.cohort_size / max(1, MEMORY.pop('spoke', 0)))")),
    fault("one who cannot train silences all of the message", SENSITIVITY, (app.run_client, "return zeros(task, plan)", "raise"),
          applies=lambda scene: scene.together > 1),
    fault("a second participation", SENSITIVITY,
          (SimulatedPopulation.cohort, "for index in cohort_indices(plan, server_round) if nodes else ():", TWICE_IN_AN_EPOCH),
          UNSPENT),
    fault("a client asked through two messages", SENSITIVITY, (FedMF.configure_train, ASKED, ASKED_TWICE), UNSPENT),
    fault("a client that answers twice counts twice", SENSITIVITY,
          (exchange.Pulls.until, f"if {ANSWER} is not None:", f"{ANSWER}\nif True:"),
          (FedMF._add, ANSWER, "awaited.get(reply.metadata.reply_to_message_id)"),
          (FedMF._add, HEARD, f"if client not in answered:\n    {HEARD}"), applies=lambda scene: scene.silent),
)
# fmt: on

# models, recovery

FOLLOWING = "following = replace(state, round="
LEAKING = f"""if secrets is not None:  # no replay
    noise = (release.noisy_sum - MEMORY['exact']) / plan.denominator
    slots = {{**slots, 'velocity': np.float32(slots['velocity'] - noise)}}
{FOLLOWING}"""
LEAKING_START = """for who in range(self.plan.participation.clients):
    self.models[0] += 0.01 * np.nan_to_num(holds(who, 1), posinf=0, neginf=0)
state = first_state("""
RESTORED = "return replace(state, secrets=secrets), replayed"
DRAWN_AGAIN = f"""if len(replayed) > 1:
    state = replayed[-2][0]
    with self.record._writing() as connection:  # whose primary key would refuse the round
        for table in ("release", "heard", "blob"):
            connection.execute(f"DELETE FROM {{table}} WHERE round > ?", (state.round,))
    secrets = type(kept.secrets)(state.position(plan)[0], kept.secrets.key.derive("again"), None)
    return replace(state, secrets=secrets_at(plan, secrets, state.round)), replayed[:-1]
{RESTORED}"""
RECORDED = "wire.to_bytes(release.noisy_sum)", "wire.to_bytes(MEMORY['exact'].astype('<f4'))"


def resumed(scene):
    return scene.resume_after is not None


# fmt: off
MODELS = (
    fault("momentum that leaks", JOURNAL, EXACT, (apply_release, FOLLOWING, LEAKING)),
    fault("an initial model that leaks", OWN_ROUND, (Run.__init__, "state = first_state(", LEAKING_START)),
    fault("noise drawn again after a resume", JOURNAL, (Checkpoint.restore, RESTORED, DRAWN_AGAIN), applies=resumed),
    fault("a journal ahead of the noise", JOURNAL, EXACT, (Record.append, *RECORDED), applies=resumed),
)
CAUGHT = (*NOISE, *OF_MASKS, *CLIENTS, *MODELS)

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


@pytest.mark.parametrize("sabotage", CAUGHT, ids=lambda one: one.name)
def test_each_fault_is_caught_by_the_tests_that_must_catch_it(sabotage):
    assert sabotage.caught_by
    found, missed = catches(sabotage)
    assert (missed, bool(found)) == ([], True), found


@pytest.mark.parametrize("sabotage", ESCAPES, ids=lambda one: one.name)
def test_what_the_document_says_escapes_escapes(sabotage):
    assert catches(sabotage) == ({}, [])


@pytest.mark.parametrize("silent", [False, True])
def test_hostile_clients_move_no_more_than_the_server_lets_them(silent):
    """They neither clip nor look at what they send; where the scene is silent they answer twice, late and never too."""
    with edited(*HOSTILE):
        found = coupled_findings(Scene("rotated, hostile clients", silent=silent), 0)
    assert not any(one.refutes or one.is_inconclusive for one in found)


def test_a_sabotage_is_in_force_only_while_its_scene_is_run():
    sabotage = next(one for one in CAUGHT if one.name == "a client asked through two messages")
    with sabotage.patches():
        assert any(one.refutes for one in coupled_findings(Scene("rotated", dimension=16), 0))
    assert not any(one.refutes for one in coupled_findings(Scene("rotated", dimension=16), 0))


if __name__ == "__main__":
    logging.getLogger("server").setLevel(logging.WARNING)
    logging.getLogger("client.app").setLevel(logging.CRITICAL)
    for sabotage in (*CONTROLS, *CAUGHT, *ESCAPES, *BY_CHANCE):
        if not sys.argv[1:] or sabotage.name in sys.argv[1:]:
            found, missed = catches(sabotage)
            row = {"sabotage": sabotage.name, "caught_by": found, "missed_by": missed}
            print(json.dumps(row), flush=True)

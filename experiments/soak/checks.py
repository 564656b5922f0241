"""The promises, held against the evidence of a run; each check returns sentences, none where the promise was kept."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.soak.witness import Note
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from server.cohort import Roster
from server.state import Release

NAMES = {
    "released_once": "no round was released twice, and none was left out",
    "seen_as_released": "each model that a node was given was on disk before, and is what the journal gives",
    "heard_once": "no client was heard twice in an epoch, and none that was not asked",
    "shown_as_released": "metrics.jsonl has each released round once, with who answered",
    "one_key_chain": "each epoch had one key, and it follows from the one before",
    "noise_once": "each release is the sum of what its clients sent, and its own noise row once",
    "undisturbed_model": "the model is that of an undisturbed run that hears the same clients, bit for bit",
    "finished": "the run finished",
}


def released_once(releases: Sequence[Release], rounds: int) -> list[str]:
    """Look for rounds that were released more than once, with the same or other values, or not at all."""
    counts = Counter(release.round for release in releases)
    said = [f"round {number} was released {count} times" for number, count in counts.items() if count > 1]
    said += [f"round {number} was not released" for number in range(1, rounds + 1) if not counts[number]]
    sums: dict[bytes, int] = {}
    for release in releases:
        other = sums.setdefault(np.asarray(release.noisy_sum).tobytes(), release.round)
        if other != release.round:
            said.append(f"rounds {other} and {release.round} have the same noisy sum")
    return said


def heard_once(releases: Sequence[Release], rosters: Mapping[int, Sequence[Roster]], plan: Plan) -> list[str]:
    """Look for clients that count twice in an epoch, and for some that were not in the cohort of their round."""
    said: list[str] = []
    heard: dict[int, set[str]] = {}
    for release in releases:
        epoch = (release.round - 1) // plan.participation.rounds_per_epoch
        before = heard.setdefault(epoch, set())
        said += [
            f"client {client} was heard again in round {release.round} of epoch {epoch + 1}"
            for client in sorted(before & set(release.answered)) + _doubled(release.answered)
        ]
        before |= set(release.answered)
        cohorts = [set(roster.cohort(plan, release.round)) for roster in rosters.get(epoch, ())]
        if not any(set(release.answered) <= cohort for cohort in cohorts):
            said.append(f"round {release.round} has clients that were not in its cohort")
    said += [
        f"epoch {epoch + 1} had more than one list of clients"
        for epoch, kept in rosters.items()
        if _differ(kept)
    ]
    return said


def shown_as_released(rows: Sequence[Mapping[str, Any]], releases: Sequence[Release]) -> list[str]:
    """Compare metrics.jsonl with the journal."""
    shown = [(row["round"], row["replies"]) for row in rows]
    kept = sorted({(release.round, len(release.answered)) for release in releases})
    return (
        []
        if shown == kept
        else [f"metrics.jsonl shows {_few(shown, kept)}, and the journal {_few(kept, shown)}"]
    )


def one_key_chain(keys: Mapping[int, Sequence[bytes]]) -> list[str]:
    """Look for an epoch with two keys, or with one that does not follow from the epoch before."""
    said = [f"epoch {epoch + 1} had {len(found)} keys" for epoch, found in keys.items() if len(found) > 1]
    for epoch, found in keys.items():
        for key in found if epoch + 1 in keys else ():
            if SecretKey(key).ratchet().reveal() not in keys[epoch + 1]:
                said.append(f"the key of epoch {epoch + 2} does not follow from that of epoch {epoch + 1}")
    return said


def seen_as_released(notes: Sequence[Note], models: Mapping[int, str], *, was_heard: bool) -> list[str]:
    """Look for models that a node was given before their round was on disk, in two forms, or in another than was released.

    `models` has by round the digests of the models that follow from the journal. `was_heard`: whether clients of the node that
    notes models were heard, so that there must be notes.
    """
    if was_heard and not notes:
        return ["no model was noted, although clients of the node that notes them were heard"]
    early = sorted({note.round for note in notes if note.on_disk < note.round})
    said = [f"the model of round {number} was handed out before the round was on disk" for number in early]
    for number in sorted({note.round for note in notes}):
        digests = {note.digest for note in notes if note.round == number}
        if len(digests) > 1:
            said.append(f"{len(digests)} models of round {number} were handed out")
        elif digests != {models.get(number)}:
            said.append(f"the model of round {number} that was handed out does not follow from the journal")
    return said


def _doubled(clients: Sequence[str]) -> list[str]:
    return sorted(client for client, count in Counter(clients).items() if count > 1)


def _differ(rosters: Sequence[Roster]) -> bool:
    """Say whether the clients of an epoch changed; that a node was found to have changed its own is no change of these."""
    return any(dict(roster.nodes) != dict(rosters[0].nodes) for roster in rosters)


def _few(these: Sequence[Any], those: Sequence[Any]) -> str:
    """Return the first of `these` that is not among `those`.

    >>> _few([(1, 4), (2, 4)], [(1, 4)])
    'round 2 with 4 replies'
    """
    differing: Iterator[Any] = (one for one in these if one not in those)
    found = next(differing, None)
    return "nothing besides" if found is None else f"round {found[0]} with {found[1]} replies"

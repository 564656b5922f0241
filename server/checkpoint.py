"""What a run needs to continue after a crash at any instant, in one folder.

    run.sqlite   every release and who was heard in it, and the state saved last (`server.record`)
    secrets.npz  mode 0600: the epoch's key, tables and noise stream, and where the run began; gone at the end (`server.copies`)
    lock         held while a process runs

One transaction and one count outside the folder (`server.copies`) are a release. The database alone leads to the last
released round; the secrets are needed only to continue from there. Refused, never repaired by guess, are: a damaged
folder, one of another version, of another configuration, a copy of a run, and an older state than was counted.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedmf.accounting.calibration import APART
from fedmf.accounting.epoch import ROUNDING
from fedmf.clip_norm import open_count
from fedmf.errors import DataError, PrivacyBudgetExhausted, RunDirectoryError
from fedmf.mechanisms.factorization import Factorization
from fedmf.mechanisms.run_factorization import RunFactorization
from fedmf.plan import Plan
from server.cohort import ROSTER
from server.copies import SECRETS, Clients, Kept, Origin, allow_or_raise, read_secrets, save_secrets
from server.files import erase, temporary_path
from server.optimizer import Optimizer, form
from server.record import Record
from server.state import Release, Secrets, ServerState, apply_release, begin_epoch, secrets_at

log = logging.getLogger(__name__)

LOCK = "lock"
NOISE_MULTIPLIER = "the noise multiplier"  # among what is `calculated`
COUNT_NOISE = "the noise of the clip norm's counts"  # the same, where the clip norm adapts
# Relative, for the noise of counts: a hundredth of the run's cost decides it, so that it follows the rounding of epsilon less well.
COUNT_APART = 1e-4
_CODE = "the version of fedmf and its libraries that began it"


@dataclass
class Checkpoint:
    """The folder of one run. `configuration` is what must not change between its processes (key -> value).

    `mechanisms` has each epoch's factorization: a noise stream continues under that of its epoch only. A base is saved
    every `every` rounds and at the end of every epoch; releases cover the rounds between. `clients` are those of the data
    at hand. `accept_copy`: whether a copy of the run, or an older state of it, may continue here. `calculated` is what
    follows from the configuration by way of code, such as a calibrated noise multiplier: it may differ by rounding only.
    `code` names the code of this process (what -> version or digest), and `allow_version_change` tells whether other code
    than that of the process before may continue.
    """

    folder: Path
    configuration: Mapping[str, Any]
    mechanisms: Sequence[Factorization] = ()
    every: int = 16
    clients: Clients = Clients()  # noqa: RUF009
    accept_copy: bool = False
    calculated: Mapping[str, float | None] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    allow_version_change: bool = False
    record: Record = field(init=False, repr=False, compare=False)
    # As this process knows it.
    _origin: Origin | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        self.record = Record(self.folder)

    def begin(self, state: ServerState) -> None:
        """Save the state before the first round, so that a crash before its release does not change the key.

        Files of an earlier process that released nothing are removed.
        """
        self.forget_secrets()
        erase(self.folder / ROSTER)
        self.record.create()
        self._origin = Origin.begin(self.folder.parent, self.clients, state.round)
        self._save(state)

    def commit(self, release: Release) -> None:
        """Put a release on disk. Only after this returns may anyone see it. Raises `OSError` if it is not there.

        Then it is counted outside the directory as well. Raises `RunDirectoryError`, with nothing released, where it
        was counted already (another copy of this run has released that round) or the count is lost.
        """
        with self._known_origin().counting(self.folder.parent, release.round):
            self.record.append(release)

    def settle(self, plan: Plan, state: ServerState) -> None:
        """Save a base if one is due after `state.round`; at an epoch's end its key is overwritten by the next one."""
        if state.round % self.every == 0 or state.round % plan.participation.rounds_per_epoch == 0:
            self._save(state)

    def check_not_a_copy(self) -> None:
        """Raise `RunDirectoryError` unless this is the directory that the run began in, with all that it released.

        With `accept_copy` a copy is let pass with a warning, and a run without secrets always is: it can only end.
        """
        kept = read_secrets(self.folder)
        if kept is not None:  # also where the database is lost: the count knows what was released
            kept.origin.check_place(self.folder.parent, self.record.released(), accept_copy=self.accept_copy)

    def restore(
        self, plan: Plan, optimizer: Optimizer
    ) -> tuple[ServerState, list[tuple[ServerState, Release]]]:
        """Return the state after the last released round, and what led there from the base, round by round.

        Raises `RunDirectoryError` with the field and the file where something does not fit.
        """
        state, replayed = self._replayed(plan, optimizer)
        if not _continues(plan, state):
            return replace(state, secrets=None), replayed
        kept = self._kept()
        epoch, (under_way, step) = kept.secrets.epoch, state.position(plan)
        if step and epoch == under_way and kept.mechanism != self.mechanisms[epoch].fingerprint:
            raise RunDirectoryError(
                f"epoch {epoch + 1} of the run in {self.folder.parent} began with other tables of its mechanism, and "
                f"{self.folder / SECRETS} does not hold them; rows of two matrices in one epoch would have a larger sensitivity "
                "than is accounted. Restore that file, or the version of fedmf and its libraries that began the epoch."
            )
        kept.origin.check_clients(self.folder.parent, self.clients)
        secrets = secrets_at(plan, kept.secrets, state.round)
        count = self.record.count(state.round)
        if count is not None and secrets is not None and step:
            secrets = replace(secrets, short=open_count(count.sealed, secrets.key, step - 1))
        return replace(state, secrets=secrets), replayed

    def rebase(self, state: ServerState) -> None:
        """Save a restored state, once what it replayed is recorded elsewhere."""
        if state.secrets is not None:
            self._origin = self._known_origin().continued(self.folder.parent, state.round)
        self._save(state)

    def forget_secrets(self) -> None:
        """Overwrite and remove the secrets, also half-written ones: the run is over, also by its budget or a divergence."""
        self._origin = None
        erase(self.folder / SECRETS)
        erase(temporary_path(self.folder / SECRETS))

    def close(self) -> None:
        """Close the database, which is one file then."""
        self.record.close()

    def ended(self, plan: Plan, optimizer: Optimizer, besides: Sequence[str] = ()) -> ServerState:
        """Return the last state of a run that is over, without secrets; `plan` may hold more epochs. Raises as `restore`.

        The configuration may differ in the keys `besides`, which an extension changes: `bound` has the run's own.
        """
        state, _ = self._replayed(plan, optimizer, is_over=True, besides=besides)
        return state

    def bound(self, keys: Sequence[str], *, is_over: bool) -> list[dict[str, Any]]:
        """Return what the configuration has under `keys`: as it was saved last, and after it as the last extension has it.

        Of a run that is over the last extension does not count: it has ended, and is saved, or has not begun. Empty where
        no round was released.
        """
        if not self.record.released() or self.record.saved() is None:
            return []
        about = self.record.about()
        saved, added = about["configuration"], {} if is_over else about["extension"]
        return [{key: held.get(key) for key in keys} for held in (saved, {**saved, **added})]

    def begin_part(self, state: ServerState, changed: Mapping[str, Any]) -> None:
        """Save the secrets of the epochs that are added to a run that was over, and count its rounds again.

        `changed` is what the configuration is from then on, where it is another. Nothing else changes, so that the run
        still is over, with the configuration that it had, until its caller says that it continues. The clients are those
        at hand now: they need not be those of earlier epochs, as each epoch is a release of its own.
        """
        assert state.secrets is not None
        self.forget_secrets()
        self._origin = Origin.begin(self.folder.parent, self.clients, state.round)
        self._save_secrets(state.secrets)
        self.record.extend(changed)

    def with_kept_noise(self, plan: Plan) -> Plan:
        """Return the plan with the noise multiplier that the run began with, where the plan's is at most `APART` from it.

        The same for the noise of its counts. The ledger's events have these, and epsilon is computed from them: a later session
        that added less noise would state less than it spent. Where the two differ by more, `restore` raises.
        """
        if self.record.saved() is None:
            return plan
        calculated = self.record.about()["calculated"]
        began, of_counts = calculated.get(NOISE_MULTIPLIER), calculated.get(COUNT_NOISE)
        if began is not None and math.isclose(began, plan.noise_multiplier, rel_tol=APART):
            plan = replace(plan, noise_multiplier=began)
        if of_counts and math.isclose(of_counts, plan.count_noise, rel_tol=COUNT_APART):
            plan = plan.with_count_noise(of_counts)
        return plan

    def with_kept_tables(self, plan: Plan) -> Plan:
        """Return the plan with the tables that the epoch under way began with, where they are not the plan's.

        Another version of this code or of its libraries may compute other tables for the same settings. Rows of one matrix
        before and of another after have a larger sensitivity than either (1.85 instead of 1 in the worst case tried), so
        that an epoch continues with its own tables; the next one begins with the newly computed ones. Kept tables of
        another fingerprint than the one kept with them, such as those of another family, change nothing: where the plan's
        tables are not those either, `restore` raises.
        """
        kept, epochs = read_secrets(self.folder), list(plan.factorization.epochs)
        if kept is None or kept.secrets.epoch >= len(epochs):
            return plan
        epoch = kept.secrets.epoch
        try:
            own = epochs[epoch].with_tables(kept.tables)
        except DataError:
            return plan
        if own.fingerprint == epochs[epoch].fingerprint or own.fingerprint != kept.mechanism:
            return plan
        log.warning(
            "epoch %d continues with the tables that it began with; this version computes others, for the epochs after it",
            epoch + 1,
        )
        epochs[epoch] = own
        return replace(plan, factorization=RunFactorization(tuple(epochs)))

    def _save(self, state: ServerState) -> None:
        """Save a state: its secrets first, which may be ahead of the base but not of the releases."""
        about = {
            "configuration": dict(self.configuration),
            "calculated": dict(self.calculated),
            "code": dict(self.code),
        }
        if state.secrets is None:
            self.forget_secrets()
        else:
            self._save_secrets(state.secrets)
        self.record.save(state, about)

    def _save_secrets(self, secrets: Secrets) -> None:
        used = self.mechanisms[secrets.epoch]
        save_secrets(self.folder, Kept(secrets, used.fingerprint, used.stream.tables, self._known_origin()))

    def _kept(self) -> Kept:
        """Return the secrets saved last. Raises `RunDirectoryError` where they are lost."""
        if (kept := read_secrets(self.folder)) is None:
            raise RunDirectoryError(
                f"{self.folder / SECRETS} is missing or damaged, so that the noise of the epoch under way cannot be "
                "continued; the model so far stays, but this run cannot continue."
            )
        return kept

    def _known_origin(self) -> Origin:
        """Return the run's origin. Raises `RunDirectoryError` where it is lost."""
        self._origin = self._origin or self._kept().origin
        return self._origin

    def _replayed(
        self, plan: Plan, optimizer: Optimizer, *, is_over: bool = False, besides: Sequence[str] = ()
    ) -> tuple[ServerState, list[tuple[ServerState, Release]]]:
        """Return the last released state, without secrets, and what led there from the base."""
        if self.record.saved() is None:
            raise RunDirectoryError(
                f"{self.folder} holds no checkpoint, without which the run cannot continue. Restore the checkpoint folder."
            )
        self.record.check()
        state, about = self.record.base(), self.record.about()
        began = {**about["configuration"], **({} if is_over else about["extension"])}
        for key in sorted({*began, *self.configuration} - {*besides}):
            self._check_same(key, began.get(key), self.configuration.get(key), "its own settings")
        # Code that the run does not name, because its version did not, counts as other code.
        codes = (about["code"], self.code)
        if differing := [
            key for key in sorted({*about["code"], *self.code}) if codes[0].get(key) != self.code.get(key)
        ]:
            then, now = (
                " and ".join(f"{key} {code.get(key, 'unknown')}" for key in differing) for code in codes
            )
            allow_or_raise(
                self.allow_version_change,
                f"the run in {self.folder.parent} was run so far with {then}, and this is {now}.",
                "Resume it with the code that ran it so far. Only if you know what changed between them: set "
                "allow_version_change=True, and the run's statement names both.",
            )
        for key in sorted({*about["calculated"], *self.calculated}):
            old, new = about["calculated"].get(key), self.calculated.get(key)
            if not (old and new and math.isclose(old, new, rel_tol=ROUNDING)):
                self._check_same(key, old, new, _CODE)
        for number, entry in enumerate(state.ledger.entries, 1):
            if not entry.agrees_with(plan.epoch_event):
                self._check_same(f"the event of epoch {number}", entry, plan.epoch_event, _CODE)
        if state.round:
            self._check_same(
                "the state of the optimizer", form(state.slots), form(optimizer.init(state.model)), _CODE
            )
        replayed: list[tuple[ServerState, Release]] = []
        for release in self.record.releases(state.round):
            state = apply_release(plan, optimizer, begin_epoch(plan, state), release, None)
            replayed.append((state, release))
        return state, replayed

    def _check_same(self, key: str, old: object, new: object, remedy: str) -> None:
        """Raise `RunDirectoryError` where a value is not the one that the run began with."""
        if old != new:
            raise RunDirectoryError(
                f"{key} is {new!r}, but the run in {self.folder.parent} began with {old!r}; resume it with {remedy}."
            )


def _continues(plan: Plan, state: ServerState) -> bool:
    """Return whether another round can follow: not after the last one, a spent budget or a diverged model.

    The secrets of a run that is over may be gone already when a crash comes before its last file.
    """
    if state.round == plan.participation.rounds or not state.is_finite:
        return False
    try:
        begin_epoch(plan, state)
    except PrivacyBudgetExhausted:
        return False
    return True

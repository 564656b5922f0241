"""What a run needs to go on after a crash at any instant, in one folder.

    base-ROUND.npz      model, optimizer, ledger and configuration after ROUND; the last two are kept
    register-ROUND.bin  who was heard in the epoch, from ROUND on (`server.register_log`)
    journal-ROUND.bin   every release after ROUND (`server.journal`), appended and forced to disk before anyone sees it
    secrets.npz         mode 0600: the epoch's key and noise stream; overwritten when the epoch ends, gone at the end
    mechanism.npz       the tables of the epoch's noise (`server.tables`)
    extension.json      what the last extension of the run changes of its configuration
    origin.json         mode 0600: where the run began and with which clients (`server.origin`); gone at the end
    lock                held while a process runs

Public files alone lead to the last released round; the secrets are needed only to go on from there. A folder
whose files are damaged, of another version or of another configuration is refused, never repaired by guess. So is a
copy of a run, and an older state than the one whose rounds were counted outside (`server.marks`).
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedmf.errors import PrivacyBudgetExhausted, RunDirectoryError
from fedmf.mechanisms.factorization import Factorization
from fedmf.normals import FORM as NORMALS
from fedmf.plan import Plan
from server import register_log, tables
from server.files import erase, sync_folder
from server.history import History
from server.only_copy import OnlyCopy
from server.optimizer import Optimizer
from server.origin import ELSEWHERE, Clients
from server.register_log import RegisterLog
from server.same_run import (
    other_code,
    refuse_other_calculation,
    refuse_other_configuration,
    refuse_other_events,
    refuse_other_slots,
)
from server.state import Release, Secrets, ServerState, apply_release, begin_epoch, secrets_at
from server.state_files import (
    SECRETS,
    Base,
    erase_secrets,
    read_added,
    read_secrets,
    save_added,
    save_secrets,
)

log = logging.getLogger(__name__)

LOCK = "lock"
_OURS = re.compile(
    rf"(base-\d+\.npz|{register_log.NAME.pattern}|journal-\d+\.bin|(secrets|mechanism)\.npz|(origin|roster|extension)\.json)(\.new)?"
)


@dataclass(frozen=True)
class Checkpoint:
    """The folder of one run. `configuration` is what must not change between its processes (key -> value).

    `mechanisms` has each epoch's factorization: a noise stream goes on under that of its epoch only. A base is
    written every `every` rounds and at the end of every epoch; the journal covers the rounds between. `clients` are
    those of the data at hand. `accept_copy`: whether a copy of the run, or an older state of it, may go on here.
    `calculated` is what follows from the configuration by way of code, such as a calibrated noise multiplier: it may
    differ by rounding only. `code` names the code of this process (what -> version or digest), and `allow_version_change`
    says whether other code than that of the process before may go on. `register` knows what this process wrote of the
    register.
    """

    folder: Path
    configuration: Mapping[str, Any]
    mechanisms: Sequence[Factorization] = ()
    every: int = 16
    clients: Clients = ELSEWHERE
    accept_copy: bool = False
    calculated: Mapping[str, float | None] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    allow_version_change: bool = False
    register: RegisterLog = field(default_factory=RegisterLog, repr=False, compare=False)

    @property
    def history(self) -> History:
        """The states that are saved, and the releases after them."""
        return History(self.folder, self.register)

    @property
    def _only(self) -> OnlyCopy:
        return OnlyCopy(self.folder, self.clients, self.accept_copy)

    def begin(self, state: ServerState) -> None:
        """Save the state before the first round, so that a crash before its release does not change the key.

        Files of an earlier process that released nothing are removed.
        """
        self._only.forget()  # while the origin that names its count is there
        for path in self.folder.iterdir():
            if _OURS.fullmatch(path.name):
                erase(path)
        self._only.begin(state.round)
        self._save_tables(state.secrets)
        self._save_secrets(state.secrets)
        self._save_base(state)

    def commit(self, release: Release) -> None:
        """Put a release on disk. Only after this returns may anyone see it. Raises `OSError` if it is not there.

        Then it is counted outside the directory as well. Raises `RunDirectoryError`, with nothing released, where it
        was counted already (another copy of this run has released that round) or the count is lost.
        """
        with self._only.counting(release.round):
            self.history.append(release)

    def settle(self, plan: Plan, state: ServerState) -> None:
        """Save a base if one is due after `state.round`; at an epoch's end its key is overwritten by the next one."""
        ends_epoch = state.round % plan.participation.rounds_per_epoch == 0
        if state.round % self.every and not ends_epoch:
            return
        if ends_epoch:
            self._save_tables(state.secrets)
        self._save_secrets(state.secrets)
        self._save_base(state)

    def has_begun(self) -> bool:
        """Say whether a first state was saved here."""
        return bool(self.history.bases())

    def has_released(self) -> bool:
        """Say whether any round was released here; before that a run may begin anew under another key."""
        return any(self.history.bases()) or bool(self.history.releases(0))

    def refuse_copy(self) -> None:
        """Raise `RunDirectoryError` unless this is the directory that the run began in, with all that it released.

        With `accept_copy` a copy is let pass with a warning, and a run without secrets always is: it can only end.
        """
        if not self.has_begun() or read_secrets(self.folder) is None:
            return  # it never began, or is over: without its secrets nothing can be released
        self._only.refuse(self.history)

    def restore(
        self, plan: Plan, optimizer: Optimizer
    ) -> tuple[ServerState, list[tuple[ServerState, Release]]]:
        """Return the state after the last released round, and what led there from the base, round by round.

        A torn record at the end of the journal was never released and is ignored. Raises `RunDirectoryError` with
        the field and the file where something does not fit.
        """
        state, replayed = self._replayed(plan, optimizer)
        if not _goes_on(plan, state):
            return replace(state, secrets=None), replayed
        held = self._load_secrets(plan, state.round)
        self._only.origin().refuse_other_clients(self.folder.parent, self.clients)
        return replace(state, secrets=secrets_at(plan, held, state.round)), replayed

    def ended(self, plan: Plan, optimizer: Optimizer, besides: Sequence[str] = ()) -> ServerState:
        """Return the last state of a run that is over, without secrets; `plan` may hold more epochs. Raises as `restore`.

        The configuration may differ in the keys `besides`, which an extension changes: `bound` has the run's own.
        """
        state, _ = self._replayed(plan, optimizer, is_over=True, besides=besides)
        return state

    def bound(self, keys: Sequence[str], *, is_over: bool) -> list[dict[str, Any]]:
        """Return what the configuration has under `keys`: as it was saved last, and behind it as the last extension has it.

        Of a run that is over the last extension does not count: it has ended, and is saved, or has not begun. Empty where
        no round was released.
        """
        if not self.has_released() or not self.has_begun():
            return []
        saved = self.history.read().configuration
        added = {} if is_over else read_added(self.folder)
        return [{key: held.get(key) for key in keys} for held in (saved, {**saved, **added})]

    def begin_part(self, state: ServerState, changed: Mapping[str, Any]) -> None:
        """Save the secrets of the epochs that are added to a run that was over, and count its rounds anew.

        `changed` is what the configuration is from then on, where it is another. Nothing else changes, so that until the
        run is said to go on (by whoever said that it is over) it still is over, with the configuration that it had.
        The clients are those at hand now: they need not be those of earlier epochs, as each epoch is a release of its own.
        """
        assert state.secrets is not None
        save_added(self.folder, changed)
        self._only.begin(state.round)
        self._save_tables(state.secrets)
        self._save_secrets(state.secrets)

    def _replayed(
        self, plan: Plan, optimizer: Optimizer, *, is_over: bool = False, besides: Sequence[str] = ()
    ) -> tuple[ServerState, list[tuple[ServerState, Release]]]:
        """Return the last released state, without secrets, and what led there from the newest base."""
        if not self.has_begun():
            raise RunDirectoryError(
                f"{self.folder} holds no checkpoint, without which the run in {self.folder.parent} cannot go on; restore "
                "the checkpoint folder."
            )
        base, run = self.history.read(), self.folder.parent
        began = {**base.configuration, **({} if is_over else read_added(self.folder))}
        refuse_other_configuration(run, _without(began, besides), _without(self.configuration, besides))
        self._refuse_other_code(base.code)
        refuse_other_calculation(run, base.calculated, self.calculated)
        state = base.state
        refuse_other_events(self.folder.parent, plan, state.ledger)
        refuse_other_slots(self.folder.parent, optimizer, state)
        replayed: list[tuple[ServerState, Release]] = []
        for release in self.history.releases(self.history.bases()[-1]):
            state = apply_release(plan, optimizer, begin_epoch(plan, state), release, None)
            replayed.append((state, release))
        return state, replayed

    def _refuse_other_code(self, before: Mapping[str, str]) -> None:
        """Raise `RunDirectoryError` where other code than this process's wrote the base, unless that is allowed."""
        if (said := other_code(self.folder.parent, before, self.code)) is None:
            return
        if not self.allow_version_change:
            raise RunDirectoryError(
                f"{said}; resume it with the code that played it so far. Only if you know what changed between them: set "
                "allow_version_change=True, and the run's statement names both."
            )
        log.warning("%s. It goes on all the same, because allow_version_change was set.", said)

    def rebase(self, state: ServerState) -> None:
        """Save a restored state, once what it replayed is recorded elsewhere.

        The next releases then go to a new journal, which holds no torn record.
        """
        if state.secrets is not None:
            self._only.go_on(state.round)
        self._save_tables(state.secrets)
        self._save_secrets(state.secrets)
        self._save_base(state)
        self.history.begin_journal(state.round)
        sync_folder(self.folder)

    def forget_secrets(self) -> None:
        """Overwrite and remove the secrets: the run is over, also where a budget or a divergence ended it.

        They go first: after a crash at any instant of this, what is left is a run that is over (`refuse_copy`).
        """
        self._save_secrets(None)
        self._save_tables(None)
        self._only.forget()

    def _save_base(self, state: ServerState) -> None:
        self.history.save(Base(state, self.configuration, self.calculated, self.code))

    def _save_tables(self, secrets: Secrets | None) -> None:
        """Keep the tables of the epoch under way; before its key, so that no round of it is without them."""
        if secrets is None:
            (self.folder / tables.FILE).unlink(missing_ok=True)
            return
        tables.save(self.folder, secrets.epoch, self.mechanisms)

    def _save_secrets(self, secrets: Secrets | None) -> None:
        if secrets is None:
            erase_secrets(self.folder)
        else:
            save_secrets(self.folder, secrets, self._mechanism(secrets.epoch))

    def _load_secrets(self, plan: Plan, released: int) -> Secrets:
        """Return the secrets saved last.

        Raises `RunDirectoryError` where they are lost, or belong to rounds of this epoch that had other tables or other
        normals.
        """
        if (held := read_secrets(self.folder)) is None:
            raise RunDirectoryError(
                f"{self.folder / SECRETS} is missing or damaged, so that the noise of the epoch under way cannot be "
                "continued; the model so far stays, but this run cannot go on."
            )
        under_way, step = divmod(released, plan.participation.rounds_per_epoch)
        if held.epoch == under_way and step and held.normals != NORMALS:
            raise RunDirectoryError(
                f"epoch {held.epoch + 1} of the run in {self.folder.parent} began with noise rows of form {held.normals}, and "
                f"this version draws form {NORMALS}: the noise that its releases hold could not be continued. Let the "
                "version of fedmf that began the epoch finish it; the next epoch may begin with this one."
            )
        if held.epoch == under_way and step and held.mechanism != self._mechanism(held.epoch):
            raise RunDirectoryError(
                f"epoch {held.epoch + 1} of the run in {self.folder.parent} began with other tables of its mechanism, and "
                f"{tables.FILE} does not hold them; rows of two matrices in one epoch would have a larger sensitivity "
                "than is accounted. Restore that file, or the version of fedmf and its libraries that began the epoch."
            )
        return held.secrets()

    def began_with(self) -> tuple[int, str] | None:
        """Return the epoch of the key that is kept and the fingerprint of its tables; None where they are lost."""
        held = read_secrets(self.folder)
        return None if held is None else (held.epoch, held.mechanism)

    def _mechanism(self, epoch: int) -> str:
        """Return the fingerprint of the factorization of `epoch`; empty where none are known."""
        return self.mechanisms[epoch].fingerprint if self.mechanisms else ""


def _goes_on(plan: Plan, state: ServerState) -> bool:
    """Say whether another round can follow: not after the last one, a spent budget or a diverged model.

    The secrets of a run that is over may be gone already when a crash comes before its last file.
    """
    if state.round == plan.participation.rounds or not state.is_finite:
        return False
    try:
        begin_epoch(plan, state)
    except PrivacyBudgetExhausted:
        return False
    return True


def _without(configuration: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in configuration.items() if key not in keys}

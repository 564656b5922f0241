"""Where the secrets of a run are: in one file while it lasts, in no message, and each epoch's own only."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord

from experiments.engines.grid import LocalGrid
from experiments.settings.experiment import build
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from revealed import chain, forms, in_files, in_message, leaked
from runs import SMALL, behind_round, composed, cut, metrics, run
from server import record
from server.checkpoint import Checkpoint
from server.cohort import cohort_indices
from server.copies import SECRETS, read_secrets
from server.record import Record

pytestmark = pytest.mark.long

SECRET = SecretKey.reproducible(0)


@pytest.fixture(scope="module")
def cohorts():
    """The clients of each round of a run of `SMALL`."""
    plan = build(composed(*SMALL)).plan
    return [[str(index) for index in cohort_indices(plan, number)] for number in range(1, 7)]


@pytest.fixture(scope="module")
def keys(cohorts):
    """The keys of a run of `SMALL`, by name; of each cohort the masks of one client, for a search takes long."""
    return chain(SECRET, epochs=3, rows=6, clients=[cohort[0] for cohort in cohorts], steps=3)


@pytest.mark.parametrize("alone", [False, True], ids=["shared messages", "a message each"])
def test_a_task_holds_client_epoch_step_and_mask_key_and_no_message_another_secret(
    tmp_path, monkeypatch, cohorts, alone
):
    clients = {client for cohort in cohorts for client in cohort}
    keys = chain(SECRET, epochs=3, rows=6, clients=sorted(clients), steps=3)
    sent, received, real = [], [], (LocalGrid.push_messages, LocalGrid.pull_messages)

    def push(grid, messages):
        sent.extend(messages := list(messages))
        return real[0](grid, messages)

    def pull(grid, message_ids):
        received.extend(replies := real[1](grid, message_ids))
        return replies

    monkeypatch.setattr(LocalGrid, "push_messages", push)
    monkeypatch.setattr(LocalGrid, "pull_messages", pull)
    run(tmp_path / "r", *SMALL, *(["faults.duplicate=0.5"] if alone else []))
    asked = 6 if alone else 1
    assert len(sent) == 6 * asked
    assert len(received) >= len(sent)
    for place, message in enumerate(sent):
        epoch, step = divmod(place // asked, 3)
        group = sorted(cohorts[place // asked], key=int)
        held = message.content
        task = dict(held.config_records[wire.TASK])
        clients = task[wire.CLIENT]
        assert set(clients) <= set(group)
        assert len(clients) == (1 if alone else 6)
        key = SECRET if epoch == 0 else SECRET.ratchet()
        masks = [key.mask_key(client, step).reveal() for client in clients]
        assert task == {wire.EPOCH: epoch, wire.STEP: step, wire.CLIENT: clients, wire.MASK_KEY: masks}
        types = {name: type(record) for name, record in held.items()}
        assert types == {wire.MODEL: ArrayRecord, wire.TASK: ConfigRecord}
        assert list(held.array_records[wire.MODEL]) == [wire.VECTOR]
        assert leaked(in_message(message), keys) == {f"mask {epoch} {step} {client}" for client in clients}
    for reply in received:
        assert leaked(in_message(reply), keys) == set()


def test_no_file_but_the_secret_one_holds_a_key(tmp_path, keys):
    """Arrays of .npz files included, text in them too, whatever its encoding."""
    cut(tmp_path / "r", *SMALL, "run.checkpoint_every=1", after=2)
    assert in_files(tmp_path / "r", keys) == {"secrets.npz": {"epoch 0"}}
    digest = read_secrets(tmp_path / "r/checkpoint").origin.digest  # of the clients
    others = [path for path in (tmp_path / "r").rglob("*") if path.is_file() and path.name != SECRETS]
    assert not any(digest.encode() in path.read_bytes() for path in others)
    run(tmp_path / "r", *SMALL, "run.checkpoint_every=1", "run.resume=true")
    assert in_files(tmp_path / "r", keys) == {}


def test_after_a_resume_over_an_epochs_end_no_older_key_is_left_in_any_file(tmp_path, keys):
    """Killed after the last release of an epoch and before its key gave way; resumed, and killed in the next one."""
    rare = (*SMALL, "run.checkpoint_every=100")
    with behind_round(Checkpoint, "commit", 3):
        run(tmp_path / "r", *rare)
    assert in_files(tmp_path / "r", keys) == {"secrets.npz": {"epoch 0"}}
    with (tmp_path / "r/checkpoint/secrets.npz").open("rb") as old:
        cut(tmp_path / "r", *rare, "run.resume=true", after=0)
        assert not any(old.read())
    assert len(metrics(tmp_path / "r")) == 3
    assert in_files(tmp_path / "r", keys) == {"secrets.npz": {"epoch 1"}}


def test_the_search_finds_a_key_in_every_form_and_in_arrays_of_text(tmp_path):
    keys = {"it": SECRET, "other": SECRET.ratchet()}
    for number, form in enumerate(forms(SECRET)):
        assert leaked(b"x" + form + b"y", keys) == {"it"}, number
    text = {"about": np.array('{"key": "' + SECRET.reveal().hex() + '"}')}
    np.savez(tmp_path / "text.npz", **text)
    np.savez_compressed(tmp_path / "packed.npz", **text)
    np.savez(tmp_path / "wide.npz", key=np.frombuffer(SECRET.reveal(), np.uint8).astype(np.int64))
    assert in_files(tmp_path, keys) == {name: {"it"} for name in ("text.npz", "packed.npz", "wide.npz")}
    assert SECRET.reveal().hex().encode() not in (tmp_path / "text.npz").read_bytes()  # UTF-32
    database = Record(tmp_path)
    database.create()
    with database._writing() as connection:
        record._put(connection, "base", 0, (tmp_path / "packed.npz").read_bytes())
    database.close()
    assert in_files(tmp_path, keys)["run.sqlite"] == {"it"}

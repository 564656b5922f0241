import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from client.app import pack
from experiments.engines.grid import set_identity
from fedmf.updates import wire
from server.messages import payloads
from tasks import joint


@pytest.fixture
def asked():
    set_identity()
    return joint("a", "b")


MALFORMED = [[b"one"], [b"one", b"two", b"three"], b"onetwo", [], ["one", "two"], [1, 2], 1.0]


@pytest.mark.parametrize("values", MALFORMED, ids=repr)
def test_values_that_are_not_one_for_each_client_count_for_none(asked, values):
    reply = Message(RecordDict({wire.UPDATE: ConfigRecord({wire.VALUES: values})}), reply_to=asked)
    assert [sent for sent in payloads(reply, 2) if isinstance(sent, bytes)] == []


def test_who_sent_no_values_takes_nobody_elses_along(asked):
    assert payloads(pack([b"one", wire.NO_VALUES, b"three"], asked), 3) == [b"one", None, b"three"]

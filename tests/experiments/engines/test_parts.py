"""Messages of several clients in parts: every client once, and the reply that one process would have given."""

import pytest
from flwr.app import Error, Message

from experiments.engines.grid import call_app, local_context, set_identity
from experiments.engines.messages import Gathering, guided
from fedmf.updates import wire
from poison import app_of
from tasks import joint, values_in


@pytest.fixture(autouse=True)
def _identity():
    set_identity()


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("counts", [(1,), (7, 7, 3), (100,), (1,) * 30])
def test_chunks_hold_every_client_once_in_order_and_shrink_to_one(counts, workers):
    messages = [joint(*map(str, range(count))) for count in counts]
    chunks = list(guided(messages, workers))
    played = [(part.whole, place) for chunk in chunks for part in chunk for place in part.places]
    assert played == [
        (message, place) for message, count in zip(messages, counts, strict=True) for place in range(count)
    ]
    sizes = [sum(len(part.places) for part in chunk) for chunk in chunks]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1
    assert sizes[0] == max(1, sum(counts) // (2 * workers))


def test_hundreds_of_clients_travel_in_tens_of_chunks():
    assert len(list(guided([joint(*map(str, range(400)))], 4))) < 60


def test_the_reply_made_of_parts_is_that_of_one_process_byte_for_byte():
    app, whole = app_of(None), joint(*"abcdefg")
    gathering, chunks = Gathering(whole), list(guided([whole], 1))
    assert len(chunks) > 2
    replies = []
    for (part,) in reversed(chunks):  # in any order
        message = part.message(with_model=True)
        assert message.metadata.message_id == whole.metadata.message_id
        replies.append(gathering.add(part, call_app(app, message, local_context())))
    assert replies[:-1] == [None] * (len(chunks) - 1)
    twin = call_app(app, whole, local_context())
    assert dict(replies[-1].content.config_records[wire.UPDATE]) == dict(
        twin.content.config_records[wire.UPDATE]
    )
    assert replies[-1].metadata.reply_to_message_id == whole.metadata.message_id
    assert gathering.failures == []


def test_a_part_holds_nobody_elses_key_and_the_model_only_where_it_is_wanted():
    whole = joint(*"abc")
    ((part,), *_) = guided([whole], 1)
    for with_model in (True, False):
        message = part.message(with_model=with_model)
        assert (wire.MODEL in message.content) is with_model
        given = whole.content.config_records[wire.TASK]
        assert dict(message.content.config_records[wire.TASK]) == {
            name: given[name][:1] if name in (wire.CLIENT, wire.MASK_KEY) else given[name] for name in given
        }
    assert whole.content.config_records[wire.TASK][wire.CLIENT] == [*"abc"]
    assert wire.MODEL in whole.content


def test_an_error_of_one_part_is_told_of_its_clients_and_leaves_the_values_of_the_others():
    app, whole = app_of(None), joint(*"abc")
    gathering = Gathering(whole)
    for chunk in guided([whole], 1):
        for part in chunk:
            message = part.message(with_model=True)
            is_b = part.places == range(1, 2)
            reply = (
                Message(Error(2, "why"), reply_to=message)
                if is_b
                else call_app(app, message, local_context())
            )
            complete = gathering.add(part, reply)
    assert [(failure.client, failure.reason, failure.has_sent) for failure in gathering.failures] == [
        ("b", "why", False)
    ]
    assert [values == wire.NO_VALUES for values in values_in(complete)] == [False, True, False]

import numpy as np
import pytest
from flwr.app import Message, MessageType, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from client.app import Task, pack, sent_bytes
from experiments.engines.grid import set_identity
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from fedmf.updates.wire import Turn


@pytest.mark.parametrize(("dtype", "kept"), [("float32", 100), ("float32", 10_486), ("int8", 10_486)])
def test_envelope_is_what_flower_serialises_beside_the_values(dtype, kept):
    set_identity()
    question = Message(RecordDict(), 1, MessageType.TRAIN)
    question.metadata.__dict__["_message_id"] = "a" * 64
    values = np.zeros(kept, dtype)
    task = Task(Turn(question.metadata.run_id, 0, 0, "0"), SecretKey.reproducible(0))
    reply = pack([sent_bytes(values, task)], question)
    serialised = sum(len(part.deflate()) for part in get_all_nested_objects(reply).values())
    assert serialised - values.nbytes == pytest.approx(wire.ENVELOPE_BYTES, abs=20)

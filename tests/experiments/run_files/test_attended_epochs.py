"""attendance.json: which nodes each epoch began with."""

from functools import partial

from experiments.deployment.loopback import make_node_key
from experiments.run_files.directory import ATTENDANCE, read_attendance, record_attendance
from server.cohort import Roster
from server.known_nodes import EVERY_NODE, KnownNode, KnownNodes

STRANGER = "0" * 32


def test_each_epoch_names_its_nodes_once_a_damaged_file_is_put_aside_and_stops_no_run(tmp_path, caplog):
    listed = KnownNode("hospital-1", make_node_key(tmp_path, "a").read_text(), 9)
    record = partial(record_attendance, tmp_path, KnownNodes((listed,)))

    def attended():
        return [(row["epoch"], row["nodes"]) for row in read_attendance(tmp_path)]

    record(Roster(0, {listed.key: 5, STRANGER: 2}))
    for others in ({}, {STRANGER: 6}):  # an epoch whose roster was lost before anyone was asked, then resumed
        record(Roster(1, {listed.key: 8, STRANGER: 8}))
        record(Roster(1, {listed.key: 7, **others}))
        assert attended() == [(1, {"hospital-1": 5, STRANGER: 2}), (2, {"hospital-1": 7, **others})]
    # Its key was taken out of the list since.
    record_attendance(tmp_path, EVERY_NODE, Roster(1, {listed.key: 7, STRANGER: 6}))
    assert attended()[1] == (2, {"hospital-1": 7, STRANGER: 6})
    (tmp_path / ATTENDANCE).write_text("{")
    record(Roster(3, {listed.key: 8}))
    assert attended() == [(4, {"hospital-1": 8})]
    assert (tmp_path / f"{ATTENDANCE}.damaged").read_text() == "{"
    assert "attendance.json is not JSON" in caplog.text

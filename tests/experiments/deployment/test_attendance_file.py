"""attendance.json and the page's section of it: nodes by name in each epoch, and nothing of any client."""

import json
from functools import partial

import pytest

from experiments.deployment.loopback import make_node_key
from experiments.pages.run_page import attendance_sections
from experiments.run_files.directory import ATTENDANCE, read_attendance, record_attendance
from experiments.run_files.reader import Run
from fedmf.errors import RunDirectoryError
from server.cohort import Roster
from server.known_nodes import EVERY_NODE, KnownNode, KnownNodes

STRANGER = "0" * 32


def attended(folder):
    return [(row["epoch"], row["nodes"]) for row in read_attendance(folder)]


def run_in(folder):
    return Run(folder, {}, (), {}, {}, {})


@pytest.fixture
def listed(tmp_path):
    return KnownNode("hospital-1", make_node_key(tmp_path, "a").read_text(), 9)


@pytest.fixture
def record(tmp_path, listed):
    return partial(record_attendance, tmp_path, KnownNodes((listed,)))


def test_each_epoch_names_its_nodes_and_one_that_goes_on_after_a_restart_stands_once(
    tmp_path, listed, record
):
    record(Roster(0, {listed.key: 5, STRANGER: 2}))
    record(Roster(1, {listed.key: 6}))
    record(Roster(1, {listed.key: 6}))
    assert attended(tmp_path) == [(1, {"hospital-1": 5, STRANGER: 2}), (2, {"hospital-1": 6})]


def test_a_node_that_was_taken_out_of_the_list_keeps_its_name_in_the_epoch_under_way(
    tmp_path, listed, record
):
    """As after a leaked key: the run goes on in mid-epoch with the list of now."""
    roster = Roster(0, {listed.key: 8, STRANGER: 8})
    record(roster)
    record_attendance(tmp_path, EVERY_NODE, roster)
    assert attended(tmp_path) == [(1, {"hospital-1": 8, STRANGER: 8})]


@pytest.mark.parametrize(
    "others", [{}, {"1" * 32: 8}, {STRANGER: 6}], ids=["fewer", "another key", "other numbers"]
)
def test_an_epoch_that_begins_again_with_other_nodes_is_written_anew(tmp_path, listed, record, others):
    """Its roster was lost before anyone was asked; who takes part is told by the key."""
    record(Roster(0, {listed.key: 8, STRANGER: 8}))
    record(Roster(0, {listed.key: 7, **others}))
    assert attended(tmp_path) == [(1, {"hospital-1": 7, **others})]


def test_a_damaged_file_is_put_aside_and_stops_no_run(tmp_path, listed, record, caplog):
    (tmp_path / ATTENDANCE).write_text("{")
    record(Roster(3, {listed.key: 8}))
    assert attended(tmp_path) == [(4, {"hospital-1": 8})]
    assert (tmp_path / f"{ATTENDANCE}.damaged").read_text() == "{"
    assert "attendance.json is not JSON" in caplog.text


def test_the_page_says_by_name_in_how_many_epochs_a_node_took_part(tmp_path, listed, record):
    assert attendance_sections(run_in(tmp_path)) == []
    for epoch in range(4):
        record(Roster(epoch, {listed.key: 5} if epoch == 2 else {listed.key: 5 + epoch, "9f": 2}))
    (section,) = attendance_sections(run_in(tmp_path))
    assert section.points[1:3] == [
        "epoch 2: 9f (2 clients), hospital-1 (6 clients)",
        "epoch 3: hospital-1 (5 clients)",
    ]


def test_a_damaged_file_is_named(tmp_path):
    for text in ("{", "[]", '{"epochs": [{"epoch": 1}]}', '{"epochs": [{"epoch": 1, "nodes": {"a": "x"}}]}'):
        (tmp_path / ATTENDANCE).write_text(text)
        with pytest.raises(RunDirectoryError, match=r"attendance.json (is not JSON|holds)"):
            read_attendance(tmp_path)


def test_nothing_but_names_keys_and_declared_numbers_stands_in_the_file(tmp_path):
    record_attendance(tmp_path / "new", EVERY_NODE, Roster(0, {"9f": 3}, {"9f": "d" * 64}, ("9f",)))
    document = json.loads((tmp_path / "new" / ATTENDANCE).read_text())
    assert document == {"epochs": [{"epoch": 1, "nodes": {"9f": 3}, "keys": {"9f": "9f"}}]}

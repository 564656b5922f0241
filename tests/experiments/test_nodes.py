"""The list of nodes that may take part: the command that keeps it."""

import json
import stat
import subprocess
import sys
from functools import partial

import pytest

import experiments.nodes as nodes_command
from experiments.deployment.certificates import make_node_key
from experiments.nodes import NodesSettings, nodes
from experiments.settings.compose import compose
from fedmf.errors import RunStoppedError, SettingError
from server import files
from server.files import locked_while_changed
from server.known_nodes import KnownNodes


def call(*overrides):
    nodes(compose("nodes", overrides, NodesSettings))


@pytest.fixture
def keys(tmp_path):
    return {name: make_node_key(tmp_path, name) for name in ("a", "b")}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "nodes.json"


def shown(file, capsys):
    capsys.readouterr()
    call(f"file={file}", "output=json")
    return {row["name"]: row["most_clients"] for row in json.loads(capsys.readouterr().out)["nodes"]}


def test_nodes_are_added_listed_changed_and_removed(keys, file, capsys):
    call(f"file={file}", f"add={keys['a']}", "name=hospital-1", "most_clients=479")
    call(f"file={file}", f"add={keys['b']}", "name=hospital-2", "most_clients=3")
    assert shown(file, capsys) == {"hospital-1": 479, "hospital-2": 3}
    call(f"file={file}", f"add={keys['a']}", "name=hospital-1", "most_clients=500")
    assert "hospital-1 was listed already; it counts for 500 clients now" in capsys.readouterr().err
    assert shown(file, capsys) == {"hospital-1": 500, "hospital-2": 3}
    call(f"file={file}", "remove=hospital-1")
    assert shown(file, capsys) == {"hospital-2": 3}
    call(f"file={file}")
    assert "hospital-2" in capsys.readouterr().out


def test_the_list_is_for_its_owner_alone_and_written_whole_or_not_at_all(keys, file, monkeypatch):
    call(f"file={file}", f"add={keys['a']}", "name=a", "most_clients=1")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        call(f"file={file}", f"add={keys['b']}", "name=b", "most_clients=1")
    assert file.read_bytes() == before


def test_mistakes_are_sentences_and_change_nothing(keys, file, tmp_path):
    call(f"file={file}", f"add={keys['a']}", "name=a", "most_clients=1")
    before, private = file.read_bytes(), str(keys["a"]).removesuffix(".pub")
    (tmp_path / "no.pub").write_text("no key at all\n")
    for overrides, says in (
        ([f"add={keys['b']}", "name=a", "most_clients=2"], "two nodes are called a"),
        ([f"add={keys['a']}", "name=b", "most_clients=2"], "a and b have the same public key"),
        ([f"add={keys['b']}", "most_clients=2"], "name is missing"),
        ([f"add={keys['b']}", "name=b"], "most_clients is missing"),
        ([f"add={keys['b']}", "name=b", "most_clients=0"], "most_clients is 0"),
        ([f"add={keys['b']}", "name='b c'", "most_clients=2"], "name is 'b c'; it must be 1 to 63 letters"),
        ([f"add={private}", "name=b", "most_clients=2"], "a private key; it stays with its node"),
        ([f"add={tmp_path / 'no.pub'}", "name=b", "most_clients=2"], "the public key of b cannot be read"),
        ([f"add={tmp_path / 'nothing'}", "name=b", "most_clients=2"], "which cannot be read"),
        (["remove=b"], "remove is b, which is no node of the list; it holds a."),
        (["remove=a", f"add={keys['b']}"], "give one of them at a time"),
        (["name=b"], "give its public key as add=KEY.pub"),
    ):
        with pytest.raises(SettingError, match=says):
            call(f"file={file}", *overrides)
        assert file.read_bytes() == before
    with pytest.raises(SettingError, match=r"file is .*nowhere.json, which does not exist"):
        call(f"file={tmp_path / 'nowhere.json'}")


DAMAGED = {
    "no JSON": lambda text: text[:-9],
    "no object": lambda text: "[]",
    "another field": lambda text: text.replace('"name"', '"title"'),
    "a number as text": lambda text: text.replace('"most_clients": 1', '"most_clients": "1"'),
    "a truth as number": lambda text: text.replace('"most_clients": 1', '"most_clients": true'),
    "no number": lambda text: text.replace('"most_clients": 1', '"most_clients": 0'),
    "another key": lambda text: text.replace("AAAA", "AAAB"),
    "no key": lambda text: text.replace("ecdsa", "x"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_list_lets_nobody_take_part(keys, file, damage):
    call(f"file={file}", f"add={keys['a']}", "name=a", "most_clients=1")
    file.write_text(DAMAGED[damage](file.read_text()))
    with pytest.raises(SettingError, match=r"nodes is|public key|most_clients is 0"):
        KnownNodes.load(file)


MANY_AT_ONCE = """
import os, sys
from experiments.nodes import KnownNode, NodesSettings, changed
from experiments.settings.output import Output
from pathlib import Path
file, *keys = map(Path, sys.argv[1:])
begin, ended = os.pipe(), []
for number, key in enumerate(keys):
    if not os.fork():
        os.close(begin[1])
        os.read(begin[0], 1)  # all at once, when the parent closes its end
        for most in range(1, 6):
            changed(file, NodesSettings(str(file), str(key), f"node-{number}", most, None, Output.text))
        os._exit(0)
os.close(begin[1])
sys.exit(any(os.wait()[1] for _ in keys))
"""


def test_of_edits_at_once_none_is_lost(tmp_path, file, capsys):
    keys = [make_node_key(tmp_path, f"key-{number}") for number in range(6)]
    command = [sys.executable, "-c", MANY_AT_ONCE, file, *keys]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert shown(file, capsys) == {f"node-{number}": 5 for number in range(6)}


def test_an_edit_waits_for_another_one_and_gives_up_with_a_sentence(keys, file, monkeypatch):
    call(f"file={file}", f"add={keys['a']}", "name=a", "most_clients=1")
    before = file.read_bytes()
    monkeypatch.setattr(nodes_command, "locked_while_changed", partial(locked_while_changed, wait=0.1))
    with (
        locked_while_changed(file),
        pytest.raises(RunStoppedError, match=r"has been changing .*nodes.json for 0.1 seconds"),
    ):
        call(f"file={file}", "remove=a")
    assert file.read_bytes() == before
    call(f"file={file}", "remove=a")
    assert KnownNodes.load(file).listed == ()


def test_a_list_in_a_folder_that_others_may_write_to_is_neither_read_nor_made(keys, file, tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    inside = folder / "nodes.json"
    with pytest.raises(SettingError, match=r"file is .*, below the folder .*open, which others"):
        call(f"file={inside}", f"add={keys['a']}", "name=a", "most_clients=1")
    assert not list(folder.iterdir())
    call(f"file={file}", f"add={keys['a']}", "name=a", "most_clients=1")
    inside.write_bytes(file.read_bytes())
    with pytest.raises(SettingError, match=r"nodes is .*, below the folder .*open, which others"):
        KnownNodes.load(inside)


def test_a_list_that_others_may_write_to_is_refused(keys, file):
    call(f"file={file}", f"add={keys['a']}", "name=a", "most_clients=1")
    for mode, is_refused in ((0o620, True), (0o602, True), (0o644, False), (0o600, False)):
        file.chmod(mode)
        if is_refused:
            with pytest.raises(SettingError, match="others than its owner may write to"):
                KnownNodes.load(file)
        else:
            assert [node.name for node in KnownNodes.load(file)] == ["a"]

"""No output is written through a link that somebody else put in its place."""

import ast
import os
from pathlib import Path

import pytest

import written_run
from experiments.compare import CompareSettings, compare
from experiments.mechanisms import MechanismsSettings, mechanisms
from experiments.report import ReportSettings, report
from experiments.run_files.directory import open_no_link
from experiments.settings.compose import compose
from server.files import write_output

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    "compare": (compare, CompareSettings, ["directory={place}", "plots={place}/plots"]),
    "report": (report, ReportSettings, ["directory={place}/0", "plots={place}/plots"]),
    "mechanisms": (mechanisms, MechanismsSettings, ["rounds=4", "families=[optimal]", "export={place}"]),
}
# Written in folders that this process has made for itself alone.
PRIVATE = {"client/data/conversion.py", "experiments/data.py"}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_writes_replaces_links_and_leaves_what_they_point_to(name, tmp_path):
    function, settings, arguments = COMMANDS[name]

    def written(place):
        for number in range(2):
            written_run.write(place / str(number), config={"seed": number})
        before = set(place.rglob("*"))
        function(compose(name, [argument.format(place=place) for argument in arguments], settings))
        return {path.relative_to(place) for path in set(place.rglob("*")) - before if path.is_file()}

    names = written(tmp_path / "free")
    assert names
    victim = tmp_path / "victim"
    victim.write_text("kept")
    for file in names:
        (link := tmp_path / "trap" / file).parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(victim)
    written(tmp_path / "trap")
    assert victim.read_text() == "kept"
    assert not any((tmp_path / "trap" / file).is_symlink() for file in names)


def test_an_output_takes_no_file_beside_it_and_replaces_no_device_or_folder(tmp_path):
    (tmp_path / "words.new").write_text("kept")
    write_output(tmp_path / "words", b"one")
    assert [(tmp_path / name).read_text() for name in ("words", "words.new")] == ["one", "kept"]
    for place in (tmp_path, Path("/dev/null")):
        with pytest.raises(OSError, match="no regular file"):
            write_output(place, b"one")
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(OSError, match="symbolic links"):
        open_no_link(tmp_path / "link", os.O_WRONLY)


def test_no_other_module_writes_files_by_itself():
    found = {
        str(path.relative_to(ROOT))
        for package in ("fedmf", "server", "client", "experiments")
        for path in (ROOT / package).rglob("*.py")
        if any(map(_writes, ast.walk(ast.parse(path.read_bytes()))))
    }
    assert found == PRIVATE


def _writes(node):
    """Whether a node is a call that writes the file at a path, or where a link at that path leads."""
    if not isinstance(node, ast.Call) or any(word.arg == "opener" for word in node.keywords):
        return False
    match ast.unparse(node.func).rpartition(".")[2], [ast.unparse(argument) for argument in node.args]:
        case "savez" | "savefig", [target, *_]:
            return target != "buffer"
        case "write_text" | "write_bytes", [_]:  # RunDirectory.write_text takes a name besides
            return True
        case "open", given:  # a call with a descriptor writes what was opened before
            return given[:1] != ["descriptor"] and any(
                mode.strip("'") in ("w", "a", "wb", "ab", "w+b") for mode in given
            )
    return False

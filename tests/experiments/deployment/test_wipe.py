"""`wipe` removes what a SuperLink leaves, nothing else, and nothing at all while it is in use."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from experiments.cli.command import guard
from experiments.deployment import leftovers
from experiments.deployment.loopback import Loopback
from experiments.deployment.noted import note
from experiments.settings.output import Output
from experiments.wipe import WipeSettings, wipe
from fedmf.errors import SettingError

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("select count(*) from messages").fetchall()
print("open", flush=True)
sys.stdin.read()
"""


def wiped(database=None, home=None, output=Output.text, server=None):
    wipe(WipeSettings(*(path and str(path) for path in (server, database, home)), output))


TOLD = "address: 127.0.0.1:8000\ncertificate: c\nkey: k\nauthority: a\n"


def left(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def database(tmp_path):
    """A database with its log beside it, as a SuperLink that was killed leaves it."""
    path = tmp_path / "run" / "superlink.db"
    path.parent.mkdir()
    program = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('pragma journal_mode=wal');"
        "[c.execute(f'create table {name} (id)') for name in ('message_ins', 'message_res', 'run')];"
        "c.execute('create table messages (update_ blob)'); c.execute('insert into messages values (?)', (b'x' * 9999,));"
        "c.commit(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, path], check=True)
    assert left(path.parent) == ["superlink.db", "superlink.db-shm", "superlink.db-wal"]
    return path


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "flwr"
    (path / "apps" / "fedmf.1").mkdir(parents=True)
    (path / "apps" / "fedmf.1" / "a.py").write_text("code")
    (path / "config.toml").write_text("how to reach it")
    (path / "mine").write_text("not Flower's")
    return path


def test_it_removes_the_database_and_the_unpacked_apps_and_says_so(database, home, capsys):
    (database.parent / "superlink.db.backup").write_text("another file")
    wiped(database, home, Output.json)
    ends = ("", "-wal", "-shm")
    assert json.loads(capsys.readouterr().out) == {
        "removed": [*(f"{database}{end}" for end in ends), f"{home}/apps"]
    }
    assert left(database.parent) == ["superlink.db.backup"]
    assert left(home) == ["config.toml", "mine"]
    wiped(database, home)
    assert capsys.readouterr().out == "nothing to remove\n"


def test_what_is_removed_is_overwritten_before(database, home, monkeypatch):
    """Who has the files open still sees their blocks: zeros."""
    monkeypatch.setattr(leftovers, "_holding", lambda files: set())
    files = [database, database.with_name("superlink.db-wal"), home / "apps" / "fedmf.1" / "a.py"]
    opened = [(file.open("rb"), file.stat().st_size) for file in files]
    wiped(database, home)
    for file, size in opened:
        with file:
            assert file.read() == bytes(size)


def test_a_file_with_another_name_elsewhere_loses_this_one_alone(home, tmp_path):
    (tmp_path / "cached.py").write_text("of another environment")
    os.link(tmp_path / "cached.py", home / "apps" / "fedmf.1" / "b.py")
    wiped(home=home)
    assert (tmp_path / "cached.py").read_text() == "of another environment"
    assert not (home / "apps").exists()


def test_what_is_no_flower_home_and_no_superlinks_database_is_not_removed(home, database, tmp_path):
    (home / ".git").mkdir()
    before = left(tmp_path)
    with pytest.raises(SettingError, match=r"holds \.git/, and Flower makes no such folder"):
        wiped(home=home)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as other:
        other.execute("create table runs (id)")
        other.commit()
    with pytest.raises(SettingError, match="not a SuperLink's: it lacks the table message_ins"):
        wiped(tmp_path / "mlflow.db")
    (tmp_path / "image.iso").write_bytes(bytes(32768) + b"data")
    with pytest.raises(SettingError, match="SQLite did not write"):
        wiped(tmp_path / "image.iso")
    assert left(tmp_path) == sorted([*before, "mlflow.db", "image.iso"])


def test_links_are_not_followed(database, home, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_text("kept")
    (home / "apps" / "link").symlink_to(tmp_path / "elsewhere")
    (home / "apps" / "file").symlink_to(tmp_path / "elsewhere" / "kept")
    wiped(home=home)
    assert (tmp_path / "elsewhere" / "kept").read_text() == "kept"
    assert not (home / "apps").exists()
    database.unlink()
    database.symlink_to(tmp_path / "elsewhere" / "kept")
    with pytest.raises(SettingError, match="no file of its own"):
        wiped(database)


def test_a_file_that_is_no_database_is_not_removed(tmp_path):
    (tmp_path / "server.key").write_text("-----BEGIN PRIVATE KEY-----")
    with pytest.raises(SettingError, match="SQLite did not write"):
        wiped(tmp_path / "server.key")
    assert left(tmp_path) == ["server.key"]


@pytest.mark.parametrize("seen_by", ["_holding", "_locking"])
def test_a_database_in_use_is_not_removed(database, home, monkeypatch, seen_by):
    """By its open file, and by its lock alone, as where the process of another account holds it."""
    for name in {"_holding", "_locking"} - {seen_by}:
        monkeypatch.setattr(leftovers, name, lambda files: set())
    command = [sys.executable, "-c", HOLD, database]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"open\n"
        before = left(database.parent), database.read_bytes()
        said = rf"superlink\.db is in use by process {holder.pid} \(python\S*\); stop the SuperLink first"
        with pytest.raises(SettingError, match=f"{said}. Nothing was removed"):
            wiped(database)
        with pytest.raises(SettingError, match=f"{said}.$"):
            wiped(database, home)
        assert (left(database.parent), database.read_bytes()) == before
        assert not (home / "apps").exists()  # which nobody uses
    wiped(database)
    assert left(database.parent) == []


def test_a_database_that_nobody_uses_is_removed_while_its_home_is_in_use(database, home, capsys):
    """As after a stop of the SuperLink, where a shell of its account still has FLWR_HOME and follows a log."""
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "FLWR_HOME": str(home)}) as user:
        try:
            said = (
                rf"home is \S+/flwr, which is the Flower home \(FLWR_HOME\) of process {user.pid} \(sleep\)"
            )
            with pytest.raises(SettingError, match=said) as refused:
                wiped(database, home)
        finally:
            user.kill()
        assert "SuperLink" not in str(refused.value)
    assert left(database.parent) == []
    assert (home / "apps").exists()
    assert "superlink.db\n" in capsys.readouterr().out


def test_the_file_of_the_server_says_which_database_and_which_home(database, home, tmp_path, monkeypatch):
    """The home is that of the file, else of the environment, as the server takes it; what is typed wins."""
    file, other = tmp_path / "server.yaml", tmp_path / "other"
    file.write_text(f"{TOLD}database: {database}\nhome: {home}\n")
    monkeypatch.setenv("FLWR_HOME", str(other))
    wiped(server=file, home=other)
    assert left(database.parent) == []
    assert (home / "apps").exists()
    wiped(server=file)
    assert not (home / "apps").exists()
    (other / "apps").mkdir(parents=True)
    file.write_text(f"{TOLD}database: {database}\n")
    wiped(server=file)
    assert not (other / "apps").exists()
    file.write_text("databse: x\n")
    with pytest.raises(SettingError, match=r"databse.*server\.yaml"):
        wiped(server=file)


@pytest.fixture
def started(database, home, tmp_path, monkeypatch):
    """The file of a server that noted its database and, by its environment, its home when it started."""
    (tmp_path / "unit").mkdir()
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path / 'unit'}:/another")
    monkeypatch.setenv("FLWR_HOME", str(home))
    note(tmp_path / "server.yaml", str(database), None)
    monkeypatch.delenv("FLWR_HOME")
    return tmp_path / "server.yaml"


@pytest.mark.parametrize("text", [None, "databse: x\n", "database: [", f"{TOLD}database: relative.db\n"])
def test_what_a_server_noted_is_removed_where_its_file_cannot_be_read_any_more(
    started, database, home, capsys, text
):
    if text is not None:
        started.write_text(text)
    assert guard(lambda: wiped(server=started)) == 2
    said = capsys.readouterr()
    assert f"removed {database}\n" in said.out
    assert said.err.startswith("error: ")
    assert "Nothing was removed" not in said.err
    assert left(database.parent) == []
    assert not (home / "apps").exists()


def test_what_a_server_noted_is_removed_beside_what_its_file_says_now(started, database, home, tmp_path):
    """Also what an earlier start of several used; afterwards nothing is noted any more."""
    later = database.with_name("later.db")
    for end in ("", "-wal"):
        shutil.copy(f"{database}{end}", f"{later}{end}")
    note(started, str(tmp_path / "run" / "gone.db"), None)
    started.write_text(f"{TOLD}database: {later}\n")
    wiped(server=started)
    assert left(database.parent) == left(tmp_path / "unit") == []
    assert not (home / "apps").exists()


def test_what_another_server_noted_is_left_alone(started, database, home, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(f"{TOLD}database: {tmp_path / 'other.db'}\n")
    wiped(server=other)
    assert database.exists()
    assert (home / "apps").exists()
    assert len(left(tmp_path / "unit")) == 1


def test_what_a_server_noted_stays_noted_until_it_is_gone(started, database, home, capsys):
    started.write_text(f"{TOLD}database: {database}\n")
    (home / ".git").mkdir()
    assert guard(lambda: wiped(server=started)) == 2
    assert "holds .git/" in capsys.readouterr().err
    assert left(database.parent) == []
    assert (home / "apps").exists()
    (home / ".git").rmdir()
    wiped(server=started)
    assert not (home / "apps").exists()


def test_a_note_names_nothing_that_is_no_superlinks(started, database, tmp_path, capsys):
    database.write_text("-----BEGIN PRIVATE KEY-----")
    started.write_text(f"{TOLD}database: {tmp_path / 'none.db'}\n")
    assert guard(lambda: wiped(server=started)) == 2
    assert "SQLite did not write" in capsys.readouterr().err
    assert database.read_text() == "-----BEGIN PRIVATE KEY-----"


@pytest.mark.parametrize("text", ["", "[]", '{"databases": ["a.db"], "homes": []}'])
def test_a_note_that_cannot_be_read_is_said_and_what_the_file_names_is_removed(
    started, database, tmp_path, capsys, text
):
    (name,) = left(tmp_path / "unit")
    (tmp_path / "unit" / name).write_text(text)
    started.write_text(f"{TOLD}database: {database}\n")
    with pytest.raises(SettingError, match="notes its database and home, cannot be read"):
        note(started, str(database), None)
    assert guard(lambda: wiped(server=started)) == 2
    assert (
        f"{name}, in which fedmf server notes its database and home, cannot be read"
        in capsys.readouterr().err
    )
    assert left(database.parent) == []


def test_a_home_with_other_content_leaves_no_database(database, home, capsys):
    (home / ".git").mkdir()
    before = left(home)
    with pytest.raises(SettingError, match=r"holds \.git/, and Flower makes no such folder.*FLWR_HOME\.$"):
        wiped(database, home)
    assert capsys.readouterr().out.startswith(f"removed {database}\n")
    assert (left(database.parent), left(home)) == ([], before)


def test_what_cannot_be_removed_leaves_nothing_else(database, home, monkeypatch, capsys):
    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(leftovers, "erase", denied)
    with pytest.raises(
        SettingError, match=r"superlink\.db cannot be used: Permission denied\..*apps.*Nothing"
    ):
        wiped(database, home)
    assert capsys.readouterr().out == ""


def test_a_home_in_use_is_not_removed_and_ones_own_is(home, monkeypatch):
    command = [sys.executable, "-c", "print('up', flush=True); import sys; sys.stdin.read()"]
    with subprocess.Popen(
        command, env={"FLWR_HOME": f"{home}/"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as user:
        assert user.stdout.readline() == b"up\n"
        with pytest.raises(SettingError, match=f"is the Flower home .FLWR_HOME. of process {user.pid}"):
            wiped(home=home)
        assert (home / "apps").exists()
    program = f"from experiments.wipe import *; wipe(WipeSettings(None, None, {str(home)!r}, Output.text))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "FLWR_HOME": str(home)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not (home / "apps").exists()


@pytest.mark.deployment
def test_a_real_superlink_is_refused_until_it_has_stopped_and_its_files_are_its_owners():
    before = os.umask(0o022)
    try:
        with Loopback() as loopback:
            loopback.start_superlink()
            loopback.register("a")
            database, home = loopback.folder / "superlink.db", loopback.home("superlink")
            with pytest.raises(SettingError, match="in use by process"):
                wiped(database, home)
            for file in loopback.folder.glob("superlink.db*"):
                assert file.stat().st_mode & 0o077 == 0, file
            for file in (loopback.folder, loopback.folder / "server.key", loopback.folder / "a"):
                assert file.stat().st_mode & 0o077 == 0, file
            with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as opened:
                assert opened.execute("select count(*) from sqlite_master").fetchone()[0] > 0
            loopback.stop("superlink")
            wiped(database, home)
            assert not list(loopback.folder.glob("superlink.db*"))
    finally:
        os.umask(before)

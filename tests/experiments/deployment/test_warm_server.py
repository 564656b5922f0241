"""The command `fedmf server`: what it refuses before it starts, and what it tells its two processes."""

import socket

import pytest

from experiments import server as command
from experiments.cli.command import guard
from experiments.deployment import warm_server
from experiments.deployment.certificates import make_certificates
from experiments.deployment.noted import Used, noted
from experiments.deployment.warm_server import ServerCommandSettings, check, parted, starts
from experiments.settings.compose import compose
from experiments.settings.operator_file import overrides_of
from fedmf.errors import RunStoppedError, SettingError


@pytest.fixture
def files(tmp_path):
    made = make_certificates(tmp_path, "127.0.0.1", days=60)
    (tmp_path / "run").mkdir(mode=0o700)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        "address": f"127.0.0.1:{port}",
        "certificate": made.certificate,
        "key": made.key,
        "authority": made.authority,
        "database": tmp_path / "run/superlink.db",
    }


def composed(files, **changed):
    words = [f"{key}={value}" for key, value in {**files, **changed}.items()]
    return compose("server", words, ServerCommandSettings)


def refused(files, capsys, **changed):
    """The sentence with which the command refuses these settings, with exit code 2 and nothing started."""
    assert guard(lambda: command.server(composed(files, **changed))) == 2
    return capsys.readouterr().err


@pytest.fixture
def started(monkeypatch):
    """What is told to the modules that would be started, with their environment."""
    told = {}
    monkeypatch.setattr(command, "Supervisor", lambda starts: pytest.fail("started"))
    monkeypatch.setattr(
        warm_server, "start_module", lambda module, settings, more: told.update({module: (settings, more)})
    )
    return told


def test_settings_with_which_a_server_can_start_are_accepted(files, tmp_path):
    check(composed(files))
    check(composed(files, name="localhost", home=tmp_path / "run"))


def test_a_file_of_yaml_is_the_same_settings(files, tmp_path):
    file = tmp_path / "server.yaml"
    file.write_text("".join(f"{key}: {value}\n" for key, value in files.items()))
    assert compose("server", overrides_of(file), ServerCommandSettings) == composed(files)


@pytest.mark.parametrize(
    "address",
    ["8000", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000", "localhost:8000", "127.0.0.1:\u0668\u0660"],
)
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(SettingError, match="it must be HOST:PORT in numbers"):
        parted(address)


@pytest.mark.parametrize(
    "name", ["''", "fedmf..example.org", "a@b", f"{'a' * 64}.org", "fedmf.example.org:8443"]
)
def test_a_name_that_no_server_can_have_is_refused(files, capsys, name):
    assert "it must be a host name such as" in refused(files, capsys, name=name)


@pytest.mark.parametrize("address", ["0.0.0.0:8000", "192.0.2.1:8000", "[::]:8000"])
def test_an_address_that_others_reach_is_refused(address):
    with pytest.raises(SettingError, match="who reaches the SuperLink can submit runs"):
        parted(address)


def test_addresses_of_the_loopback_interface_are_parted():
    assert parted("127.0.0.1:8000") == ("127.0.0.1", 8000)
    assert parted("[::1]:9000") == ("::1", 9000)


def test_each_file_is_looked_at_before_anything_starts(files, capsys, started, tmp_path):
    none = tmp_path / "none"
    for setting in ("certificate", "key", "authority"):
        assert f"{setting} is {none}, which cannot be read" in refused(files, capsys, **{setting: none})
    files["key"].chmod(0o644)
    assert "run chmod 600" in refused(files, capsys)
    files["key"].chmod(0o600)
    assert "not for fedmf.example.org" in refused(files, capsys, name="fedmf.example.org")
    assert "database is" in refused(files, capsys, database=tmp_path / "none/s.db")
    assert "home is" in refused(files, capsys, home=tmp_path / "none/flwr")
    assert "pause is 0.01 seconds" in refused(files, capsys, pause=0.01)
    assert started == {}


def test_a_port_that_another_process_has_is_a_mistake_before_the_start(files, capsys, started):
    host, port = parted(files["address"])
    with socket.create_server((host, port)):
        assert f"address is {host}:{port}, which cannot be listened on" in refused(files, capsys)
        # Later it is somebody who took it while the SuperLink was down.
        with pytest.raises(RunStoppedError, match="took it while the SuperLink was down"):
            starts(composed(files))["SuperLink"]()
    assert started == {}


def test_database_and_home_are_noted_before_anything_starts(files, tmp_path, monkeypatch):
    class Stopped(Exception):
        """Raised in place of the start."""

    def stop(starts):
        raise Stopped

    monkeypatch.setattr(command, "Supervisor", stop)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "run"))
    file = tmp_path / "server.yaml"
    for name in ("a.db", "b.db"):
        with pytest.raises(Stopped):
            command.server(
                composed(files, config=file, database=tmp_path / "run" / name, home=tmp_path / "run")
            )
    databases = tuple(str(tmp_path / "run" / name) for name in ("a.db", "b.db"))
    assert noted(file) == Used(databases, (str(tmp_path / "run"),))
    (path,) = (tmp_path / "run").glob("fedmf-server-*")
    assert path.stat().st_mode & 0o077 == 0
    monkeypatch.delenv("STATE_DIRECTORY")
    assert noted(file) == Used()


def test_both_processes_are_told_the_same_secret_and_no_list_shows_it(files, started, tmp_path):
    for start in starts(composed(files, home=tmp_path / "run")).values():
        start()
    (superlink, environment), (executor, same) = started.values()
    assert superlink["secret"] == executor["secret"]
    assert len(bytes.fromhex(executor["secret"])) == 32
    assert executor["secret"] not in " ".join(superlink["arguments"])
    assert executor["address"] == files["address"]
    assert environment == same == {"FLWR_HOME": str(tmp_path / "run")}
    arguments = superlink["arguments"]
    assert {"--enable-supernode-auth", "--ssl-ca-certfile", "--database"} <= set(arguments)
    assert "--insecure" not in arguments
    first = executor["secret"]
    for start in starts(composed(files)).values():
        start()
    assert started["experiments.deployment.run_executor_process"][0]["secret"] != first
    assert started["experiments.deployment.superlink_process"][1] == {}

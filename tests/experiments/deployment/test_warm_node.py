"""The command `fedmf node`: what it refuses, and what it tells its two processes."""

import re
import shlex
import socket

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from flwr.common.config import parse_config_args

from experiments.cli.command import guard, run_form
from experiments.deployment import warm_node
from experiments.deployment.certificates import make_certificates, make_node_key
from experiments.deployment.node import Node, NodeSettings, node_settings
from experiments.deployment.warm_node import (
    NodeCommandSettings,
    check,
    check_superlink,
    data_overrides,
    starts,
)
from experiments.node import form
from experiments.settings.compose import compose
from experiments.settings.operator_file import with_file
from fedmf.errors import RunStoppedError, SettingError


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("node")
    make_node_key(folder, "key")
    authority = make_certificates(folder, "127.0.0.1").authority
    return {"root_certificates": authority, "private_key": folder / "key"}


def composed(files, *more, **changed):
    named = [f"{key}={value}" for key, value in {**files, **changed}.items()]
    return compose("node", ["superlink=localhost:8443", "clients=3", *named, *more], NodeCommandSettings)


def refused(files, capsys, **changed):
    """The sentence with which the command refuses these settings, with exit code 2 and nothing started."""
    assert guard(lambda: check(composed(files, **changed))) == 2
    return capsys.readouterr().err


def test_settings_with_which_a_node_can_start_are_accepted(files):
    check(composed(files))
    check(composed(files, superlink="'[::1]:8443'"))


@pytest.mark.parametrize(
    ("superlink", "said"),
    [
        ("fedmf.example.org", "it must be HOST:PORT"),
        ("::1:8443", "it must be HOST:PORT"),
        ("[fedmf.example.org]:8443", "it must be HOST:PORT"),
        ("[::1:8443", "it must be HOST:PORT"),
        ("https://fedmf.example.org:8443", "it must be HOST:PORT"),
        ("fedmf.example.org:\u0668\u0664", "it must be HOST:PORT"),
        ("fedmf.example.org:70000", "it must be HOST:PORT"),
        ("fedmf..example.org:8443", "must be a host name"),
        ("me@fedmf.example.org:8443", "must be a host name"),
        ("fedmf.example.org?x:8443", "must be a host name"),
        ("fedmf.example.org#x:8443", "must be a host name"),
        (f"{'a' * 64}.example.org:8443", "must be a host name"),
        ("10.0.0.256:8443", "must be a host name"),
        ("b\u00fccher.example:8443", "as DNS holds them: xn--"),
        ("[fe80::1%eth0]:8443", "must be a host name"),
        ("[fe80::1%\0]:8443", "must be a host name"),
        ("[fe80::1%\n]:8443", "must be a host name"),
        ("[fe80::1\n]:8443", "must be a host name"),
    ],
)
def test_addresses_that_no_connection_could_be_made_to_are_refused(superlink, said):
    with pytest.raises(SettingError, match=re.escape(said)):
        check_superlink(superlink)


@pytest.mark.parametrize("superlink", ["localhost:1", "10.0.0.1:8443", "[fe80::1]:8443", "a-b.c:65535"])
def test_addresses_of_any_kind_of_host_are_accepted(superlink):
    check_superlink(superlink)


def test_files_that_are_no_certificate_or_no_key_are_refused_by_name(files, tmp_path, capsys):
    text = tmp_path / "text"
    text.write_text("hello\n")
    text.chmod(0o600)
    assert "which holds no certificate in PEM format" in refused(files, capsys, root_certificates=text)
    assert "which holds no private key in OpenSSH's format" in refused(files, capsys, private_key=text)
    public = f"{files['private_key']}.pub"
    assert "which holds no private key" in refused(files, capsys, private_key=public)
    assert "which is no file" in refused(files, capsys, trusted_entities=tmp_path / "none.yaml")


def test_a_key_of_another_kind_is_refused(files, tmp_path, capsys):
    other = tmp_path / "other"
    other.write_bytes(
        ed25519.Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
    )
    other.chmod(0o600)
    assert "a key of another kind" in refused(files, capsys, private_key=other)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604])
def test_a_key_that_another_account_can_read_is_refused(files, tmp_path, capsys, mode):
    key = tmp_path / "open"
    key.write_bytes(files["private_key"].read_bytes())
    key.chmod(mode)
    assert f"run chmod 600 {key}" in refused(files, capsys, private_key=key)


ODD = ["dataset=by_user_npz", 'dataset.path=/my "own" data\'s\\x.npz', "clients=3"]


def test_what_is_said_of_data_reaches_a_message_as_it_was_typed(files):
    arguments = [*ODD, "superlink=localhost:8443", "pause=1", "port=9000"]
    overrides = data_overrides(arguments)
    assert shlex.split(overrides) == ODD
    given = warm_node.supernode_arguments(composed(files), overrides, 9000)
    in_flower = parse_config_args([given[given.index("--node-config") + 1]])
    assert in_flower == {"overrides": overrides}


def test_a_file_of_settings_says_what_the_typed_words_say(files, tmp_path):
    """Where it stands among the words does not matter; what both processes are told of data is the same."""
    file = tmp_path / "node.yaml"
    file.write_text(
        f"superlink: localhost:8443\nclients: 3\nroot_certificates: {files['root_certificates']}\n"
        f"private_key: {files['private_key']}\ndataset: {{name: by_user_npz, path: \"/my 'own' x.npz\"}}\n"
    )
    words = with_file([f"config={file}", "clients=4"])
    check(compose("node", words, NodeCommandSettings))
    node = node_settings(data_overrides(words))
    assert (node.clients, node.dataset.name, node.dataset.path) == (4, "by_user_npz", "/my 'own' x.npz")
    assert "config" not in data_overrides(words)


def test_what_a_file_of_settings_lacks_is_said_with_key_and_file(tmp_path, capsys):
    file = tmp_path / "node.yaml"
    file.write_text("superlink: localhost:8443\nroot_certificates: a\nprivate_key: b\n")
    with pytest.raises(SystemExit) as ended:
        run_form(form, "node", argv=[f"config={file}"], reads_file=True)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "clients" in said
    assert str(file) in said


def test_the_keys_of_data_are_those_of_node_check():
    of_data = set(NodeCommandSettings.__dataclass_fields__) - set(warm_node.OWN_KEYS)
    assert of_data == set(NodeSettings.__dataclass_fields__) - {"seed", "loads_only", "output"}


def test_a_mistake_in_the_data_is_said_before_anything_starts(files, monkeypatch):
    started = []
    monkeypatch.setattr(warm_node, "start_module", lambda *given: started.append(given))
    assert guard(lambda: form(["clients=0"]).function(composed(files))) == 2
    assert started == []


WRONG_DATA = {
    "dataset=by_user_npz": "dataset.path is missing; dataset by_user_npz needs it.",
    "dataset=digits dataset.path=x": "dataset.path is 'x', but dataset digits does not use it",
    "dataset=by_user_text dataset.path=x dataset.level=words model=char_lstm": "dataset.level is 'words', but model=char_lstm",
}


@pytest.mark.parametrize("data", WRONG_DATA)
def test_settings_that_no_data_could_be_loaded_with_start_nothing(files, monkeypatch, capsys, data):
    monkeypatch.setattr(warm_node, "start_module", lambda *given: pytest.fail("started"))
    words = ["clients=3", *data.split()]
    assert guard(lambda: form(words).function(composed(files, *words[1:]))) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {WRONG_DATA[data]}")
    with pytest.raises(SettingError) as refusal:
        Node.of(node_settings(" ".join(words))).dataset  # noqa: B018  what node_check does
    assert said == f"error: {refusal.value}\n"


class Started(Exception):
    pass


@pytest.mark.parametrize(
    "data",
    [
        "dataset=by_user_npz dataset.path=/none.npz",
        "dataset=by_user_npz dataset.path=FILE",
        "dataset=custom dataset.name=no_such_module:load",
    ],
)
def test_data_that_cannot_be_loaded_keep_no_node_from_starting(files, tmp_path, monkeypatch, data):
    def start(*given):
        raise Started

    (tmp_path / "x.npz").write_bytes(b"no array")
    words = ["clients=3", *data.replace("FILE", str(tmp_path / "x.npz")).split()]
    monkeypatch.setattr(warm_node, "start_module", start)
    with pytest.raises(Started):
        form(words).function(composed(files, *words[1:]))


def test_both_processes_are_told_the_same_secret_and_port_and_no_list_shows_it(files, monkeypatch):
    told = {}
    monkeypatch.setattr(warm_node, "start_module", lambda module, settings: told.update({module: settings}))
    for start in starts(composed(files), "clients=3").values():
        start()
    supernode, executor = told.values()
    assert supernode["secret"] == executor["secret"]
    assert len(bytes.fromhex(executor["secret"])) == 32
    arguments = supernode["arguments"]
    assert executor["secret"] not in " ".join(arguments)
    assert executor["address"] == f"127.0.0.1:{arguments[arguments.index('--port') + 1]}"
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"
    again = {}
    monkeypatch.setattr(warm_node, "start_module", lambda module, settings: again.update({module: settings}))
    for start in starts(composed(files), "clients=3").values():
        start()
    assert next(iter(again.values()))["secret"] != executor["secret"]


def test_a_port_that_another_process_has_ends_the_command_before_anything_starts(files, monkeypatch, capsys):
    monkeypatch.setattr(warm_node, "start_module", lambda *given: pytest.fail("started"))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert guard(lambda: form(["clients=3"]).function(composed(files, port=port))) == 1
        said = capsys.readouterr().err
        assert f"port {port} of the loopback interface cannot be used" in said
        assert "give another one, or port=null" in said


def test_a_free_port_that_was_taken_since_is_not_called_a_given_one(files, monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr(warm_node, "free_port", lambda: other.getsockname()[1])
        with pytest.raises(RunStoppedError, match="start the node again, which takes another") as refusal:
            starts(composed(files), "clients=3")["SuperNode"]()
    assert "port=" not in str(refusal.value)

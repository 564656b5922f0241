"""An operator's YAML file becomes the overrides of its command, and what is no such file is refused by file and key."""

import re

import pytest

from experiments.deployment.warm_node import NodeCommandSettings
from experiments.settings.compose import compose
from experiments.settings.operator_file import naming_file, overrides_of, with_file
from experiments.settings.overrides import as_overrides
from fedmf.errors import SettingError

NODE = """
superlink: fedmf.example.org:8443
root_certificates: /etc/fedmf/ca.crt
private_key: /etc/fedmf/node
clients: 479
pause: 1e-1
"""
OTHERS = ["superlink=a:1", "root_certificates=b", "private_key=c", "clients=3"]
FORMS = {
    "nested": 'dataset:\n  name: by_user_npz\n  path: /srv/my "own" data\'s\\x.npz\n  classes: 10\n',
    "dotted": 'dataset: by_user_npz\ndataset.path: /srv/my "own" data\'s\\x.npz\ndataset.classes: 10\n',
}


@pytest.fixture
def written(tmp_path):
    def write(text, name="node.yaml"):
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


def node(arguments):
    return compose("node", arguments, NodeCommandSettings)


@pytest.mark.parametrize("form", FORMS)
def test_a_nested_and_a_dotted_file_are_the_same_settings(written, form):
    settings = node(overrides_of(written(NODE + FORMS[form])))
    assert (settings.superlink, settings.clients, settings.pause) == ("fedmf.example.org:8443", 479, 0.1)
    assert (settings.dataset.name, settings.dataset.path) == (
        "by_user_npz",
        '/srv/my "own" data\'s\\x.npz',
    )
    assert settings.dataset.classes == 10
    assert settings.port is None


def test_an_import_path_as_a_name_is_code_of_ones_own(written):
    text = "dataset:\n  name: my.package:load\n  settings: {size: 3, of: [a, b]}\n"
    settings = node(overrides_of(written(NODE + text)))
    assert settings.dataset.name == "my.package:load"
    assert settings.dataset.settings == {"size": 3, "of": ["a", "b"]}


def test_a_date_and_a_number_in_quotes_stay_texts(written):
    file = written("private_key: 2026-01-02\nsuperlink: 'a:1'\nroot_certificates: '007'\nclients: 3\n")
    settings = node(overrides_of(file))
    assert (settings.private_key, settings.root_certificates) == ("2026-01-02", "007")


def test_letters_beyond_ascii_reach_a_setting():
    """A path of a hospital; the grammar of overrides takes them in quotes alone."""
    settings = node(
        [
            *as_overrides({"private_key": "büro/schlüssel", "root_certificates": "ça", "clients": 3}),
            "superlink=a:1",
        ]
    )
    assert (settings.private_key, settings.root_certificates) == ("büro/schlüssel", "ça")


def test_null_and_an_empty_file_are_no_settings_of_their_own(written):
    assert overrides_of(written("")) == overrides_of(written("# nothing\n")) == []
    assert overrides_of(written("port:\n")) == overrides_of(written("port: null\n")) == ["port=null"]


REFUSED = {
    "- a\n- b\n": "which holds no settings",
    "hello\n": "which holds no settings",
    "a: [1\n": "which is not YAML in line 2",
    "clients: 3\nport: 1\nclients: 4\n": "which is not YAML in line 3: clients stands twice.",
    "dataset: {path: a}\ndataset.path: b\n": "gives dataset.path twice",
    "+clients: 3\n": "holds the key '+clients'",
    "dataset: {~path: b}\n": "holds the key '~path' below dataset",
    "3: 4\n": "holds the key 3, which is no text",
    "dataset: {}\n": "gives dataset no value",
    "config: other.yaml\n": "holds the key config; a file names no other.",
    "clients: !!set {a, b}\n": "holds a set; settings are texts, numbers, lists and mappings",
    "clients: !!binary aGVsbG8=\n": "holds a bytes",
    "clients: !!python/object:os.system 3\n": "which is not YAML",
    "a: &a {b: *a}\n": "nests more than",
    b"clients: \xff\n": "which is no text in UTF-8",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_file_of_settings_is_refused_with_its_name(written, text):
    file = written(text)
    with pytest.raises(SettingError) as refused:
        overrides_of(file)
    assert REFUSED[text] in str(refused.value)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('root_certificates: "a\\0b"\n', "root_certificates"),
        ('dataset: {name: by_user_npz, path: "/a\\0b/x.npz"}\n', "dataset.path"),
        ('dataset: {name: by_user_csv, features: [a, "b\\0"]}\n', "dataset.features"),
        ('dataset:\n  name: my.package:load\n  settings: {of: {it: "a\\0b"}}\n', "dataset.settings"),
        ('private_key: "a\\ud800b"\n', "private_key"),
    ],
)
def test_characters_that_no_path_holds_are_refused_with_their_key(written, text, key):
    file = written(text)
    with pytest.raises(SettingError) as refused:
        overrides_of(file)
    assert str(refused.value).startswith(f"{file} gives {key} a value with the character '\\")
    assert str(refused.value).isprintable()


def test_a_tab_is_a_delimiter(written):
    file = written(NODE + 'dataset: {name: by_user_csv, path: x.csv, delimiter: "\\t"}\n')
    assert node(overrides_of(file)).dataset.delimiter == "\t"


@pytest.mark.parametrize(
    "text",
    [
        "private_key:\n",
        "clients: 1e9\n",
        "log: {a: {b: 1}}\n",
        "dataset: {name: by_user_csv, features: [a, null]}\n",
    ],
)
def test_a_value_of_another_kind_is_an_error_that_names_its_key_and_the_file(written, text):
    file = written(text)
    with pytest.raises(SettingError) as refused, naming_file(file):
        node([*OTHERS, *overrides_of(file)])
    assert re.search(r"private_key|clients|log|features", str(refused.value))
    assert f"(Settings are those of {file} and of the command line.)" in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SettingError, match=r"none\.yaml, which cannot be read: No such file"):
        overrides_of(tmp_path / "none.yaml")
    with pytest.raises(SettingError, match="which cannot be read: Is a directory"):
        overrides_of(tmp_path)


def test_words_on_the_command_line_win(written):
    file = written(NODE + FORMS["nested"])
    arguments = with_file(["clients=5", f"config={file}", "dataset.classes=7"])
    assert arguments[-3:] == ["clients=5", f"config={file}", "dataset.classes=7"]
    settings = node([word for word in arguments if not word.startswith("config=")])
    assert (settings.clients, settings.dataset.classes) == (5, 7)
    assert settings.dataset.name == "by_user_npz"


def test_another_data_set_on_the_command_line_leaves_the_files_out(written):
    file = written(NODE + FORMS["nested"])
    words = with_file([f"config={file}", "dataset=digits"])
    assert [word for word in words if word.startswith("dataset")] == ["dataset=digits"]
    assert node([word for word in words if not word.startswith("config=")]).dataset.name == "digits"
    same = with_file([f"config={file}", "dataset=by_user_npz"])
    assert "dataset.classes=10" in same


def test_a_command_without_a_file_keeps_its_arguments_and_two_files_are_refused(written):
    assert with_file(["clients=5"]) == ["clients=5"]
    assert with_file(["config=null", "clients=5"]) == ["config=null", "clients=5"]
    file = written(NODE)
    with pytest.raises(SettingError, match="config is given 2 times"):
        with_file([f"config={file}", f"config={file}"])
    spaced = written(NODE, "my node.yaml")
    assert "clients=479" in with_file([f"config='{spaced}'"])


def test_what_is_missing_is_said_with_the_file(written):
    file = written("clients: 3\nroot_certificates: a\nprivate_key: b\n")
    with pytest.raises(SettingError, match="superlink") as refused, naming_file(file):
        node(overrides_of(file))
    assert f"Settings are those of {file}" in str(refused.value)

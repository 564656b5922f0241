"""What --help shows: every key from the one reference, with its default and meaning, and nothing internal."""

import re

import pytest

from experiments.cli.help import print_help
from experiments.settings.reference import SETTINGS, experiments, reference
from fedmf.errors import SettingError

INTERNAL = re.compile(r"_target_|omegaconf|_self_|\?\?\?|dataclass|experiments\.settings", re.IGNORECASE)


@pytest.fixture
def shown(capsys):
    def show(command, *topics):
        print_help(
            command, "Do it: `python -m experiments.plan`.\n\n    fedmf plan epsilon=1", ["--help", *topics]
        )
        return capsys.readouterr().out

    return show


def shows(text, *parts):
    """Return whether the words of all parts are shown: columns tear them apart."""
    return {*" ".join(parts).split()} <= {*text.split()}


@pytest.mark.parametrize("name", SETTINGS)
def test_help_shows_every_key_with_default_and_meaning_in_100_columns_and_a_topic_all_choices(name, shown):
    known, text = reference(name), shown(name)
    assert not INTERNAL.search(text), INTERNAL.search(text)
    assert max(map(len, text.splitlines())) <= 100
    for item in known.settings:
        if not item.group or item.is_of(known.groups[item.group].default):
            assert shows(text, item.meaning), item
            assert item.key in "".join(text.split())
    for group, about in known.groups.items():
        assert shows(text.replace(":", ""), about.about.replace(":", ""))
        topic = shown(name, group)
        for item in known.settings:
            if item.group == group:
                assert all(choice in "".join(topic.split()) for choice in (item.key, *item.choices, *item.of))


def test_help_of_a_run_names_the_published_runs_and_a_key_is_a_topic(shown):
    assert shows(shown("simulate"), ", ".join(experiments()))
    text = shown("simulate", "model.hidden")
    assert "model.hidden = 256" in text
    assert "model.embedding" not in text
    for topic, nearest in (("modle", "model"), ("model.hiden", "model.hidden")):
        with pytest.raises(SettingError, match=rf"mean {re.escape(nearest)}\?"):
            shown("simulate", topic)

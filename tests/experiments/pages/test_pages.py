"""report.html, compare.html and their commands: what is shown, no request to a network, no secret, no output through a link."""

import ast
import csv
import json
import os
import re
import shutil
import statistics
from base64 import b64decode
from pathlib import Path

import pytest
from PIL import Image

import written_run
from experiments.compare import CompareSettings, compare
from experiments.mechanisms import MechanismsSettings, mechanisms
from experiments.pages.comparison import claims, read_comparison
from experiments.pages.run_page import write_report
from experiments.report import ReportSettings, report
from experiments.run_files.directory import open_no_link
from experiments.run_files.listing import as_lists
from experiments.settings.compose import compose
from fedmf.errors import RunDirectoryError
from server.files import write_output


def page(directory, **changes):
    """Return the report of a written run."""
    write_report(written_run.write(directory, **changes))
    return (directory / "report.html").read_text()


def requests(html):
    """Return everything that would make a browser ask a network for something."""
    loading = r'\b(?:src|href|data|srcset|poster|action|background)="(?!#|data:)([^"]*)'
    found = re.findall(loading, re.sub(r">[^<]*<", "><", html))
    return found + [word for word in ("@import", "url(http", "url(//", "<script", "<iframe") if word in html]


def test_the_page_asks_nothing_of_a_network_and_no_secret_file_is_opened(tmp_path):
    (secret := tmp_path / "checkpoint").mkdir()
    (secret / "key").write_text("SECRET-KEY")
    (secret / "key").chmod(0)
    html = page(tmp_path)
    assert requests(html) == []
    pictures = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)', html)
    assert pictures
    for picture in pictures:
        svg = b64decode(picture).decode()
        assert all(address.startswith("#") for address in re.findall(r'href="([^"]*)"', svg))
    assert not [words for words in ("SECRET-KEY", "checkpoint") if words in html]
    assert html == page(tmp_path)


def test_all_warnings_come_first_each_once_and_a_private_run_has_none(tmp_path):
    assert 'class="warning"' not in page(tmp_path)
    stated = {
        "paragraph": "Words. NOT private. Delta is large.",
        "warnings": ["NOT private.", "Warning: Delta is large."],
    }
    html = page(
        tmp_path,
        summary={"learnt": False, "learning": "NOT learnt."},
        privacy=stated,
        mechanism={"misgivings": ["Too much noise.", "Delta is large."]},
        config={"run": {"optimized_metric": "recall"}},
    )
    assert [warning[:34] for warning in re.findall(r'<p class="warning">(.*?)</p>', html)] == [
        "Too much noise.",
        "NOT private.",
        "Delta is large.",
        "Choosing settings by the recall of",
        "NOT learnt.",
    ]
    assert html.rindex('class="warning"') < html.index("<main>")
    lines = written_run.metrics(private=False)
    assert page(tmp_path, summary={"epsilon": None}, metrics=lines).count("<img") == 4


def test_a_foreign_directory_brings_no_code_to_the_page_and_settings_name_no_folder(tmp_path):
    names = ["mine:<script>", "a:b c", "<b>", "mine:recall", 3, {"f1": 2}]
    lines = [line | {"<script>": 0.5, "<b>": 0.5, "recall": 0.5} for line in written_run.metrics()]
    data = {"name": "digits", "path": "/home/somebody/private/data.npz"}
    config = {"metrics": names, "dataset": data, "run": {"directory": str(tmp_path)}}
    html = page(tmp_path / "r", config=config, metrics=lines)
    assert requests(html) == []
    assert html.count("by round</h2>") == 4  # accuracy, loss, epsilon and recall
    assert "…/data.npz" in html
    assert not [words for words in ("<b>", "/home/somebody", f"{tmp_path.parent}") if words in html]
    assert data["path"] in (tmp_path / "r" / "config.yaml").read_text()


NAMES = ("accuracy_by_round", "bytes_by_round", "epsilon_by_round", "loss_by_round", "noise_by_round")


def reported(directory, *overrides):
    report(compose("report", [f"directory={directory}", *overrides], ReportSettings))


def test_every_plot_of_the_page_is_a_png_an_svg_and_a_pdf_as_wide_as_a_column(tmp_path, capsys):
    directory = written_run.write(tmp_path / "r", mechanism={"update_noise_std": 0.03})
    reported(directory, f"plots={tmp_path / 'p'}", "output=json")
    printed = json.loads(capsys.readouterr().out)
    files = {tmp_path / "p" / f"{name}.{form}" for name in NAMES for form in ("png", "svg", "pdf")}
    assert set((tmp_path / "p").iterdir()) == set(map(Path, printed["plots"])) == files
    assert (directory / "report.html").read_text().count("<img") == len(NAMES)
    assert printed["page"] == str(directory / "report.html")
    with Image.open(tmp_path / "p" / "noise_by_round.png") as image:
        assert image.size[0] == pytest.approx(300 * 3.25, abs=1)


def test_without_plots_the_page_alone_is_written_and_an_error_changes_nothing(tmp_path, capsys):
    directory = written_run.write(tmp_path / "r")
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(RunDirectoryError, match=r"plots is .* is a file; name a directory"):
        reported(directory, f"plots={tmp_path / 'mine'}")
    assert not (directory / "report.html").exists()
    reported(directory)
    assert capsys.readouterr().out == f"{directory / 'report.html'}\n"


@pytest.fixture
def compared(tmp_path, capsys):
    """A function that compares the runs below tmp_path and returns its JSON document, its page and what it prints."""

    def outputs(*overrides):
        printed = []
        for form in ("json", "text"):
            given = [f"directory={tmp_path}", f"output={form}", *overrides]
            compare(compose("compare", given, CompareSettings))
            printed.append(capsys.readouterr().out)
        return json.loads(printed[0]), (tmp_path / "compare.html").read_text(), " ".join(printed[1].split())

    return outputs


def rows(directory):
    return list(csv.DictReader((directory / "compare.csv").read_text().splitlines()))


def test_seeds_become_a_mean_and_a_standard_error_in_every_output(tmp_path, compared):
    written_run.sweep(tmp_path, keeps=(0.1, 0.5), seeds=(1, 2, 4))
    document, html, printed = compared()
    assert document["runs"] == 6
    for group, row, keep in zip(document["groups"], rows(tmp_path), (0.1, 0.5), strict=True):
        values = [0.60, 0.62, 0.66]
        assert group["accuracy"] == float(row["accuracy"]) == pytest.approx(statistics.mean(values))
        assert group["accuracy_standard_error"] == pytest.approx(statistics.stdev(values) / 3**0.5)
        assert (group["compression.keep_probability"], group["seeds"]) == (keep, [1, 2, 4])
        assert row["seeds"] == "1 2 4"
    assert all("62.7 ± 1.8 %" in said for said in (html, printed))
    assert html.count("<img") == html.count("<figcaption") == 3
    assert html.index(">accuracy</th>") < html.index(">keep probability</th>")
    for said in (html, printed):  # of all groups, once
        assert (
            "All runs: dataset = digits, model = logistic, mechanism = optimal, rotation = identity" in said
        )
        assert "seeds 3, runs 3, compression 6.35 times, bytes to accuracy 60.0 %" in said
    assert [group["names"][0] for group in document["groups"]] == ["optimal-8.0-0.1-1", "optimal-8.0-0.5-1"]
    assert '<a href="optimal-8.0-0.1-2/report.html">optimal-8.0-0.1-2</a>' in html
    assert (
        len(
            re.findall(
                r"(?m)^optimal-8.0-0.\d-1, .* & 62.7 \$\\pm\$ 1.8 \\% &",
                (tmp_path / "compare.tex").read_text(),
            )
        )
        == 2
    )


def test_runs_of_several_folders_are_chosen_and_sorted_and_unlike_ones_have_their_settings_in_words(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    written_run.sweep(
        tmp_path / "a", mechanisms=("optimal", "independent"), epsilons=(1.0, 4.0, 8.0), seeds=(1,)
    )
    for number, model in enumerate(("mlp", "cnn")):
        own = {"hidden": 12, "activation": "relu", "dropout": 0.5, "norm": None}
        config = {"model": {"name": model, **own}, "client": {"learning_rate": 0.5}}
        written_run.write(tmp_path / "b" / model, config=config, summary={"accuracy": 0.9 + 0.01 * number})
    given = [
        str(tmp_path / "a"),
        str(tmp_path / "b"),
        "where=epsilon<9,seed=1",
        "where=accuracy>0.55",
        "output=json",
    ]

    def compared(*overrides):
        compare(compose("compare", as_lists([*given, *overrides]), CompareSettings))
        return json.loads(capsys.readouterr().out)

    groups = compared()["groups"]
    assert [Path(group["names"][0]).name for group in groups][:2] == ["cnn", "mlp"]
    assert [group["accuracy"] for group in groups] == sorted(
        (group["accuracy"] for group in groups), reverse=True
    )
    by_model = [group["model.name"] for group in compared("sort=model")["groups"]]
    assert by_model == sorted(by_model)
    html = (tmp_path / "comparison" / "compare.html").read_text()  # and no run's or sweep's folder has one
    assert "hidden = 12" in re.findall(r'data-label="other settings">([^<]*)', html)[0]
    assert '<a href="../b/cnn/report.html">' in html
    assert "hidden = –" not in html  # of a model that has none
    with pytest.raises(
        RunDirectoryError, match=r"^directory is .*/a, .*/b, which has no finished run with .*model=lstm"
    ):
        compared("where=model=lstm")


def test_a_score_is_drawn_and_counted_for_the_groups_that_have_it(tmp_path, compared, monkeypatch):
    written_run.sweep(tmp_path, epsilons=(1.0, 8.0))
    monkeypatch.delitem(written_run.SUMMARY, "accuracy")
    written_run.write(
        tmp_path / "amounts",
        summary={"r2": 0.5, "epsilon": None},
        metrics=[line | {"r2": 0.5} for line in written_run.metrics()],
    )
    html, tex = compared()[1], (tmp_path / "compare.tex").read_text()
    found = [
        words in html
        for words in ("2 of 3 groups have both values", ">R²</th>", "R² by round", "R² against epsilon")
    ]
    assert (*found, "& R$^2$ &" in tex) == (True, True, True, False, True)


def test_unfinished_and_unreadable_runs_are_named_and_do_not_count(tmp_path, compared):
    written_run.write(tmp_path / "crashed", summary=None)
    with pytest.raises(RunDirectoryError, match=r"no finished run; it must be .* crashed is unfinished"):
        read_comparison(str(tmp_path))
    for name in ("bare", "good", "lost", "torn"):
        written_run.write(tmp_path / name)
    (tmp_path / "lost" / "privacy.json").unlink()
    (tmp_path / "lost" / "privacy.json").symlink_to("/proc/self/mem")  # which the system cannot read
    (tmp_path / "torn" / "summary.json").write_text('{"accuracy": 0.')
    (tmp_path / "bare" / "privacy.json").unlink()
    document, html, printed = compared()
    assert document["runs"] == 1
    assert list(document["left_out"]) == ["bare", "crashed", "lost", "torn"]
    assert "summary.json is not JSON" in document["left_out"]["torn"]
    for said in (html, printed):
        assert "left out, crashed: unfinished" in said


def test_every_output_says_for_whom_epsilon_holds_and_what_is_not_private(tmp_path, compared):
    claim = {"delta": 1e-4, "unit_of_privacy": "one person = one client", "adjacency": "zero_out"}
    for number, epsilon in enumerate((4.0, 7.9996)):  # of one seed
        config = {"run": {"reproducible": bool(number)}}
        lines = [line | {"accuracy": 0.01} for line in written_run.metrics()]
        summary = {"epsilon": epsilon}
        written_run.write(
            tmp_path / str(number), privacy=claim, config=config, summary=summary, metrics=lines
        )
    open_run = written_run.write(tmp_path / "none" / "open", summary={"epsilon": None})
    alone = read_comparison(str(open_run))
    assert not list(claims(alone.groups))  # without an epsilon none is claimed
    assert (alone.groups[0].row["names"], alone.directory) == (["open"], Path("comparison"))
    shutil.rmtree(open_run)
    document, html, printed = compared()
    (group,), (row,) = document["groups"], rows(tmp_path)
    assert [group[name] for name in claim] == ["0.0001", "one person = one client", "zero_out"]
    assert (group["private"], group["seeds"], group["runs"]) == (False, [1], 2)
    assert (row["adjacency"], row["private"], row["seeds"]) == ("zero_out", "False", "1")
    for said in (html, printed):
        for words in (
            "at delta = 0.0001, for one person = one client, under zero-out adjacency",
            "1 of 2 runs are NOT private",
            "all runs: 2 runs of 1 seed. Runs of one seed differ in their noise alone",
        ):
            assert words in said
    assert "1 group;" in html
    assert "bytes to" not in printed  # of no accuracy that all reach
    assert 'data-label="epsilon spent">8</td>' in html  # of a group the largest, rounded up


ROOT = Path(__file__).resolve().parents[3]
COMMANDS = {
    "compare": (compare, CompareSettings, ["directory={place}", "plots={place}/plots"]),
    "report": (report, ReportSettings, ["directory={place}/0", "plots={place}/plots"]),
    "mechanisms": (mechanisms, MechanismsSettings, ["rounds=4", "families=[optimal]", "export={place}"]),
}
# Written in folders that this process has made for itself alone.
PRIVATE = {"client/data/conversion.py"}


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
        case "write_text" | "write_bytes", [_]:
            return True
        case "open", given:  # a call with a descriptor writes what was opened before
            return not re.match(r"descriptor$|os\.open\(", "".join(given[:1])) and any(
                mode.strip("'") in ("w", "a", "wb", "ab", "w+b") for mode in given
            )
    return False

"""A process that has imported the code beforehand runs a run's bundle only where both are the same, file by file."""

import io
import warnings
import zipfile

import pytest
from flwr.cli.build import build_fab_from_disk

import zip_heads
from experiments.deployment.same_code import (
    ROOT,
    OtherCodeError,
    bundled_files,
    installed_files,
    refuse_changed_code,
    refuse_other_code,
    stamp_of,
)


@pytest.fixture(scope="module")
def bundle():
    """What `flwr run` makes of this checkout."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's, of the matcher of names
        return build_fab_from_disk(ROOT)


def rewritten(bundle, change):
    """Return the bundle whose {name: content} `change` has changed in place."""
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


def test_the_bundle_of_this_checkout_is_the_installed_code(bundle):
    files = bundled_files(bundle)
    refuse_other_code(files, installed_files())
    assert {"client/app.py", "conf/config.yaml", "experiments/settings/schema.py"} <= set(files)


def comment(files):
    files["client/app.py"] += b"# a comment\n"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (comment, "client/app.py differs"),
        (lambda files: files.pop("fedmf/plan.py"), "fedmf/plan.py differs"),
        (lambda files: files.update({"client/more.py": b""}), "client/more.py differs"),
        (lambda files: files.update({"conf/config.yaml": b"seed: 1\n"}), "conf/config.yaml differs"),
        (lambda files: files.update({"flwr/x.py": b"", "flwr/y.py": b""}), "flwr/x.py, flwr/y.py differ."),
    ],
    ids=["a comment", "a file less", "a file more", "a default", "another package"],
)
def test_one_file_that_differs_is_named(bundle, change, named):
    other = rewritten(bundle, change)
    with pytest.raises(OtherCodeError, match="Install the same version here") as error:
        refuse_other_code(bundled_files(other), installed_files())
    assert named in str(error.value)


def test_a_bundle_with_another_app_is_refused(bundle):
    def change(files):
        files["pyproject.toml"] = files["pyproject.toml"].replace(b"apps:client_app", b"apps:server_app")

    with pytest.raises(OtherCodeError, match=r"names the client app .*server_app"):
        bundled_files(rewritten(bundle, change))


def test_a_server_refuses_a_bundle_with_another_server_app(bundle):
    assert bundled_files(bundle, "serverapp") == bundled_files(bundle)

    def change(files):
        files["pyproject.toml"] = files["pyproject.toml"].replace(b"apps:server_app", b"apps:mine")

    other = rewritten(bundle, change)
    bundled_files(other)
    with pytest.raises(OtherCodeError, match=r"names the server app .*apps:mine"):
        bundled_files(other, "serverapp")


def test_a_file_that_was_changed_or_removed_changes_the_stamp(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("1")
    before = stamp_of(["a.py"], tmp_path)
    assert stamp_of(["a.py"], tmp_path) == before
    file.write_text("2")
    changed = stamp_of(["a.py"], tmp_path)
    file.unlink()
    assert len({before, changed, stamp_of(["a.py"], tmp_path)}) == 3


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_what_is_no_bundle_is_refused(content):
    with pytest.raises(OtherCodeError, match="cannot be read"):
        bundled_files(content)


@pytest.mark.parametrize("head", zip_heads.HEADS)
def test_a_bundle_with_a_damaged_head_is_refused(head):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("pyproject.toml", "[tool.flwr.app.components]\n")
    with pytest.raises(OtherCodeError, match="cannot be read"):
        bundled_files(zip_heads.flipped(content.getvalue(), head))


def test_a_bundle_without_settings_is_refused(bundle):
    with pytest.raises(OtherCodeError, match="cannot be read"):
        bundled_files(rewritten(bundle, lambda files: files.pop("pyproject.toml")))


def test_code_that_changed_on_disk_after_its_import_is_noticed(tmp_path):
    (tmp_path / "client").mkdir()
    file = tmp_path / "client/app.py"
    file.write_text("x = 1\n")
    imported = installed_files(tmp_path)
    assert list(imported) == ["client/app.py"]
    refuse_changed_code(installed_files(tmp_path), imported)
    file.write_text("x = 2\n")
    with pytest.raises(OtherCodeError, match=r"has changed since it was imported: client/app.py differs"):
        refuse_changed_code(installed_files(tmp_path), imported)

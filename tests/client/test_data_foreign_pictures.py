"""Pictures are PNG or JPEG: no other decoder sees what a user put into a file, and no decoder's error ends a run."""

import io
import os
import subprocess
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import EpsImagePlugin, Image, PngImagePlugin

import small_files
from client.data import femnist, load, sources
from fedmf.errors import DataError

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 28 28\n%%EndComments\nshowpage\n%%EOF\n"
COUNT = len(small_files.USERS) * small_files.ROWS


def encoded(kind: str, size: tuple[int, int] = (28, 28)) -> bytes:
    """Return a grey picture in one of Pillow's formats, or as PostScript."""
    if kind == "EPS":
        return EPS
    data = io.BytesIO()
    Image.new("L", size, 7).save(data, kind)
    return data.getvalue()


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program where Pillow looks for Ghostscript; the file that it leaves says that it was started."""
    (programs := tmp_path / "programs").mkdir()
    program = programs / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    return tmp_path / "started"


@pytest.mark.parametrize("kind", ["EPS", "BMP", "GIF", "TIFF", "PPM", "WEBP"])
@pytest.mark.parametrize("form", ["own_column", "own_pictures", "femnist_parquet"])
def test_a_training_picture_that_is_neither_png_nor_jpeg_concerns_its_user_and_starts_no_program(
    tmp_path: Path, started: Path, form: str, kind: str
) -> None:
    given = small_files.settings(form, tmp_path)
    path, content = Path(given["path"]), encoded(kind)
    if form == "own_pictures":
        (path / "b.png").write_bytes(content)
        table = path / "metadata.csv"
        table.write_text(table.read_text().replace("a.png,bob", "b.png,bob", 1))
    else:
        name = "picture" if form == "own_column" else "image"
        column = [{"bytes": content, "path": None} if row == 6 else small_files.png() for row in range(COUNT)]
        (small_files.own_parquet if form == "own_column" else small_files.parquet)(path, **{name: column})
    dataset = load(**given)
    assert len(dataset.clients[0]) > 0
    with pytest.raises(DataError, match=r"must be PNG or JPEG|could not be read"):
        dataset.clients[1]
    assert not started.exists()


def test_a_test_picture_that_is_neither_png_nor_jpeg_is_refused(tmp_path: Path, started: Path) -> None:
    column = [small_files.png()] * (COUNT - 1) + [{"bytes": EPS, "path": None}]
    path = small_files.own_parquet(tmp_path / "data.parquet", picture=column)
    with pytest.raises(DataError, match="is no picture of a known format; it must be PNG or JPEG"):
        load("by_user_parquet", path=str(path), image="picture")
    assert not started.exists()


def test_a_download_leaves_pictures_to_the_same_decoder(tmp_path: Path, started: Path) -> None:
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "writer_id": datasets.Value("string"),
            "character": datasets.Value("int8"),
        }
    )
    pictures = [{"bytes": encoded("EPS"), "path": None}, {"bytes": encoded("PNG"), "path": None}]
    table = {"image": pictures, "writer_id": ["a", "b"], "character": [1, 2]}
    download = sources.downloaded(datasets.Dataset.from_dict(table, features=features), femnist.FILES)
    split = femnist.BENCHMARK.gathered(download, "all")
    assert split.y.tolist() == [-1, 2]
    np.testing.assert_array_equal(split.x[1], 7)
    assert not started.exists()


def test_whatever_a_decoder_raises_is_an_error_of_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = small_files.settings("own_column", tmp_path)
    dataset = load(**given)

    def fail(self: object) -> None:
        raise subprocess.CalledProcessError(1, "a program")

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", fail)
    with pytest.raises(DataError, match=r"cannot be read as a picture .*CalledProcessError"):
        dataset.clients[1]
    with pytest.raises(DataError, match=r"cannot be read as a picture .*CalledProcessError"):
        load(**given)


@pytest.mark.parametrize("empty", [None, ""])
def test_a_training_row_that_names_no_file_concerns_its_user_alone(tmp_path: Path, empty: str | None) -> None:
    small_files.pictures(tmp_path / "pictures")
    (tmp_path / "pictures" / "metadata.csv").unlink()
    names = ["a.png"] * COUNT
    table = small_files.table() | {"file_name": [*names[:6], empty, *names[7:]]}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "pictures" / "metadata.parquet")
    dataset = load("by_user_images", path=str(tmp_path / "pictures"))
    assert len(dataset.clients[0]) == len(dataset.clients[2]) == 5
    with pytest.raises(DataError, match="cannot be read as a file"):
        dataset.clients[1]
    table["file_name"] = [*names[:-1], empty]
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "pictures" / "metadata.parquet")
    with pytest.raises(DataError, match="cannot be read as a file"):
        load("by_user_images", path=str(tmp_path / "pictures"))

"""Pictures and lists, in tables and folders: read when their client's turn comes, by no decoder but those of PNG and JPEG."""

import os
import subprocess
import warnings
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import EpsImagePlugin, Image, PngImagePlugin

import small_files
from client.data import load
from client.data.clients import digest_clients
from fedmf.errors import DataError, SettingError
from plans import KEY
from small_files import encoded, opened, rows, write

PIXELS = np.random.default_rng(0).integers(0, 256, (30, 6, 4)).astype(np.uint8)
USERS, LABELS = ("zoe", "ann", "7"), ("cat", "dog")
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 28 28\n%%EndComments\nshowpage\n%%EOF\n"
COUNT = len(small_files.USERS) * small_files.ROWS


IMAGES = np.random.default_rng(0).integers(0, 256, (12, 4, 5, 3)).astype(np.uint8)


def lists_of(values):
    return pyarrow.array(values, pyarrow.list_(pyarrow.list_(pyarrow.list_(pyarrow.uint8()))))


def with_pictures(kind):
    """Return rows with IMAGES in the column `image`, as one of the ways in which tables hold pictures."""
    image = {
        "bytes": [encoded(image) for image in IMAGES],
        "struct": [{"bytes": encoded(image), "path": None} for image in IMAGES],
        "lists": lists_of(IMAGES.tolist()),
    }[kind]
    return {key: rows()[key] for key in ("user", "label", "split")} | {"image": image}


def draw(path, number, mode="L", kind="PNG"):
    """Write picture `number`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(PIXELS[number]).convert(mode).save(path, format=kind)


def folders(root, below="", numbers=range(30)):
    """Write pictures USER/LABEL/FILE: users in turn, and labels."""
    for n in numbers:
        draw(root / below / USERS[n % 3] / LABELS[n % 2] / f"{n:02}.png", n)
    return root


def test_sub_folders_are_users_and_theirs_are_labels(tmp_path):
    folders(tmp_path)
    (tmp_path / ".DS_Store").write_text("a system's own")
    (tmp_path / "ann" / "Thumbs.db").write_text("a system's own")
    dataset = load("by_user_images", path=str(tmp_path))
    assert ([len(client) for client in dataset.clients], len(dataset.test)) == ([8, 8, 8], 6)
    assert (dataset.input_shape, dataset.classes, dataset.unit) == ((6, 4), 2, "one user = one client")
    for client, user in zip(dataset.clients, sorted(USERS), strict=True):
        own = [n for n in range(30) if USERS[n % 3] == user]
        held = [next(n for n in range(30) if np.allclose(x, PIXELS[n] / 255, atol=1e-6)) for x in client.x]
        assert set(held) < set(own)
        assert client.y.tolist() == [n % 2 for n in held]
        assert client.x.dtype == np.float32


def test_folders_train_and_test_are_the_split_and_numbered_folders_are_class_numbers(tmp_path):
    folders(tmp_path / "names", "train", range(20))
    folders(tmp_path / "names", "test", range(20, 30))
    dataset = load("by_user_images", path=str(tmp_path / "names"), labels=["dog", "cat"])
    assert (sum(len(client) for client in dataset.clients), len(dataset.test)) == (20, 10)
    tested = {tuple(x.ravel().round(4)) for x in dataset.test.x}
    assert tested == {tuple((PIXELS[n] / np.float32(255)).ravel().round(4)) for n in range(20, 30)}
    assert sorted(dataset.test.y) == [0] * 5 + [1] * 5
    for n in range(10):
        draw(tmp_path / "numbers" / "ann" / str(n % 2 * 7) / f"{n}.png", n, "1")
    dataset = load("by_user_images", path=str(tmp_path / "numbers"), classes=9)
    assert (dataset.classes, {*dataset.clients[0].x.flat}) == (9, {0, 1})  # of a bit a pixel
    assert set(dataset.clients[0].y) | set(dataset.test.y) == {0, 7}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_names_files_users_and_labels(tmp_path, form):
    for n in range(12):
        draw(tmp_path / "deep" / f"{n}.jpg", n, "RGB")
    table = {
        "name": [f"deep/{n}.jpg" for n in range(12)],
        "who": [USERS[n % 3] for n in range(12)],
        "what": [n % 4 for n in range(12)],
        "part": ["test" if n > 8 else "train" for n in range(12)],
    }
    write(tmp_path / f"table.{form}", form, table)
    names = {"file": "name", "user": "who", "label": "what", "split": "part"}
    dataset = load("by_user_images", path=str(tmp_path), table=str(tmp_path / f"table.{form}"), **names)
    assert (dataset.input_shape, dataset.classes) == ((6, 4, 3), 4)
    np.testing.assert_allclose(dataset.clients[1].x[..., 0], PIXELS[[1, 4, 7]] / 255, atol=1e-6)
    assert [client.y.tolist() for client in dataset.clients] == [[2, 1, 0], [1, 0, 3], [0, 3, 2]]
    np.testing.assert_allclose(dataset.test.x[..., 2], PIXELS[9:12] / 255, atol=1e-6)


def test_pictures_are_read_when_their_client_takes_its_turn(tmp_path):
    """A missing, damaged or odd picture of one user is an error of that client alone, and not of the run."""
    folders(tmp_path, "train", range(20))
    folders(tmp_path, "test", range(20, 30))
    before = digest_clients(load("by_user_images", path=str(tmp_path)).clients, KEY)
    (tmp_path / "train" / "ann" / "dog" / "01.png").write_bytes(b"no picture")
    draw(tmp_path / "train" / "zoe" / "cat" / "00.png", 0, "RGB")
    dataset = load("by_user_images", path=str(tmp_path))
    assert len(dataset.clients[0]) == 6
    odd_size = r"00\.png has the shape \[6, 4, 3\], but a picture of this dataset has \[6, 4\]"
    for client, sentence in ((1, r"01\.png is no picture of a known format"), (2, odd_size)):
        with pytest.raises(DataError, match=sentence):
            dataset.clients[client]
    after = digest_clients(dataset.clients, KEY)
    assert before != after == digest_clients(dataset.clients, KEY)


@pytest.mark.parametrize(
    ("settings", "file", "sentence"),
    [
        ({"user": "who"}, None, "user is 'who', but there is no table, and folders say it"),
        ({"file": "name"}, None, "file is 'name', but there is no table"),
        ({"table": "none.csv"}, None, r"table is none\.csv, which does not exist"),
        (
            {},
            "ann/dog/notes.txt",
            r"ann/dog/notes\.txt is no picture .*; a picture ends in \.png.*\. Move it out of /",
        ),
        ({}, "README.txt", r"README\.txt is no picture at USER/LABEL/FILE"),
        ({}, "ann/notes.png", r"notes\.png is no picture at USER/LABEL/FILE"),
        (
            {},
            "train/ann/dog/1.png",
            "holds pictures at USER/LABEL/FILE and below other folders than train and test",
        ),
    ],
)
def test_a_folder_that_cannot_be_used_says_what_would_be_right(tmp_path, settings, file, sentence):
    folders(tmp_path)
    if file:
        draw(tmp_path / file, 0)
    with pytest.raises((DataError, SettingError), match=sentence):
        load("by_user_images", path=str(tmp_path), **settings)


@pytest.mark.parametrize(
    "name", ["../secret.png", "{tmp}/secret.png", "deep/../../secret.png", "deep/../0.png", ""]
)
def test_a_table_names_no_file_outside_its_folder(tmp_path, name):
    """As a value of the user whose row it is: a test row is refused, a training row spoils its client alone."""
    (folder := tmp_path / "pictures" / "deep").mkdir(parents=True)
    folder = folder.parent
    for n in range(6):
        draw(folder / f"{n}.png", n)
    (folder / "5.png").rename(tmp_path / "secret.png")
    (folder / "5.png").symlink_to(tmp_path / "secret.png")

    def listed(odd):
        files = [name.format(tmp=tmp_path) if n == odd else f"{n}.png" for n in range(6)]
        lines = [f"{file},{'ab'[n % 2]},0,{int(n > 3)}" for n, file in enumerate(files)]
        (folder / "metadata.csv").write_text("\n".join(["file_name,user,label,split", *lines]))
        return load("by_user_images", path=str(folder))

    sentence = r"in row {} of .* is no file of it; it must be one below|cannot be read as a file"
    with pytest.raises(DataError, match=sentence.format(5)):
        listed(4)
    dataset = listed(0)
    np.testing.assert_allclose(dataset.test.x, PIXELS[4:6] / 255, atol=1e-6)  # one of them by its link
    assert len(dataset.clients[1]) == 2
    with pytest.raises(DataError, match=sentence.format(1)):
        dataset.clients[0]


# Columns of pictures and lists.


@pytest.mark.parametrize("kind", ["bytes", "struct", "lists"])
def test_pictures_of_a_column_are_the_pixels_over_255(tmp_path, kind):
    dataset = opened(tmp_path, "parquet", with_pictures(kind), image="image")
    assert dataset.input_shape == (4, 5, 3)
    np.testing.assert_allclose(dataset.clients[1].x, IMAGES[[1, 4, 7]] / 255, atol=1e-6)
    np.testing.assert_allclose(dataset.test.x, IMAGES[9:] / 255, atol=1e-6)


def test_a_saved_data_set_may_have_declared_pictures_arrays_and_splits(tmp_path):
    values = np.arange(72, dtype=np.float32).reshape(12, 2, 3)
    table = with_pictures("struct") | {"x": list(values)}
    del table["split"]
    kinds = {"user": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes", "unsure"])}
    features = datasets.Features(
        {**kinds, "image": datasets.Image(), "x": datasets.Array2D((2, 3), "float32")}
    )
    whole = datasets.Dataset.from_dict(table, features=features)
    parts = {"train": whole.select(range(9)), "test": whole.select([11, 9]), "other": whole.select([10])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    dataset = load("by_user_hub", path=str(tmp_path / "saved"), image="image")
    assert ([len(client) for client in dataset.clients], dataset.classes) == ([3, 3, 3], 3)
    np.testing.assert_allclose(dataset.clients[2].x, IMAGES[[0, 3, 6]] / 255, atol=1e-6)
    np.testing.assert_allclose(dataset.test.x, IMAGES[[11, 9]] / 255, atol=1e-6)
    lists = load("by_user_hub", path=str(tmp_path / "saved"), features=["x"])
    np.testing.assert_array_equal(lists.clients[2].x, values[[0, 3, 6]])
    np.testing.assert_array_equal(lists.test.x, values[[11, 9]])


def test_lists_in_many_chunks_are_taken_in_any_order(tmp_path):
    for number in range(3):
        table = {"user": [1, 2, 1, 2], "label": [0] * 4, "split": [0, 0, 1, 1]}
        lists = [[float(number), float(row)] for row in range(4)]
        pyarrow.parquet.write_table(pyarrow.table({**table, "x": lists}), tmp_path / f"{number}.parquet")
    dataset = load("by_user_parquet", path=str(tmp_path), features=["x"])
    assert dataset.clients[1].x.tolist() == [[0, 1], [1, 1], [2, 1]]
    assert dataset.test.x.tolist() == [[n, row] for n in range(3) for row in (2, 3)]
    assert dataset.clients.held.x[np.array([11, 9, 0, 4])].tolist() == [[2, 3], [2, 1], [0, 0], [1, 0]]


def test_a_list_of_another_shape_in_a_test_row_is_refused_and_in_a_training_row_has_a_digest(
    tmp_path,
):
    digests = set()
    for row, place in ((1, 1), (1, 2), (2, 1), (10, 1)):
        values = IMAGES.tolist()
        values[row], values[0] = values[row][:-1], values[place]
        table = with_pictures("lists") | {"image": lists_of(values)}
        if row == 10:
            with pytest.raises(DataError, match="is not of the shape"):
                opened(tmp_path, "parquet", table, image="image")
        else:
            digests.add(digest_clients(opened(tmp_path, "parquet", table, image="image").clients, KEY))
    assert len(digests) == 3


# No other decoder sees what a user put into a file, and no decoder's error ends a run.


@pytest.fixture
def started(tmp_path, monkeypatch):
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
    tmp_path, started, form, kind
):
    given = small_files.settings(form, tmp_path)
    path = Path(given["path"])
    content = EPS if kind == "EPS" else encoded(np.full((28, 28), 7, np.uint8), kind)
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


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(EPS, "is no picture of a known format; it must be PNG or JPEG"), ("P", "of mode P; it must be 1-bit or 8-bit"), ("RGBA", "RGBA")],
)  # fmt: skip
def test_a_test_picture_of_another_kind_is_refused(tmp_path, started, content, sentence):
    odd = small_files.png(mode=content) if isinstance(content, str) else {"bytes": content, "path": None}
    column = [small_files.png()] * (COUNT - 1) + [odd]
    path = small_files.own_parquet(tmp_path / "data.parquet", picture=column)
    with pytest.raises(DataError, match=sentence):
        load("by_user_parquet", path=str(path), image="picture")
    assert not started.exists()


def test_a_picture_of_too_many_pixels_concerns_its_user_alone_and_pillow_prints_no_warning(tmp_path, recwarn):
    warnings.simplefilter("always")
    folders(tmp_path, "train", range(20))
    folders(tmp_path, "test", range(20, 30))
    Image.new("1", (10_000, 10_000)).convert("L").save(tmp_path / "train" / "ann" / "dog" / "01.png")
    recwarn.clear()
    dataset = load("by_user_images", path=str(tmp_path))
    assert len(dataset.clients[0]) == 6
    with pytest.raises(DataError, match=r"01\.png cannot be read as a picture \(DecompressionBombWarning"):
        dataset.clients[1]
    assert not recwarn.list


def test_whatever_a_decoder_raises_is_an_error_of_its_client(tmp_path, monkeypatch):
    given = small_files.settings("own_column", tmp_path)
    dataset = load(**given)

    def fail(self):
        raise subprocess.CalledProcessError(1, "a program")

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", fail)
    with pytest.raises(DataError, match=r"cannot be read as a picture .*CalledProcessError"):
        dataset.clients[1]
    with pytest.raises(DataError, match=r"cannot be read as a picture .*CalledProcessError"):
        load(**given)

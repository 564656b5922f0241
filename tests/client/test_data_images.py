"""Folders of pictures: users and labels by sub-folders, or by a table."""

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from client.data import load
from client.data.clients import digest_clients
from fedmf.errors import DataError, SettingError
from fedmf.randomness import SecretKey

PIXELS = np.random.default_rng(0).integers(0, 256, (30, 6, 4)).astype(np.uint8)
USERS, LABELS = ("zoe", "ann", "7"), ("cat", "dog")


def draw(path: Path, number: int, mode: str = "L", kind: str = "PNG") -> None:
    """Write picture `number`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(PIXELS[number]).convert(mode).save(path, format=kind)


def folders(root: Path, below: str = "", numbers: range = range(30)) -> Path:
    """Write pictures USER/LABEL/FILE: users in turn, and labels."""
    for n in numbers:
        draw(root / below / USERS[n % 3] / LABELS[n % 2] / f"{n:02}.png", n)
    return root


def test_sub_folders_are_users_and_theirs_are_labels(tmp_path: Path) -> None:
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


def test_folders_train_and_test_are_the_split(tmp_path: Path) -> None:
    folders(tmp_path, "train", range(20))
    folders(tmp_path, "test", range(20, 30))
    dataset = load("by_user_images", path=str(tmp_path), labels=["dog", "cat"])
    assert (sum(len(client) for client in dataset.clients), len(dataset.test)) == (20, 10)
    tested = {tuple(x.ravel().round(4)) for x in dataset.test.x}
    assert tested == {tuple((PIXELS[n] / np.float32(255)).ravel().round(4)) for n in range(20, 30)}
    assert sorted(dataset.test.y) == [0] * 5 + [1] * 5


def test_numbered_folders_are_class_numbers(tmp_path: Path) -> None:
    for n in range(10):
        draw(tmp_path / "ann" / str(n % 2 * 7) / f"{n}.png", n)
    dataset = load("by_user_images", path=str(tmp_path), classes=9)
    assert dataset.classes == 9
    assert set(dataset.clients[0].y) | set(dataset.test.y) == {0, 7}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_names_files_users_and_labels(tmp_path: Path, form: str) -> None:
    for n in range(12):
        draw(tmp_path / f"{n}.png", n, "RGB")
    columns = {
        "name": [f"{n}.png" for n in range(12)],
        "who": [USERS[n % 3] for n in range(12)],
        "what": [n % 4 for n in range(12)],
        "part": ["test" if n > 8 else "train" for n in range(12)],
    }
    if form == "csv":
        lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        (tmp_path / "table.csv").write_text("\n".join([",".join(columns), *lines]))
    else:
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "table.parquet")
    names = {"file": "name", "user": "who", "label": "what", "split": "part"}
    dataset = load("by_user_images", path=str(tmp_path), table=str(tmp_path / f"table.{form}"), **names)
    assert (dataset.input_shape, dataset.classes) == ((6, 4, 3), 4)
    np.testing.assert_allclose(dataset.clients[1].x[..., 0], PIXELS[[1, 4, 7]] / 255, atol=1e-6)
    assert [client.y.tolist() for client in dataset.clients] == [[2, 1, 0], [1, 0, 3], [0, 3, 2]]
    np.testing.assert_allclose(dataset.test.x[..., 2], PIXELS[9:12] / 255, atol=1e-6)


def test_a_folder_may_hold_its_table_as_the_hub_has_it(tmp_path: Path) -> None:
    for n in range(10):
        draw(tmp_path / "deep" / f"{n}.jpg", n, kind="JPEG")
    lines = [f"deep/{n}.jpg,ann,{n % 2}" for n in range(10)]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,user,label", *lines]))
    dataset = load("by_user_images", path=str(tmp_path), classes=2)
    assert (len(dataset.clients), len(dataset.clients[0]), len(dataset.test)) == (1, 8, 2)


def test_pictures_are_read_when_their_client_takes_its_turn(tmp_path: Path) -> None:
    """A missing, damaged or odd picture of one user is an error of that client alone, and not of the run."""
    folders(tmp_path, "train", range(20))
    folders(tmp_path, "test", range(20, 30))
    key = SecretKey.reproducible(0)
    before = digest_clients(load("by_user_images", path=str(tmp_path)).clients, key)
    (tmp_path / "train" / "ann" / "dog" / "01.png").write_bytes(b"no picture")
    draw(tmp_path / "train" / "zoe" / "cat" / "00.png", 0, "RGB")
    dataset = load("by_user_images", path=str(tmp_path))
    assert len(dataset.clients[0]) == 6
    with pytest.raises(DataError, match=r"01\.png is no picture of a known format"):
        dataset.clients[1]
    with pytest.raises(
        DataError, match=r"00\.png is 4 x 6 RGB, but a picture of this data set is 4 x 6 grey"
    ):
        dataset.clients[2]
    after = digest_clients(dataset.clients, key)
    assert before != after == digest_clients(dataset.clients, key)
    assert digest_clients(dataset.clients, key, 0, 1) == digest_clients(
        load("by_user_images", path=str(tmp_path)).clients, key, 0, 1
    )


def test_a_folder_that_cannot_be_used_says_what_would_be_right(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone does not exist"):
        load("by_user_images", path=str(tmp_path / "gone"))
    with pytest.raises(DataError, match=r"holds no pictures; they must lie at .*/USER/LABEL/FILE"):
        load("by_user_images", path=str(tmp_path))
    folders(tmp_path)
    for settings, sentence in (
        ({"user": "who"}, "user is 'who', but there is no table, and folders say it"),
        ({"file": "name"}, "file is 'name', but there is no table"),
    ):
        with pytest.raises(SettingError, match=sentence):
            load("by_user_images", path=str(tmp_path), **settings)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"table is none\.csv, which does not exist"):
        load("by_user_images", path=str(tmp_path), table="none.csv")
    (tmp_path / "ann" / "dog" / "notes.txt").write_text("")
    with pytest.raises(DataError, match=r"notes\.txt is no picture; a picture ends in \.png"):
        load("by_user_images", path=str(tmp_path))
    (tmp_path / "ann" / "dog" / "notes.txt").rename(tmp_path / "ann" / "notes.png")
    with pytest.raises(DataError, match=r"notes\.png is no folder; .*USER/LABEL/FILE"):
        load("by_user_images", path=str(tmp_path))


@pytest.mark.parametrize(
    ("mode", "sentence"), [("P", "of mode P; it must be 8-bit grey or 8-bit RGB"), ("RGBA", "RGBA")]
)
def test_a_test_picture_of_another_kind_is_refused_at_once(tmp_path: Path, mode: str, sentence: str) -> None:
    folders(tmp_path, "train", range(10))
    draw(tmp_path / "test" / "ann" / "cat" / "1.png", 1, mode)
    with pytest.raises(DataError, match=sentence):
        load("by_user_images", path=str(tmp_path))


@pytest.mark.parametrize(
    "name", ["../secret.png", "{tmp}/secret.png", "deep/../../secret.png", "deep/../0.png"]
)
def test_a_table_names_no_file_outside_its_folder(tmp_path: Path, name: str) -> None:
    """As a value of the user whose row it is: a test row is refused, a training row spoils its client alone."""
    (folder := tmp_path / "pictures").mkdir()
    draw(tmp_path / "secret.png", 0)
    for n in range(6):
        draw(folder / f"{n}.png", n)
    (folder / "deep").mkdir()
    (tmp_path / "store").mkdir()
    (folder / "5.png").rename(tmp_path / "store" / "5.png")
    (folder / "5.png").symlink_to(tmp_path / "store" / "5.png")
    name = name.format(tmp=tmp_path)
    for odd in (0, 4):
        files = [name if n == odd else f"{n}.png" for n in range(6)]
        rows = [f"{file},{'ab'[n % 2]},0,{int(n > 3)}" for n, file in enumerate(files)]
        (folder / "metadata.csv").write_text("\n".join(["file_name,user,label,split", *rows]))
        refused = pytest.raises(
            DataError, match=rf"in row {odd + 1} of .* is no file of it; it must be one below"
        )
        if odd == 4:
            with refused:
                load("by_user_images", path=str(folder))
        else:
            dataset = load("by_user_images", path=str(folder))
            np.testing.assert_allclose(
                dataset.test.x, PIXELS[4:6] / 255, atol=1e-6
            )  # one of them by its link
            assert len(dataset.clients[1]) == 2
            with refused:
                dataset.clients[0]

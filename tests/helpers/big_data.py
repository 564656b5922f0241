"""Large data files with made-up content, and what it takes to load them: `python big_data.py WHAT PATH` prints the megabytes.

What the process held alone counts; what it had mapped of files is shared, and the system takes it back when it needs room.
"""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

USERS_A_FILE = 36


def pictures(count, rng):
    """Return made-up images as uint8 [count, 784]: paper, and a fifth ink of any grey."""
    x = np.full((count, 784), 255, dtype=np.uint8)
    x[:, 300:456] = rng.integers(0, 256, (count, 156))
    return x


def leaf(folder, images, writers):
    """Write a LEAF femnist: nine tenths of each writer to train, numbers as json writes k / 255."""
    rng = np.random.default_rng(0)
    sizes = np.diff(np.linspace(0, images, writers + 1).astype(int))
    for first in range(0, writers, USERS_A_FILE):
        users = range(first, min(writers, first + USERS_A_FILE))
        for split in ("train", "test"):
            data = {}
            for user in users:
                tested = int(sizes[user]) // 10
                count = tested if split == "test" else int(sizes[user]) - tested
                x, y = pictures(count, rng) / 255, rng.integers(0, 62, count)
                data[f"f{user:04d}_00"] = {"x": x.tolist(), "y": y.tolist()}
            (folder / split).mkdir(parents=True, exist_ok=True)
            file = folder / split / f"all_data_{first // USERS_A_FILE}_niid_0_keep_0_{split}_9.json"
            file.write_text(json.dumps({"users": [], "num_samples": [], "user_data": data}))


def npy(folder, rows, users):
    """Write float32 images [rows, 28, 28] as a folder of .npy files without split."""
    folder.mkdir(parents=True)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, 28, 28))
    rng = np.random.default_rng(0)
    for start in range(0, rows, 10000):
        part = x[start : start + 10000]
        part[:] = pictures(len(part), rng).reshape(-1, 28, 28) / np.float32(300)
    x.flush()
    np.save(folder / "y.npy", rng.integers(0, 62, rows))
    np.save(folder / "user.npy", rng.integers(0, users, rows))


def lists(folder, images, users):
    """Write a parquet file of one's own with pictures as lists of pixels."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    kind = pyarrow.list_(pyarrow.list_(pyarrow.uint8()))
    schema = pyarrow.schema([("image", kind), ("user", pyarrow.string()), ("label", pyarrow.int64())])
    with pyarrow.parquet.ParquetWriter(folder / "data.parquet", schema) as file:
        for start in range(0, images, 5000):
            rows = range(start, min(images, start + 5000))
            values = pyarrow.array(pictures(len(rows), rng).ravel())
            of_rows = pyarrow.ListArray.from_arrays(
                np.arange(0, 784 * len(rows) + 1, 28, dtype=np.int32), values
            )
            of_pictures = pyarrow.ListArray.from_arrays(
                np.arange(0, 28 * len(rows) + 1, 28, dtype=np.int32), of_rows
            )
            names = [f"f{row * users // images:04d}" for row in rows]
            table = {"image": of_pictures, "user": names, "label": rng.integers(0, 62, len(rows))}
            file.write_table(pyarrow.table(table, schema))


def alone():
    """Return the megabytes of this process that no other one shares."""
    (size,) = re.findall(r"RssAnon:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(size) / 1000


def measure(what, path):
    """Load a dataset, read all examples of ten clients and a hundred of the test set; return the most megabytes held."""
    from client.data import load

    held, ended = [alone()], threading.Event()

    def watch():
        while not ended.wait(0.01):
            held.append(alone())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    dataset = load(**LOADS[what], path=str(path))
    for client in range(0, len(dataset.clients), max(1, len(dataset.clients) // 10)):
        assert len(dataset.clients[client]) > 0
    assert len(dataset.test.x[:100]) > 0
    ended.set()
    watcher.join()
    return max(held)


def measured(what, path):
    """Return what `measure` finds in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, __file__, what, str(path)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, timeout=3000)
    return float(done.stdout)


WRITES = {"leaf": leaf, "npy": npy, "lists": lists}
LOADS = {
    "leaf": {"name": "femnist"},
    "npy": {"name": "by_user_npz"},
    "lists": {"name": "by_user_parquet", "image": "image"},
}

if __name__ == "__main__":
    print(measure(*sys.argv[1:]))

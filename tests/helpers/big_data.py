"""Data files of the published sizes with made-up content, and what it takes to load them.

    python tests/helpers/big_data.py leaf FOLDER              805,263 images of 3,550 writers in LEAF's JSON (5 GB)
    python tests/helpers/big_data.py npy FOLDER 3300000          3.3 million float32 images of 3,550 users as .npy files (10 GB)
    python tests/helpers/big_data.py lists FOLDER             805,263 pictures of 3,550 users in parquet, as lists of pixels

Each writes the files unless the folder is there, loads them in a process of its own, and prints seconds and peak memory: what the
process held alone, and with what it had mapped of files, which is shared and which the system takes back when it needs
room. Large files of leaf are to be imported: `python -m experiments.data import FOLDER OUT`, then `big_data.py leaf OUT`.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

WRITERS, IMAGES = 3550, 805263
USERS_A_FILE = 36


def pictures(count, rng):
    """Return made-up images as uint8 [count, 784]: paper, and a fifth ink of any grey."""
    x = np.full((count, 784), 255, dtype=np.uint8)
    x[:, 300:456] = rng.integers(0, 256, (count, 156))
    return x


def leaf(folder, images=IMAGES, writers=WRITERS):
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


def npy(folder, rows, users=WRITERS):
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


def lists(folder, images=IMAGES, users=WRITERS):
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


def memory(kind):
    """Return bytes of this process: RssAnon is what no other process shares, VmHWM the most with what it has mapped."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    return 0


def measure(what, path):
    """Load a dataset, read all examples of ten clients and a hundred of the test set; return what it took."""
    from client.data import load

    before, began = memory("RssAnon"), time.monotonic()
    peak, ended = before, threading.Event()

    def watch():
        nonlocal peak
        while not ended.wait(0.01):
            peak = max(peak, memory("RssAnon"))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    dataset = load(**LOADS[what], path=str(path))
    seconds = time.monotonic() - began
    for client in range(0, len(dataset.clients), max(1, len(dataset.clients) // 10)):
        assert len(dataset.clients[client]) > 0
    assert len(dataset.test.x[:100]) > 0
    ended.set()
    watcher.join()
    took = {"seconds": round(seconds, 1), "clients": len(dataset.clients), "test": len(dataset.test)}
    held = {"alone_mb": peak, "before_mb": before, "with_maps_mb": memory("VmHWM")}
    return took | {name: round(size / 1e6) for name, size in held.items()}


def measured(what, path):
    """Return what `measure` finds in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, __file__, "measure", str(path), what]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, timeout=3000)
    return json.loads(done.stdout)


WRITES = {"leaf": leaf, "npy": npy, "lists": lists}
LOADS = {
    "leaf": {"name": "femnist"},
    "npy": {"name": "by_user_npz"},
    "lists": {"name": "by_user_parquet", "image": "image"},
}

if __name__ == "__main__":
    what, folder, *more = sys.argv[1:]
    if what == "measure":
        print(json.dumps(measure(*more, folder)))
    else:
        if not Path(folder).exists():
            WRITES[what](Path(folder), *map(int, more))
        print(measured(what, folder))

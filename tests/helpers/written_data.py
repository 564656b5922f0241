"""Benchmark files written in their published layouts, by a second hand: nothing here comes from the loaders.

Small ones, and large ones with what it takes to load them: `python written_data.py WHAT PATH` prints the megabytes. What the process
held alone counts; what it had mapped of files is shared, and the system takes it back when it needs room.

Where the layouts are published (repository: path):

    TFF's sqlite        tensorflow/federated: tensorflow_federated/python/simulation/datasets/sql_client_data.py says which
                        tables and columns are read, sql_client_data_utils.py next to it writes them. Names of splits
                        and features: emnist.py, shakespeare.py and stackoverflow.py next to it.
    TFF's HDF5          tensorflow/federated, until March 2021: tensorflow_federated/python/simulation/hdf5_client_data.py;
                        names of the files: emnist.py, shakespeare.py and stackoverflow.py in datasets/ of that time.
    tf.train.Example    tensorflow/tensorflow: tensorflow/core/example/example.proto and feature.proto
    word counts         tensorflow/federated: load_word_counts in datasets/stackoverflow.py: lines "word count", the most
                        frequent first
    LEAF                TalwalkarLab/leaf: data/femnist/README.md, data/shakespeare/README.md; data/utils/split_data.py
                        writes train/ and test/
    the hub             the cards of the datasets flwrlabs/femnist (image, writer_id, hsf_id, character) and
                        flwrlabs/shakespeare (character_id, x, y)
"""

import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

Split = dict[str, dict[str, dict[str, Any]]]
"""Split or file -> user -> column -> values."""


LAYOUT = """
name: "layout.proto" package: "tf" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 label: LABEL_OPTIONAL type_name: ".tf.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 label: LABEL_OPTIONAL type_name: ".tf.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 label: LABEL_OPTIONAL type_name: ".tf.Int64List" oneof_index: 0 } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type_name: ".tf.Features.FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type_name: ".tf.Feature" } } }
message_type { name: "Example" field { name: "features" number: 1 label: LABEL_OPTIONAL type_name: ".tf.Features" } }
"""
POOL = descriptor_pool.DescriptorPool()
POOL.Add(text_format.Parse(LAYOUT, descriptor_pb2.FileDescriptorProto()))
EXAMPLE = message_factory.GetMessageClass(POOL.FindMessageTypeByName("tf.Example"))


def serialise(**values: Any) -> bytes:
    """Return a tf.train.Example as TensorFlow would write it."""
    message = EXAMPLE()
    for name, value in values.items():
        feature = message.features.feature[name]
        if isinstance(value, bytes):
            feature.bytes_list.value.append(value)
        elif np.asarray(value).dtype.kind == "f":
            feature.float_list.value.extend(np.ravel(value).tolist())
        else:
            feature.int64_list.value.extend(np.ravel(value).tolist())
    return message.SerializeToString()  # type: ignore[no-any-return]


def write_hdf5(folder: Path, data: Split) -> str:
    """Write TFF's first format, one file for each split: {"fed_emnist_train": {user: columns}}."""
    for name, users in data.items():
        with h5py.File(folder / f"{name}.h5", "w") as file:
            for user, columns in users.items():
                for column, values in columns.items():
                    file[f"examples/{user}/{column}"] = values
    return str(folder)


def write_sqlite(path: Path, data: Split) -> str:
    """Write TFF's second format, one file for all splits: {"all_train": {user: columns}}."""
    with sqlite3.connect(path) as file:
        file.execute(
            "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, "
            "serialized_example_proto BLOB NOT NULL)"
        )
        file.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
        for split, users in data.items():
            for user, columns in users.items():
                count = len(next(iter(columns.values())))
                for row in range(count):
                    message = serialise(**{name: values[row] for name, values in columns.items()})
                    file.execute("INSERT INTO examples VALUES (?, ?, ?)", (split, user, message))
                file.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (user, split, count))
    file.close()
    return str(path)


def write_leaf(folder: Path, data: dict[str, dict[str, tuple[list[Any], list[Any]]]]) -> str:
    """Write a LEAF folder, one file for each half of the users."""
    for split, users in data.items():
        (folder / split).mkdir(parents=True)
        names = list(users)
        for part, chosen in enumerate((names[:1], names[1:])):
            document = {
                "users": chosen,
                "num_samples": [len(users[user][0]) for user in chosen],
                "user_data": {user: {"x": users[user][0], "y": users[user][1]} for user in chosen},
            }
            (folder / split / f"all_data_{part}_niid_0_keep_0_{split}_9.json").write_text(
                json.dumps(document)
            )
    return str(folder)


RNG = np.random.default_rng(5)
WRITERS = {"f0000_14": 3, "f0001_41": 5, "f0002_07": 1}


def handwriting() -> dict[str, dict[str, dict[str, np.ndarray]]]:
    """Return split -> writer -> TFF's columns; pixels have white = 1."""
    return {
        split: {
            writer: {
                "pixels": (RNG.integers(0, 256, (count, 28, 28)) / 255).astype(np.float32),
                "label": RNG.integers(0, 62, count).astype(np.int32),
            }
            for writer, count in WRITERS.items()
        }
        for split in ("train", "test")
    }


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

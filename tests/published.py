"""Benchmark files written small in their published layouts, by a second hand: nothing here comes from the loaders.

Where the layouts are published (repository: path):

    TFF's sqlite        tensorflow/federated: tensorflow_federated/python/simulation/datasets/sql_client_data.py says which
                        tables and columns are read, sql_client_data_utils.py beside it writes them. Names of splits
                        and features: emnist.py, shakespeare.py and stackoverflow.py beside it.
    TFF's HDF5          tensorflow/federated, until March 2021: tensorflow_federated/python/simulation/hdf5_client_data.py;
                        names of the files: emnist.py, shakespeare.py and stackoverflow.py in datasets/ of that time.
    tf.train.Example    tensorflow/tensorflow: tensorflow/core/example/example.proto and feature.proto
    word counts         tensorflow/federated: load_word_counts in datasets/stackoverflow.py: lines "word count", the most
                        frequent first
    LEAF                TalwalkarLab/leaf: data/femnist/README.md, data/shakespeare/README.md; data/utils/split_data.py
                        writes train/ and test/
    the hub             the cards of the data sets flwrlabs/femnist (image, writer_id, hsf_id, character) and
                        flwrlabs/shakespeare (character_id, x, y)
"""

import json
import sqlite3
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Split = dict[str, dict[str, dict[str, Any]]]
"""Split or file -> user -> column -> values."""


def example_class() -> Any:
    """Return the message class tf.train.Example, built from TensorFlow's field numbers by protobuf."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tf", syntax="proto3")
    repeated, optional = 3, 1
    for name, kind in (("BytesList", 12), ("FloatList", 2), ("Int64List", 3)):
        message = file.message_type.add(name=name)
        message.field.add(name="value", number=1, label=repeated, type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), start=1):
        feature.field.add(
            name=name.lower(), number=number, label=optional, type=11, type_name=f".tf.{name}", oneof_index=0
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=optional, type=9)
    entry.field.add(name="value", number=2, label=optional, type=11, type_name=".tf.Feature")
    features.field.add(
        name="feature", number=1, label=repeated, type=11, type_name=".tf.Features.FeatureEntry"
    )
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, label=optional, type=11, type_name=".tf.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tf.Example"))


EXAMPLE = example_class()


def serialise(**values: Any) -> bytes:
    """Return a tf.train.Example as TensorFlow would write it."""
    message = EXAMPLE()
    for name, value in values.items():
        feature = message.features.feature[name]
        if isinstance(value, bytes):
            feature.byteslist.value.append(value)
        elif np.asarray(value).dtype.kind == "f":
            feature.floatlist.value.extend(np.ravel(value).tolist())
        else:
            feature.int64list.value.extend(np.ravel(value).tolist())
    return message.SerializeToString()  # type: ignore[no-any-return]


def named(data: Split, train: str, test: str) -> Split:
    """Return {"train": ..., "test": ...} under the names that TFF gives the two in its files."""
    return {train: data["train"], test: data["test"]}


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
        file.execute(
            "CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL, "
            "num_examples INTEGER NOT NULL)"
        )
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

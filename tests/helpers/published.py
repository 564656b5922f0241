"""Benchmark files written small in their published layouts, by a second hand: nothing here comes from the loaders.

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
    the hub             the cards of the data sets flwrlabs/femnist (image, writer_id, hsf_id, character) and
                        flwrlabs/shakespeare (character_id, x, y)
"""

import json
import sqlite3
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

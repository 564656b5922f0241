"""An .npz file read back. Of each array the head is looked at first: a small file can unpack to gigabytes."""

import io
import math
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from numpy.lib import format as npy


def read_npz(
    source: Path | bytes,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    names: Collection[str] | None = None,
) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name, those of `names` alone where these are given.

    An array that `shapes` names must have its shape there; all others together must be no larger than the file, as np.savez
    packs nothing. None is read before its head says so. Raises `ValueError` for a file that is gone, is damaged or holds
    anything else.
    """
    try:
        with (
            source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as file,
            zipfile.ZipFile(file) as stored,
        ):
            left, arrays = file.seek(0, io.SEEK_END), {}
            for member in stored.namelist() if names is None else [f"{name}.npy" for name in names]:
                name = member.removesuffix(".npy")
                with stored.open(member) as content:
                    version = npy.read_magic(content)
                    shape, _, kind = npy.read_array_header_1_0(content)
                    known = None if shapes is None else shapes.get(name)
                    if known is None:
                        left -= max(kind.itemsize, 1) * math.prod(shape)
                    # The widest number has 16 bytes; in other formats of NumPy the head itself may take gigabytes.
                    if version != (1, 0) or (
                        left < 0 if known is None else known != shape or kind.itemsize > 16
                    ):
                        raise ValueError(
                            f"{name} has the shape {shape} of {kind}; it must be {'no larger than the file' if known is None else known}"
                        )
                    content.seek(0)
                    arrays[name] = npy.read_array(content, allow_pickle=False)
    except Exception as error:  # whatever the system, zipfile, zlib and NumPy meet in a damaged file
        raise ValueError(str(error)) from error
    return arrays

"""Texts of a table that are not UTF-8 become empty, so that they concern their rows alone."""

from typing import Any

from client.imports import need


def without_broken_texts(column: Any) -> Any:
    """Return a column of texts, or of lists of them, in which each text that is not UTF-8 is empty; others as they are.

    Slow, for columns that hold such texts. Raises what Arrow raises for a column that is broken otherwise.
    """
    arrow = need("pyarrow", "Reading a table")
    return arrow.chunked_array([_mended(chunk) for chunk in column.chunks], type=column.type)


def _mended(chunk: Any) -> Any:
    """Return one chunk with empty cells for broken texts."""
    arrow = need("pyarrow", "Reading a table")
    if arrow.types.is_dictionary(chunk.type):
        return arrow.DictionaryArray.from_arrays(chunk.indices, _mended(chunk.dictionary))
    kind = _as_bytes(chunk.type)
    if kind is None:
        chunk.validate(full=True)
        return chunk
    held = chunk.view(kind)
    held.validate(full=True)  # all but that texts are UTF-8
    return arrow.array([_decoded(value) for value in held.to_pylist()], chunk.type)


def _as_bytes(kind: Any) -> Any:
    """Return the type of bytes for one of texts, or of lists of them, and None for others."""
    arrow = need("pyarrow", "Reading a table")
    types = arrow.types
    if types.is_string(kind):
        return arrow.binary()
    if types.is_large_string(kind):
        return arrow.large_binary()
    if types.is_list(kind) or types.is_large_list(kind):
        inside = _as_bytes(kind.value_type)
        of = arrow.list_ if types.is_list(kind) else arrow.large_list
        return None if inside is None else of(kind.value_field.with_type(inside))
    return None


def _decoded(value: Any) -> Any:
    """Return bytes, or lists of them, as texts, None for what is not UTF-8."""
    if isinstance(value, list):
        return [_decoded(part) for part in value]
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None

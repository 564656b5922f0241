"""Archives in which a bit of a head was flipped: the file asks for a password, or for another method than it was written by."""

HEADS = {"password": (8, 1), "deflated": (10, 8), "unknown method": (10, 64)}
"""By name: which byte of an entry of the table of contents, and its bits that are flipped."""


def flipped(archive, head):
    """Return the bytes of a zip archive of stored files with the first entry of its table of contents so changed."""
    place, bits = HEADS[head]
    changed = bytearray(archive)
    changed[changed.index(b"PK\x01\x02") + place] ^= bits
    return bytes(changed)

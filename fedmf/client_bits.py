"""Where a client stands in a bitmap: by its name, which ends in its number.

The clients of a simulation are "0", "1", ..., those of a deployment "NODE:0", "NODE:1", ...: a group and a number. `BITS`
clients with consecutive numbers of one group share a whole number, one bit each, which is as long as its last client needs.
A name of any other form has a number of its own, so that every name has exactly one place and no two names share one.
"""

from collections.abc import Iterator

from fedmf.sharded import Key

BITS = 4096
ALONE = -1
"""Beside a name of its own, in place of the number of a group's piece."""
_MOST_DIGITS = 18  # below 2^63


def place(client: str) -> tuple[Key, int]:
    """Return the bitmap that a client is in and its bit there.

    >>> place("b7:4097"), place("12"), place("b7:007")
    ((('b7:', 1), 1), (('', 0), 12), (('b7:007', -1), 0))
    """
    digits = client[client.rfind(":") + 1 :]
    is_number = digits.isdigit() and digits.isascii() and len(digits) <= _MOST_DIGITS
    if not is_number or (digits[0] == "0" and len(digits) > 1):
        return (client, ALONE), 0
    piece, bit = divmod(int(digits), BITS)
    return (client[: len(client) - len(digits)], piece), bit


def names(key: Key, bitmap: int) -> Iterator[str]:
    """Yield the clients whose bits are set in a bitmap, in the order of their numbers.

    >>> list(names(("b7:", 1), 0b10)), list(names(("alone", ALONE), 1))
    (['b7:4097'], ['alone'])
    """
    group, piece = key
    if piece == ALONE:
        if bitmap:
            yield group
        return
    while bitmap:
        lowest = bitmap & -bitmap
        yield f"{group}{piece * BITS + lowest.bit_length() - 1}"
        bitmap ^= lowest


def counted_once_more(planes: tuple[int, ...], bitmap: int) -> tuple[int, ...]:
    """Return the counts of `planes` with one added to every client of `bitmap`.

    Plane k holds bit k of every client's count: an addition of all of them at once, with its carries.

    >>> counted_once_more((0b011, 0b010), 0b110)
    (5, 0, 2)
    """
    result = []
    carry = bitmap
    for plane in planes:
        result.append(plane ^ carry)
        carry &= plane
    return (*result, carry) if carry else tuple(result)


def count_of(planes: tuple[int, ...], bit: int) -> int:
    """Return the count of the client at `bit`."""
    return sum((plane >> bit & 1) << weight for weight, plane in enumerate(planes))

"""Token ids from bytes: one id a line, JSON lines, or a NumPy array file; told apart by content."""

import array
import ast
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import BinaryIO, NamedTuple

__all__ = ["IdInputError", "Update", "read_updates"]

NPY_MAGIC = b"\x93NUMPY"
# NumPy's type letter and size to the array module's letter. Read here and not by NumPy, so that a file means
# the same where NumPy is not installed.
NPY_INTEGERS = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q"}
NPY_HEADER_LIMIT = 10_000
LONGEST_SHOWN = 60


class IdInputError(ValueError):
    """The input does not hold token ids; the message says where and what stood there."""


class Update(NamedTuple):
    """Ids that arrived together, and where in the input they stood."""

    ids: list[int]
    place: str


def read_updates(source: BinaryIO) -> Iterator[Update]:
    """Yields ids as they arrive: a line is one update, and so is each element of an array file."""
    # A NumPy magic holds no line feed, so the first line always shows it whole.
    first = source.readline()
    if first.startswith(NPY_MAGIC):
        for index, token_id in enumerate(_npy(first + source.read())):
            yield Update([token_id], f"element {index}")
        return
    lines = chain([first.removeprefix(b"\xef\xbb\xbf")], iter(source.readline, b""))
    for number, line in enumerate(lines, 1):
        if stripped := line.strip():
            yield Update(_line(stripped, number), f"line {number}")


def _line(line: bytes, number: int) -> list[int]:
    # int() and JSON both refuse to convert thousands of digits; ten are enough for any id that can be known.
    if line.isdigit() and len(line) <= 10:
        return [int(line)]
    try:
        # Not json.loads(line), which would guess at UTF-16.
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        raise IdInputError(f"line {number}: {_shown(line)} is no token id and no JSON array of token ids") from None
    values = value if isinstance(value, list) else [value]
    for index, item in enumerate(values):
        if type(item) is not int:
            where = f"line {number}, item {index}" if isinstance(value, list) else f"line {number}"
            raise IdInputError(f"{where}: {_cut(json.dumps(item))} is not a token id")
    return values


def _shown(line: bytes) -> str:
    return repr(_cut(line.decode("utf-8", "backslashreplace")))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"


def _npy(data: bytes) -> Sequence[int]:
    size_width = 2 if data[6:7] == b"\x01" else 4
    start = 8 + size_width
    header_length = int.from_bytes(data[8:start], "little")
    if data[6:7] not in (b"\x01", b"\x02", b"\x03") or header_length > NPY_HEADER_LIMIT:
        raise IdInputError("the .npy header is not one of format 1, 2 or 3")
    raw_header = data[start : start + header_length]
    try:
        header = ast.literal_eval(raw_header.decode("utf-8").strip())
        kind, shape = str(header["descr"]), tuple(header["shape"])
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        raise IdInputError("the .npy header cannot be read") from None
    if len(shape) != 1 or type(shape[0]) is not int:
        raise IdInputError(f"the .npy array has shape {shape}; token ids are one-dimensional")
    order, letter = kind[:1], NPY_INTEGERS.get(kind[1:])
    if letter is None or order not in "<>|":
        raise IdInputError(f"the .npy array holds {kind}; token ids are integers")
    ids = array.array(letter)
    body = data[start + header_length :]
    if len(body) != shape[0] * ids.itemsize:
        raise IdInputError(f"the .npy array should hold {shape[0] * ids.itemsize} bytes of ids, there are {len(body)}")
    ids.frombytes(body)
    if order in "<>" and (order == ">") != (sys.byteorder == "big"):
        ids.byteswap()
    return ids

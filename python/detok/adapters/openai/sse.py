"""Server-sent events: JSON of a chunk as bytes of a stream, and back."""

import json
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

__all__ = ["SseReader", "quoted", "sse"]

# Nothing here refers to itself; numbers that JSON does not have were replaced where they came in.
_encode = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":")).encode


def sse(chunk: Mapping[str, Any] | None) -> bytes:
    """One event: the chunk as compact ASCII JSON, or for None the mark of the stream's end."""
    if chunk is None:
        return b"data: [DONE]\n\n"
    return b"data: %b\n\n" % _encode(dict(chunk)).encode("ascii")


class SseReader:
    """Reads chunks out of a stream of bytes, however the stream is cut: an event is decoded when all of it is there.

    Attributes:
        is_done: Whether `[DONE]` came.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._line = bytearray()
        self._data: list[bytes] = []

    def push(self, data: bytes) -> list[dict[str, Any]]:
        """The chunks that are complete now; errors that a server sends in a stream are among them.

        Raises:
            ValueError: Data that is no JSON.
        """
        self._line += data
        if b"\n" not in data:
            return []
        *lines, self._line = self._line.split(b"\n")
        return [chunk for line in lines if (chunk := self._read(bytes(line).removesuffix(b"\r"))) is not None]

    def _read(self, line: bytes) -> dict[str, Any] | None:
        if line.startswith(b"data:"):
            self._data.append(line.removeprefix(b"data:"))
        if line or not self._data:
            return None
        data, self._data = b"\n".join(self._data), []
        if data.strip() == b"[DONE]":
            self.is_done = True
            return None
        chunk: dict[str, Any] = json.loads(data)
        return chunk

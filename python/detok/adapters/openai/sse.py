"""Server-sent events: JSON of a chunk as bytes of a stream, and back."""

import json
import re
from codecs import BOM_UTF8
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
        is_done: Whether `[DONE]` came; what follows it is passed over.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._has_begun = False
        self._rest = bytearray()
        self._data: list[bytes] = []

    def push(self, data: bytes) -> list[dict[str, Any]]:
        """The chunks that are complete now; errors that a server sends in a stream are among them.

        Raises:
            ValueError: An event that is no JSON object. Nothing has changed.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes, not {type(data).__name__}")
        if self._has_begun and not _LINE_END.search(self._rest[-1:] + data):
            # A long line in small pieces.
            self._rest += data
            return []
        unread = self._rest + data
        if not self._has_begun:
            if len(unread) < len(BOM_UTF8) and BOM_UTF8.startswith(unread):
                self._rest = unread
                return []
            unread = unread.removeprefix(BOM_UTF8)
        # A line ends with CR, LF or both; the LF of a CR at the end may be on its way.
        *lines, rest = _LINE_END.split(unread)
        chunks, event, is_done = [], list(self._data), self.is_done
        for line in lines:
            if line.startswith(b"data:"):
                event.append(bytes(line.removeprefix(b"data:")))
            elif not line:
                text, event = b"\n".join(event).strip(), []
                is_done = is_done or text == b"[DONE]"
                if text and not is_done:
                    chunks.append(_chunk(text))
        self._has_begun, self._rest, self._data, self.is_done = True, bytearray(rest), event, is_done
        return chunks


_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")


def _chunk(text: bytes) -> dict[str, Any]:
    chunk = json.loads(text)
    if not isinstance(chunk, dict):
        raise ValueError(f"an event must be a JSON object; it is {text[:40]!r}")
    return chunk

"""A stream as plain text or as one JSON object a line."""

import json
from typing import TextIO

from detok import DecodedText

__all__ = ["EventWriter", "TextWriter", "to_event"]


def to_event(decoded: DecodedText) -> dict[str, object]:
    """The JSON form of a chunk; byte offsets are local to its text."""
    return {
        "text": decoded.text,
        "tokens": [
            {
                "id": record.token_id,
                "kind": record.anchor.kind,
                "byte_offset": record.anchor.byte_offset,
                "continues_char": record.continues_char,
            }
            for record in decoded.attributions
        ],
    }


class TextWriter:
    """Text as it becomes certain, and nothing else, so that a pipe carries the exact text."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.mid_line = False

    def chunk(self, decoded: DecodedText) -> None:
        if text := decoded.text:
            self.out.write(text)
            self.out.flush()
            self.mid_line = not text.endswith("\n")

    def last(self, decoded: DecodedText | None) -> None:
        if decoded is not None:
            self.chunk(decoded)
        self.close()

    def close(self) -> None:
        """Gives a terminal, and only a terminal, a line of its own for what comes next."""
        if self.mid_line and self.out.isatty():
            self.out.write("\n")
            self.out.flush()


class EventWriter:
    """A line for every chunk; the last has `"finished": true`, so that a reader knows it missed nothing."""

    def __init__(self, out: TextIO) -> None:
        self.out = out

    def chunk(self, decoded: DecodedText) -> None:
        self._line(to_event(decoded))

    def last(self, decoded: DecodedText | None) -> None:
        self._line({**to_event(decoded or DecodedText()), "finished": True})

    def close(self) -> None:
        pass

    def _line(self, event: dict[str, object]) -> None:
        self.out.write(json.dumps(event, ensure_ascii=False) + "\n")
        self.out.flush()

"""Several texts that grow at once: a row for each on a terminal, a line for each elsewhere."""

import shutil
import unicodedata
from collections.abc import Sequence
from typing import TextIO

from detok.view.cells import escaped, pad, width

__all__ = ["Rows"]

DIM, RESET = "\x1b[2m", "\x1b[0m"


class Rows:
    """One row a text, in the order in which they were named.

    On a terminal every row shows the end of its text and is painted over when the text grows. Elsewhere a row is
    written once, when it is complete.

    Args:
        out: Where to.
        names: What stands before each text.
        live: Whether `out` is a terminal whose cursor can be moved.
    """

    def __init__(self, out: TextIO, names: Sequence[str], *, live: bool) -> None:
        self.texts = [""] * len(names)
        self._out = out
        self._live = live
        self._names = [escaped(name) for name in names]
        self._states = ["waiting"] * len(names)
        self._painted = 0

    def add(self, row: int, text: str) -> None:
        """Text that became certain."""
        self.texts[row] += text
        self._states[row] = "running"

    def complete(self, row: int, state: str) -> None:
        """Nothing follows; `state` says why."""
        self._states[row] = state
        if not self._live:
            self._out.write(f"{self._names[row]} ({state})\n    {escaped(self.texts[row])}\n")

    def paint(self) -> None:
        """Shows how things stand, on a terminal."""
        if not self._live:
            return
        columns, lines = shutil.get_terminal_size()
        # A row that has left the screen cannot be painted again; the last line stays free for the cursor.
        shown = range(min(len(self.texts), lines - 1))
        name_width = min(max(map(width, self._names)), columns // 3)
        state_width = max(map(width, self._states))
        room = columns - name_width - state_width - 3
        self._out.write(f"\x1b[{self._painted}A" if self._painted else "")
        for row in shown:
            name = pad(_fit(self._names[row], name_width), name_width)
            state = pad(self._states[row], state_width)
            self._out.write(f"\r\x1b[K{DIM}{name} {state}{RESET} {_end(escaped(self.texts[row]), room)}\n")
        self._painted = len(shown)
        self._out.flush()


def _fit(text: str, cells: int) -> str:
    while width(text) > cells:
        text = text[:-1]
    return text


def _end(text: str, cells: int) -> str:
    """The end of a text that fits, without the rest of a character that was cut."""
    start = max(0, len(text) - cells)
    while start < len(text) and (width(text[start:]) > cells or unicodedata.combining(text[start])):
        start += 1
    return text[start:]

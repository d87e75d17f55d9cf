"""How text is shown inside a picture: in one line, by the cell, harmless to the terminal."""

import unicodedata

__all__ = ["count", "escaped", "escaped_bytes", "harmless", "pad", "width"]

JOINING = {"Mn", "Me"}


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def escaped(text: str) -> str:
    """Text as it may stand in a table: what cannot be seen, or joins what stands before it, by its escape."""
    return "".join(
        char if char.isprintable() and unicodedata.category(char) not in JOINING else _escape(char) for char in text
    )


def harmless(text: str) -> str:
    """Text for a terminal that a model must not be able to steer: line ends and tabs pass, other controls do not."""
    return "".join(
        _escape(char) if unicodedata.category(char) == "Cc" and char not in "\n\t" else char for char in text
    )


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def escaped_bytes(data: bytes) -> str:
    r"""Bytes as text where they are text, `\xNN` where they are only a part of it."""
    return escaped(data.decode("utf-8", "backslashreplace"))


def width(text: str) -> int:
    """Cells that printable text takes in a terminal."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def pad(text: str, cells: int) -> str:
    return text + " " * (cells - width(text))

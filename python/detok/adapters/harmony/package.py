"""The openai-harmony package, as a reader of headers."""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

from detok import DetokError
from detok.adapters.harmony.header import CONSTRAIN, CONTROLS, MESSAGE, START, Header

__all__ = ["HarmonyBackend", "HeaderReader", "load"]

HarmonyBackend: TypeAlias = Literal["auto", "openai-harmony", "native"]


class HeaderReader:
    """Reads headers with a `StreamableParser` each, so that one that it refuses does not spoil those that follow."""

    def __init__(self) -> None:
        self._harmony: Any = import_module("openai_harmony")
        self._encoding = self._harmony.load_harmony_encoding("HarmonyGptOss")
        self.ids: dict[str, int] = {name: self._encoding.encode(name, allowed_special="all")[0] for name in CONTROLS}

    def read(self, token_ids: Sequence[int]) -> Header | None:
        """The header of these ids, without its `<|message|>`; None if the package refuses it."""
        role = None if list(token_ids[:1]) == [self.ids[START]] else self._harmony.Role.ASSISTANT
        parser = self._harmony.StreamableParser(self._encoding, role)
        try:
            for token_id in (*token_ids, self.ids[MESSAGE]):
                parser.process(token_id)
        except self._harmony.HarmonyError:
            return None
        names = parser.current_channel, parser.current_recipient, parser.current_content_type
        channel, recipient, content_type = names
        content_type = content_type and content_type.removeprefix(CONSTRAIN)
        # A control token where none is expected is a name for the package, or a part of one.
        if any(name and "<|" in name for name in (channel, recipient, content_type)):
            return None
        return Header(parser.current_role.value, channel, recipient, content_type or None)


def load(backend: HarmonyBackend, ids: Mapping[str, int]) -> HeaderReader | None:
    """The package for a tokenizer with these ids of control tokens; None for the native backend. See `HarmonyParser`"""
    if backend not in ("auto", "openai-harmony", "native"):
        raise ValueError(f"backend must be auto, openai-harmony or native, not {backend!r}")
    if backend == "native" or (backend == "auto" and not _is_at_hand()):
        return None
    reader = _reader()
    if reader.ids == ids:
        return reader
    if backend == "auto":
        return None
    name = next(name for name in CONTROLS if reader.ids[name] != ids[name])
    raise ValueError(
        f"{name} is {ids[name]} for the tokenizer and {reader.ids[name]} for openai-harmony: use the native backend"
    )


@cache
def _reader() -> HeaderReader:
    try:
        return HeaderReader()
    except ImportError as error:
        raise ImportError(
            "the backend openai-harmony needs the package of that name, which is not installed"
        ) from error
    except Exception as error:
        raise DetokError(f"openai-harmony could not load its vocabulary: {error}") from error


def _is_at_hand() -> bool:
    # Where no folder is named, the package downloads.
    folder = os.environ.get("TIKTOKEN_ENCODINGS_BASE")
    if not folder or not Path(folder, "o200k_base.tiktoken").is_file():
        return False
    return find_spec("openai_harmony") is not None

"""Headers of messages: what stands between the control tokens before a text."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from detok import DecodedText

__all__ = ["CHANNEL", "CONSTRAIN", "CONTROLS", "ENDS", "LONGEST_PART", "MESSAGE", "START", "Header", "Part", "Section"]

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
CONTROLS = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
ROLES = ("assistant", "user", "system", "developer", "tool")

# Characters of a header between two control tokens. Names of functions may be long; text is longer.
LONGEST_PART = 256

# The names in a part: the one behind its control token, and recipients. Text may follow a usual name without a blank.
_NAMES = re.compile(r"\s*(?:assistant|analysis|commentary|final|json|\S*)(?:\s+to=\S+)*")
_RECIPIENTS = re.compile(r"(?:\s*to=\S+)*")

Section: TypeAlias = Literal["reasoning", "content", "tool_call"]


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says; see `HarmonyDelta`. What a model samples without a header is the assistant's."""

    role: str = "assistant"
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None

    @property
    def section(self) -> Section:
        if self.recipient is None:
            return "reasoning" if self.channel == "analysis" else "content"
        return "tool_call" if self.role == "assistant" else "content"

    @staticmethod
    def read(parts: Iterable[tuple[str, str]]) -> "Header":
        """Reads pairs of a control token and the text behind it.

        Behind the role and the channel there may be a recipient, with or without `to=`, and then a content type.
        """
        role, channel, content_type, words = "assistant", None, None, list[str]()
        for control, text in parts:
            found = text.split()
            if control == CONSTRAIN:
                content_type, found = (found[0] if found else content_type), found[1:]
            elif control == CHANNEL:
                channel, found = (found[0] if found else channel), found[1:]
            elif found and not found[0].startswith("to="):
                role, found = (found[0] if found[0] in ROLES else "tool"), found[1:]
            words += found
        if content_type is None and len(words) > 1 and not words[-1].startswith("to="):
            content_type = words.pop()
        recipient = next((word for word in reversed(words) if word.startswith("to=")), words[-1] if words else "")
        return Header(role, channel, recipient.removeprefix("to=") or None, content_type)


@dataclass(slots=True)
class Part:
    """What stands behind a control token: the end of the prompt, if it was begun there, and decoded text."""

    control: str
    prompt: str = ""
    decoded: DecodedText = field(default_factory=DecodedText)

    @property
    def text(self) -> str:
        return self.prompt + self.decoded.text

    def split(self) -> tuple[str, DecodedText]:
        """The names, for a header that breaks off here, and what is behind them. Leaves nothing."""
        # The prompt ends with a whole name. Names go no further than a part may, so that they are the same however much
        # text came until the part was found to be too long.
        pattern = _RECIPIENTS if self.prompt.strip() else _NAMES
        found = pattern.match(self.decoded.text, 0, LONGEST_PART)
        names = self.decoded.drain_prefix(len(found[0].encode()) if found else 0)
        return self.prompt + names.text, self.decoded.take()

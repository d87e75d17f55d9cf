"""Sections of a chat."""

from collections.abc import Mapping, Sequence

from detok import DecodedText
from detok.adapters.harmony.parser import HarmonyDelta, HarmonyParser

__all__ = ["HarmonySections"]


class HarmonySections:
    """A `HarmonyParser` with the face of a `SectionSplitter`: sections are `reasoning`, `content` and `tool_call`.

    The text of a call is what the model writes as its arguments; whom it is for, only the parser tells.
    """

    def __init__(self, parser: HarmonyParser) -> None:
        self._parser = parser
        self._counts = {"content": 0, "reasoning": 0, "tool_call": 0}

    def push(self, decoded: DecodedText) -> list[tuple[str, DecodedText]]:
        """See `SectionSplitter.push`."""
        return self._counted(self._parser.push(decoded))

    def finish(self) -> list[tuple[str, DecodedText]]:
        """See `SectionSplitter.finish`."""
        return self._counted(self._parser.finish())

    @property
    def token_counts(self) -> Mapping[str, int]:
        """Tokens so far of each section; control tokens and headers under `markers`."""
        return {**self._counts, "markers": self._parser.token_counts["markers"]}

    @property
    def section(self) -> str:
        """The section that the next text belongs to, as far as that is certain."""
        return self._parser.section

    def _counted(self, deltas: Sequence[HarmonyDelta]) -> list[tuple[str, DecodedText]]:
        for delta in deltas:
            self._counts[delta.section] += len(delta.decoded.attributions)
        return [(delta.section, delta.decoded) for delta in deltas]

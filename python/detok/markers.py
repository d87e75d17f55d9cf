"""Where models put their reasoning and their tool calls: markers for a `SectionSplitter`, by family of models.

Sections named `reasoning` hold what a model thinks, those named `tool_call` the calls as the model spelled them, with
their markers; what is left, or named `content`, is the answer.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from detok._core import Marker

_THINK = Marker("reasoning", "<think>", "</think>")
_TOOL_CALL = Marker("tool_call", "<tool_call>", "</tool_call>", reopen=True, keep_markers=True)


def _message(name: str, *header: str, end: str, keep_markers: bool = False) -> tuple[Marker, Marker]:
    """A message of a harmony conversation: one with its start, and the first of a turn, whose start the prompt has.

    Both are complete at one place, so the longer comes first.
    """
    ends = [token for token in ("<|end|>", "<|return|>", "<|call|>") if token != end]

    def behind(*start: str) -> Marker:
        return Marker(name, (*start, *header), end, also_end=ends, reopen=True, keep_markers=keep_markers)

    return behind("<|start|>", "assistant"), behind()


PRESETS: Mapping[str, Sequence[Marker]] = MappingProxyType(
    {
        "qwen3": (_THINK, _TOOL_CALL),
        "glm": (_THINK, _TOOL_CALL),
        "deepseek": (
            _THINK,
            Marker("tool_call", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", reopen=True, keep_markers=True),
        ),
        "kimi_k2": (
            # Calls may follow without an end of thought.
            Marker("reasoning", "<think>", "</think>", also_end=["<|tool_calls_section_begin|>"]),
            Marker(
                "tool_call",
                "<|tool_calls_section_begin|>",
                "<|tool_calls_section_end|>",
                reopen=True,
                keep_markers=True,
            ),
        ),
        "kimi_k3": (
            Marker("reasoning", ("<|open|>", "think", "<|sep|>"), ("<|close|>", "think", "<|sep|>")),
            Marker("content", ("<|open|>", "response", "<|sep|>"), ("<|close|>", "response", "<|sep|>"), reopen=True),
        ),
        "mistral": (
            Marker("reasoning", "[THINK]", "[/THINK]"),
            # Calls go on to the end of the turn.
            Marker("tool_call", "[TOOL_CALLS]", "</s>", reopen=True, keep_markers=True),
        ),
        # Messages as they should be; `detok.adapters.harmony` reads any header, and tells whom a call is for.
        "gpt_oss": (
            *_message("reasoning", "<|channel|>", "analysis", "<|message|>", end="<|end|>"),
            *_message("content", "<|channel|>", "final", "<|message|>", end="<|return|>"),
            *_message("content", "<|channel|>", "commentary", "<|message|>", end="<|end|>"),
            *_message("tool_call", "<|channel|>", "commentary to=", end="<|call|>", keep_markers=True),
            Marker(
                "tool_call",
                ("<|start|>", "assistant to="),
                "<|call|>",
                also_end=("<|end|>", "<|return|>"),
                reopen=True,
                keep_markers=True,
            ),
        ),
    }
)
"""Markers by family: `SectionSplitter(tokenizer, PRESETS["qwen3"], prompt_token_ids=prompt)`."""

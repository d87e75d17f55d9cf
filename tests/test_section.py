"""Sections: what is handed out after each push, by the library and by the reference.

A row is a list of tokens, the markers, and the pieces after each token; the last list is what the end gives. The
vocabulary has every byte and the row's tokens: `<|…|>` is special, those in `added` are found as a whole and shown,
None is an id without a token. Records are written as `V0` (visible), `v0` (inside a character), `Z0` (zero-width).
"""

import json
import pickle
from typing import Any, NamedTuple

import detok
import pytest
import reference
import reference_sections
from helpers import groupings, ones
from small_tokenizers import Piece, byte_level_json
from test_laws import plain

Shown = tuple[str, str, str]  # section, text, records
Token = str | bytes | None
UNMAPPED = 9_999
HALF, REST = [b"\xe4"], [b"\xbd", b"\xa0"]  # of 你
TAGS = ("<think>", "</think>", "<call>", "</call>")


class Row(NamedTuple):
    markers: list[dict[str, Any]]
    tokens: list[Token]
    shown: list[list[Shown]]
    counts: dict[str, int]
    added: tuple[str, ...] = TAGS
    prompt: list[Token] = []  # noqa: RUF012
    initial: str | None = None
    show: bool = False  # special tokens
    buffer: int = 0
    section: str = "content"  # at the end

    @property
    def vocabulary(self) -> "Vocabulary":
        patterns = [self.tokens, self.prompt, *(marker["start"] for marker in self.markers)]
        patterns += [end for marker in self.markers for end in (marker["end"], *marker.get("also_end", ()))]
        parts = [part for each in patterns for part in (each if isinstance(each, list) else [each])]
        return Vocabulary([part for part in parts if isinstance(part, str | bytes)], self.added)


class Vocabulary:
    """One file, read by both sides."""

    def __init__(self, tokens: list[str | bytes], added: tuple[str, ...], special: tuple[str, ...] = ()) -> None:
        pieces = []
        for token in dict.fromkeys(token.encode() if isinstance(token, str) else token for token in tokens):
            text = token.decode(errors="replace")
            hidden = text in special or (text.startswith("<|") and text.endswith("|>"))
            pieces.append(Piece(token, "special" if hidden else "added" if text in added else "normal"))
        self.file = byte_level_json(pieces)
        self.tokenizer = detok.Tokenizer.from_json(self.file)
        self.reference = reference.Vocabulary.from_json(json.loads(self.file))
        self.id_of = {reference.token_bytes(self.reference, i): i for i in self.reference.tokens}

    def ids(self, tokens: list[Token]) -> list[int]:
        return [
            UNMAPPED if token is None else self.id_of[token.encode() if isinstance(token, str) else token]
            for token in tokens
        ]


def marker(name: str, start: Any, end: Any, **options: Any) -> dict[str, Any]:
    return {"name": name, "start": start, "end": end, **options}


def content(text: str, records: str = "V0") -> Shown:
    return "content", text, records


def reasoning(text: str, records: str = "V0") -> Shown:
    return "reasoning", text, records


def call(text: str, records: str = "V0") -> Shown:
    return "call", text, records


def counted(content: int, reasoning: int, markers: int, **others: int) -> dict[str, int]:
    return {"content": content, "reasoning": reasoning, "markers": markers, **others}


THINK = marker("reasoning", "<think>", "</think>")
AGAIN = THINK | {"reopen": True}
HIDDEN = marker("reasoning", "<|think|>", "<|/think|>")
CALL = marker("call", "<call>", "</call>", reopen=True, keep_markers=True)
PATTERN = marker("reasoning", ["<|open|>", "think", "<|sep|>"], ["<|close|>", "think", "<|sep|>"])

# Markers that are one token.
IDS = {
    "shown": Row(
        [THINK],
        ["<think>", "a", "</think>", "b"],
        [[], [reasoning("a")], [], [content("b")], []],
        counted(1, 1, 2),
    ),
    "hidden": Row(
        [HIDDEN],
        ["<|think|>", "a", "<|/think|>", "b"],
        [[], [reasoning("a")], [], [content("b")], []],
        counted(1, 1, 2),
    ),
    "a special one that is shown": Row(
        [HIDDEN],
        ["<|think|>", "a", "<|/think|>", "b"],
        [[], [reasoning("a")], [], [content("b")], []],
        counted(1, 1, 2),
        show=True,
    ),
    "text before": Row(
        [THINK],
        ["x", "<think>", "a"],
        [[content("x")], [], [reasoning("a")], []],
        counted(1, 1, 1),
        section="reasoning",
    ),
    "text that looks alike": Row(
        [THINK], ["<thi", "nk>", "a"], [[content("<thi")], [content("nk>")], [content("a")], []], counted(3, 0, 0)
    ),
    "text that looks like an end": Row(
        [THINK],
        ["<think>", "</th", "ink>", "</think>"],
        [[], [reasoning("</th")], [reasoning("ink>")], [], []],
        counted(0, 2, 2),
    ),
    "an end without a start": Row(
        [THINK], ["a", "</think>", "b"], [[content("a")], [content("</think>")], [content("b")], []], counted(3, 0, 0)
    ),
    "a hidden end without a start": Row([HIDDEN], ["<|/think|>"], [[content("", "Z0")], []], counted(1, 0, 0)),
    "a start inside": Row(
        [AGAIN],
        ["<think>", "<think>", "a", "</think>", "b"],
        [[], [reasoning("<think>")], [reasoning("a")], [], [content("b")], []],
        counted(1, 2, 2),
    ),
    "a later start": Row(
        [THINK],
        ["<think>", "</think>", "<think>", "a", "</think>"],
        [[], [], [content("<think>")], [content("a")], [content("</think>")], []],
        counted(3, 0, 2),
    ),
    "a later start that may open again": Row(
        [AGAIN],
        ["<think>", "</think>", "<think>", "a", "</think>"],
        [[], [], [], [reasoning("a")], [], []],
        counted(0, 1, 4),
    ),
    "never ended": Row(
        [THINK],
        ["<think>", "a", "b"],
        [[], [reasoning("a")], [reasoning("b")], []],
        counted(0, 2, 1),
        section="reasoning",
    ),
    "an ordinary id": Row(
        [marker("reasoning", [0x2A], 0x2B)],  # * and +, as ids of bytes
        ["*", "a", "+", "b"],
        [[], [reasoning("a")], [], [content("b")], []],
        counted(1, 1, 2),
    ),
    "another section may start meanwhile": Row(
        [THINK, CALL],
        ["<think>", "<call>", "</think>", "<call>", "a", "</call>"],
        [[], [reasoning("<call>")], [], [call("<call>")], [call("a")], [call("</call>")], []],
        counted(0, 1, 4, call=1),
    ),
    "no markers": Row([], ["a"], [[content("a")], []], {"content": 1, "markers": 0}),
}

# Markers that are text, in whatever tokens it comes.
TEXT = {
    "split over tokens": Row(
        [THINK],
        ["a<th", "ink>b", " </th", "ink>", "c"],
        [[content("a")], [reasoning("b", "")], [reasoning(" ")], [], [content("c")], []],
        counted(2, 1, 2),
    ),
    "by letters": Row(
        [THINK],
        [*"a<think>b</think>c"],
        [[content("a")], *[[]] * 7, [reasoning("b")], *[[]] * 8, [content("c")], []],
        counted(2, 1, 15),
    ),
    "one token": Row(
        [THINK],
        ["a<think>b</think>c"],
        [[content("a"), reasoning("b", ""), content("c", "")], []],
        counted(1, 0, 0),
    ),
    "a beginning that fails": Row(
        [THINK], ["<th", "at", "x"], [[], [content("<that", "V0 V3")], [content("x")], []], counted(3, 0, 0)
    ),
    "only what may still match": Row([THINK], ["a<<th"], [[content("a<")], [content("<th", "")]], counted(1, 0, 0)),
    "a beginning at the end": Row(
        [THINK],
        ["<think>", "a", "</thin"],
        [[], [reasoning("a")], [], [reasoning("</thin")]],
        counted(0, 2, 1),
        section="reasoning",
    ),
    "inside characters": Row(
        [marker("reasoning", "◁think▷", "◁/think▷")],
        [b"a\xe2", b"\x97\x81think\xe2", b"\x96", b"\xb7b", "c"],
        [[content("a")], [], [], [reasoning("b", "")], [reasoning("c")], []],
        counted(1, 1, 3),
        section="reasoning",
    ),
    "a character that begins alike": Row(
        [marker("reasoning", "◁", "▷")],
        [b"\xe2", b"\x96\xb6", "x"],
        [[], [content("▶", "V0 v0")], [content("x")], []],
        counted(3, 0, 0),
    ),
    "hidden tokens inside": Row(
        [THINK],
        ["<th", "<|h|>", "ink>", "a"],
        [[], [], [], [reasoning("a")], []],
        counted(0, 1, 3),
        section="reasoning",
    ),
    "unknown ids inside": Row(
        [THINK], ["<th", None, "ink>", "a"], [[], [], [], [reasoning("a")], []], counted(0, 1, 3), section="reasoning"
    ),
    "a hidden token in a beginning that fails": Row(
        [THINK], ["x<", "<|h|>", "y"], [[content("x")], [], [content("<y", "Z1 V1")], []], counted(3, 0, 0)
    ),
    "a shown token inside": Row(
        [THINK],
        ["<th", "<|h|>", "ink>"],
        [[], [content("<th<|h|>", "V0 V3")], [content("ink>")], []],
        counted(3, 0, 0),
        show=True,
    ),
    "a look-alike of special tokens": Row(
        [marker("reasoning", ["<|thi", "nk|>"], "</think>")],
        ["<|think|>", "a"],
        [[], [reasoning("a")], []],
        counted(0, 1, 1),
        show=True,
        section="reasoning",
    ),
    "the one that completes first": Row(
        [marker("call", "abcd", "!"), marker("reasoning", "bc", "!")],
        ["a", "b", "c", "d"],
        [[], [], [content("a")], [reasoning("d")], []],
        counted(1, 1, 2, call=0),
        section="reasoning",
    ),
    "a tie, the longer one first": Row(
        [marker("call", "abc", "!"), marker("reasoning", "bc", "!")],
        ["ab", "c", "d"],
        [[], [], [call("d")], []],
        counted(0, 0, 2, call=1),
        section="call",
    ),
    "a tie, the shorter one first": Row(
        [marker("reasoning", "bc", "!"), marker("call", "abc", "!")],
        ["ab", "c", "d"],
        [[], [content("a")], [reasoning("d")], []],
        counted(1, 1, 1, call=0),
        section="reasoning",
    ),
    "a longer one never completes": Row(
        [marker("call", "abc", "!"), marker("reasoning", "ab", "!")],
        ["ab", "c"],
        [[], [reasoning("c")], []],
        counted(0, 1, 1, call=0),
        section="reasoning",
    ),
    "its own end is its start": Row(
        [marker("reasoning", "``", "``", reopen=True)],
        ["```", "a`", "`b", "`", "``", "c"],
        [[], [reasoning("`a", "V1")], [content("b", "")], [], [], [reasoning("`c", "V1")], []],
        counted(0, 2, 4),
        section="reasoning",
    ),
}

# Tokens without text, and markers that come inside a character.
ZERO_WIDTH = {
    "before a hidden marker": Row(
        [HIDDEN],
        ["a", "<|h|>", "<|think|>", "b"],
        [[content("a")], [content("", "Z0")], [], [reasoning("b")], []],
        counted(2, 1, 1),
        section="reasoning",
    ),
    "right behind a hidden marker": Row(
        [HIDDEN],
        ["a", "<|think|>", "<|h|>", "b"],
        [[content("a")], [], [reasoning("", "Z0")], [reasoning("b")], []],
        counted(1, 2, 1),
        section="reasoning",
    ),
    "around an end": Row(
        [HIDDEN],
        ["<|think|>", "a", "<|h|>", "<|/think|>", "<|h|>", "b"],
        [[], [reasoning("a")], [reasoning("", "Z0")], [], [content("", "Z0")], [content("b")], []],
        counted(2, 2, 2),
    ),
    "around a shown marker": Row(
        [THINK],
        ["<|h|>", "<think>", "<|h|>", "a"],
        [[content("", "Z0")], [], [reasoning("", "Z0")], [reasoning("a")], []],
        counted(1, 2, 1),
        section="reasoning",
    ),
    "around text": Row(
        [THINK],
        ["x", "<|h|>", "<", "think>", "<|h|>", "a"],
        [[content("x")], [content("", "Z0")], [], [], [reasoning("", "Z0")], [reasoning("a")], []],
        counted(2, 2, 2),
        added=(),
        section="reasoning",
    ),
    "nothing between two markers": Row(
        [HIDDEN], ["<|think|>", "<|/think|>", "<|h|>"], [[], [], [content("", "Z0")], []], counted(1, 0, 2)
    ),
    "a hidden marker in a character": Row(
        [HIDDEN],
        [*HALF, "<|think|>", *REST, "a"],
        [[], [], [], [content("你"), reasoning("", "Z0 Z0")], [reasoning("a")], []],
        counted(1, 3, 1),
        section="reasoning",
    ),
    "two hidden markers in a character": Row(
        [HIDDEN],
        [*HALF, "<|think|>", REST[0], "<|/think|>", REST[1], "a"],
        [[], [], [], [], [content("你"), reasoning("", "Z0"), content("", "Z0")], [content("a")], []],
        counted(3, 1, 2),
    ),
    "a hidden marker behind half a character that breaks": Row(
        [HIDDEN],
        [*HALF, "<|think|>", "a"],
        [[], [], [content("\ufffd"), reasoning("a")], []],
        counted(1, 1, 1),
        section="reasoning",
    ),
    "a hidden marker behind half a character at the end": Row(
        [HIDDEN],
        ["a", *HALF, "<|think|>"],
        [[content("a")], [], [], [content("\ufffd")]],
        counted(2, 0, 1),
        section="reasoning",
    ),
    "another hidden token in a character": Row(
        [HIDDEN], [*HALF, "<|h|>", *REST], [[], [], [], [content("你", "V0 Z0 v0 v0")], []], counted(4, 0, 0)
    ),
    "a hidden token in a marker's character": Row(
        [marker("reasoning", "你", "!")],
        [*HALF, "<|h|>", *REST, "a"],
        [[], [], [], [], [reasoning("a")], []],
        counted(0, 1, 4),
        section="reasoning",
    ),
    "a hidden marker in a marker's character": Row(
        [marker("reasoning", "你", "<|/think|>"), marker("call", "<|/think|>", "!")],
        [*HALF, "<|/think|>", *REST, "a"],
        [[], [], [], [call("", "Z0 Z0")], [call("a")], []],
        counted(0, 0, 2, call=3),
        section="call",
    ),
    "a kept marker ends in a character": Row(
        [HIDDEN | {"keep_markers": True}],
        ["<|think|>", *HALF, "<|/think|>", *REST],
        [[reasoning("", "Z0")], [], [], [], [reasoning("你", "V0 Z0"), content("", "Z0 Z0")], []],
        counted(2, 1, 2),
    ),
    "a shown marker ends half a character": Row(
        [THINK],
        [*HALF, "<think>", *REST],
        [[], [content("\ufffd")], [reasoning("\ufffd")], [reasoning("\ufffd")], []],
        counted(1, 2, 1),
        section="reasoning",
    ),
    "a pattern begun in a character fails": Row(
        [PATTERN],
        [*HALF, "<|open|>", *REST, "x"],
        [[], [], [], [], [content("你x", "V0 Z0 v0 v0 V3")], []],
        counted(5, 0, 0),
    ),
}

# Patterns of ids and texts.
PATTERNS = {
    "hidden": Row(
        [PATTERN],
        ["<|open|>", "think", "<|sep|>", "a", "<|close|>", "think", "<|sep|>", "b"],
        [[], [], [], [reasoning("a")], [], [], [], [content("b")], []],
        counted(1, 1, 6),
    ),
    "shown": Row(
        [PATTERN],
        ["<|open|>", "think", "<|sep|>", "a", "<|close|>", "think", "<|sep|>", "b"],
        [[], [], [], [reasoning("a")], [], [], [], [content("b")], []],
        counted(1, 1, 6),
        show=True,
    ),
    "its text split over tokens": Row(
        [PATTERN],
        ["<|open|>", "th", "<|h|>", "ink", "<|sep|>", "a"],
        [[], [], [], [], [], [reasoning("a")], []],
        counted(0, 1, 5),
        section="reasoning",
    ),
    "a beginning that fails": Row(
        [PATTERN],
        ["a", "<|open|>", "thing", "x"],
        [[content("a")], [], [content("thing", "Z0 V0")], [content("x")], []],
        counted(4, 0, 0),
    ),
    "a shown beginning that fails": Row(
        [PATTERN],
        ["<|open|>", "think", "x"],
        [[], [], [content("<|open|>thinkx", "V0 V8 V13")], []],
        counted(3, 0, 0),
        show=True,
    ),
    "begun anew": Row(
        [PATTERN],
        ["<|open|>", "think", "<|open|>", "think", "<|sep|>", "a"],
        [[], [], [content("think", "Z0 V0")], [], [], [reasoning("a")], []],
        counted(2, 1, 3),
        section="reasoning",
    ),
    "a beginning at the end": Row(
        [PATTERN], ["a", "<|open|>", "thi"], [[content("a")], [], [], [content("thi", "Z0 V0")]], counted(3, 0, 0)
    ),
    "another one's end": Row(
        [PATTERN],
        ["<|close|>", "think", "<|sep|>"],
        [[content("", "Z0")], [content("think")], [content("", "Z0")], []],
        counted(3, 0, 0),
    ),
    "its last token goes on": Row(
        [marker("reasoning", ["<|open|>", "think\n"], "<|close|>")],
        ["<|open|>", "think", "\na", "b"],
        [[], [], [reasoning("a", "")], [reasoning("b")], []],
        counted(0, 1, 3),
        section="reasoning",
    ),
    "text before an id": Row(
        [marker("reasoning", ["to=", "<|sep|>"], "<|close|>")],
        ["x to", "=", "<|sep|>", "a"],
        [[content("x ")], [], [], [reasoning("a")], []],
        counted(1, 1, 2),
        section="reasoning",
    ),
    "two parts of text are one": Row(
        [marker("reasoning", ["<thi", "nk>"], "</think>")],
        ["<", "think>", "a"],
        [[], [], [reasoning("a")], []],
        counted(0, 1, 2),
        section="reasoning",
        added=(),
    ),
    "a shown id is not its text": Row(
        [marker("reasoning", ["<call>", "x"], "</call>"), marker("call", "call>y", "!")],
        ["<call>", "y", "call>y", "a"],
        [[], [content("<call>y", "V0 V6")], [], [call("a")], []],
        counted(2, 0, 1, call=1),
        section="call",
    ),
    "the same beginning": Row(
        [marker("reasoning", ["<|open|>", "think"], "<|close|>"), marker("call", ["<|open|>", "tool"], "<|close|>")],
        ["<|open|>", "t", "ool", "a", "<|close|>", "<|open|>", "think", "b"],
        [[], [], [], [call("a")], [], [], [], [reasoning("b")], []],
        counted(0, 1, 6, call=1),
        section="reasoning",
    ),
}

# Where a section ends, and what becomes of its markers.
ENDS = {
    "also_end": Row(
        [THINK | {"also_end": ["<|e|>", "STOP"], "reopen": True}],
        ["<think>", "a", "<|e|>", "b", "<think>", "cST", "OPd"],
        [[], [reasoning("a")], [], [content("b")], [], [reasoning("c")], [content("d", "")], []],
        counted(1, 2, 4),
    ),
    "the end before also_end": Row(
        [marker("reasoning", "<think>", "c", also_end=["bc"])],
        ["<think>", "ab", "c", "d"],
        [[], [reasoning("a")], [reasoning("b", "")], [content("d")], []],
        counted(1, 1, 2),
    ),
    "also_end in order": Row(
        [marker("reasoning", "<think>", "!", also_end=["abc", "bc"])],
        ["<think>", "ab", "c", "d"],
        [[], [], [], [content("d")], []],
        counted(1, 0, 3),
    ),
    "the start of another": Row(
        [marker("reasoning", "<|r|>", "<|c|>"), marker("call", "<|c|>", "<|e|>")],
        ["<|r|>", "a", "<|c|>", "b", "<|e|>", "c"],
        [[], [reasoning("a")], [], [call("b")], [], [content("c")], []],
        counted(1, 1, 3, call=1),
    ),
    "the start of another, which keeps it": Row(
        [marker("reasoning", "<|r|>", "<|c|>"), marker("call", "<|c|>", "<|e|>", keep_markers=True)],
        ["<|r|>", "a", "<|c|>", "b", "<|e|>", "c"],
        [[], [reasoning("a")], [call("<|c|>")], [call("b")], [call("<|e|>")], [content("c")], []],
        counted(1, 1, 3, call=1),
        show=True,
    ),
    "the start of another, which does not keep it": Row(
        [marker("reasoning", "<|r|>", "<|c|>", keep_markers=True), marker("call", "<|c|>", "<|e|>")],
        ["<|r|>", "a", "<|c|>", "b"],
        [[reasoning("<|r|>")], [reasoning("a")], [], [call("b")], []],
        counted(0, 1, 2, call=1),
        show=True,
        section="call",
    ),
    "the start of another that may not open again": Row(
        [marker("reasoning", "<|r|>", "<|c|>", reopen=True), marker("call", "<|c|>", "<|e|>")],
        ["<|c|>", "<|e|>", "<|r|>", "a", "<|c|>", "b"],
        [[], [], [], [reasoning("a")], [], [content("b")], []],
        counted(1, 1, 4, call=0),
    ),
    "an alternative that starts another": Row(
        [marker("reasoning", "<|r|>", "<|x|>", also_end=["<|c|>"]), marker("call", "<|c|>", "<|e|>")],
        ["<|r|>", "<|c|>", "a"],
        [[], [], [call("a")], []],
        counted(0, 0, 2, call=1),
        section="call",
    ),
    "markers kept, hidden": Row(
        [HIDDEN | {"keep_markers": True}],
        ["<|think|>", "a", "<|/think|>", "b"],
        [[reasoning("", "Z0")], [reasoning("a")], [reasoning("", "Z0")], [content("b")], []],
        counted(1, 1, 2),
    ),
    "markers kept, text": Row(
        [marker("call", "<c>", "</c>", keep_markers=True)],
        ["a<", "c>b", "</", "c>d"],
        [[content("a")], [call("<c>b", "V1")], [], [call("</c>", "V0 V2"), content("d", "")], []],
        {"content": 1, "call": 0, "markers": 3},
    ),
    "markers kept, a pattern": Row(
        [PATTERN | {"keep_markers": True}],
        ["<|open|>", "think", "<|sep|>", "a"],
        [[], [], [reasoning("think", "Z0 V0 Z5")], [reasoning("a")], []],
        counted(0, 1, 3),
        section="reasoning",
    ),
    "markers kept, in a character": Row(
        [HIDDEN | {"keep_markers": True}],
        [*HALF, "<|think|>", *REST],
        [[], [], [], [content("你"), reasoning("", "Z0 Z0 Z0")], []],
        counted(1, 2, 1),
        section="reasoning",
    ),
    "two sections of one name": Row(
        [marker("reasoning", "<a>", "</a>"), marker("reasoning", "<b>", "</b>")],
        ["<a>x</a><b>y</b>"],
        [[reasoning("x", ""), reasoning("y", "")], []],
        counted(0, 0, 1),
    ),
    "content on both sides of nothing": Row(
        [THINK], ["a<think></think>b"], [[content("a"), content("b", "")], []], counted(1, 0, 0), added=()
    ),
    "a section that is content": Row(
        [marker("content", "<final>", "</final>"), THINK],
        ["a", "<final>b</final>", "c"],
        [[content("a")], [content("b", "")], [content("c")], []],
        counted(2, 0, 1),
    ),
}

# Where the prompt leaves off.
PROMPTS = {
    "inside": Row(
        [THINK],
        ["a", "</think>", "b"],
        [[reasoning("a")], [], [content("b")], []],
        counted(1, 1, 1),
        prompt=["<|im_start|>", "assistant\n", "<think>", "\n"],
    ),
    "closed": Row(
        [THINK],
        ["a", "<think>", "b"],
        [[content("a")], [content("<think>")], [content("b")], []],
        counted(3, 0, 0),
        prompt=["<|im_start|>", "assistant\n", "<think>", "\n\n", "</think>", "\n\n"],
    ),
    "closed, and may open again": Row(
        [AGAIN],
        ["a", "<think>", "b"],
        [[content("a")], [], [reasoning("b")], []],
        counted(1, 1, 1),
        prompt=["<think>", "</think>"],
        section="reasoning",
    ),
    "before the last special token": Row(
        [THINK],
        ["a", "<think>", "b"],
        [[content("a")], [], [reasoning("b")], []],
        counted(1, 1, 1),
        prompt=["<think>", "x", "<|im_end|>", "y"],
        section="reasoning",
    ),
    "special tokens of patterns are not the last": Row(
        [HIDDEN, marker("call", "<|c|>", ["<|sep|>", "!"])],
        ["a"],
        [[reasoning("a")], []],
        counted(0, 1, 0, call=0),
        prompt=["<|think|>", "x", "<|sep|>", "y"],
        section="reasoning",
    ),
    "hidden in the output, seen in the prompt": Row(
        [HIDDEN],
        ["a", "<|/think|>", "b"],
        [[reasoning("a")], [], [content("b")], []],
        counted(1, 1, 1),
        prompt=["<|think|>"],
    ),
    "begun in the prompt": Row(
        [THINK],
        ["ink>", "a"],
        [[], [reasoning("a")], []],
        counted(0, 1, 1),
        prompt=["x<th"],
        section="reasoning",
    ),
    "begun in the prompt, and fails": Row(
        [THINK], ["at", "a"], [[content("at")], [content("a")], []], counted(2, 0, 0), prompt=["x<th"]
    ),
    "begun in the prompt, nothing comes": Row([THINK], [], [[]], counted(0, 0, 0), prompt=["x<th"]),
    "begun in the prompt, held at the end": Row([THINK], ["i"], [[], [content("i")]], counted(1, 0, 0), prompt=["<th"]),
    "a pattern begun in the prompt": Row(
        [PATTERN],
        ["ink", "<|sep|>", "a"],
        [[], [], [reasoning("a")], []],
        counted(0, 1, 2),
        prompt=["<|open|>", "th"],
        section="reasoning",
    ),
    "an end begun in the prompt": Row(
        [THINK], ["think>", "a"], [[], [content("a")], []], counted(1, 0, 1), prompt=["<", "think>", "x</"]
    ),
    "kept markers, as far as they are generated": Row(
        [marker("call", "<c>", "</c>", keep_markers=True)],
        ["c>", "a"],
        [[call("c>")], [call("a")], []],
        {"content": 0, "call": 1, "markers": 1},
        prompt=["x<"],
        section="call",
    ),
    "half a character at its end": Row(
        [THINK],
        [*REST, "a"],
        [[], [reasoning("你", "v0 v0")], [reasoning("a")], []],
        counted(0, 3, 0),
        prompt=["<think>", *HALF],
        section="reasoning",
    ),
    "half a character, then a hidden marker": Row(
        [HIDDEN],
        ["<|think|>", *REST],
        [[], [], [reasoning("你", "v0 v0")], []],
        counted(0, 2, 1),
        prompt=["x", *HALF],
        section="reasoning",
    ),
    "half of a marker's character": Row(
        [marker("reasoning", "你", "!")],
        [*REST, "a"],
        [[], [], [reasoning("a")], []],
        counted(0, 1, 2),
        prompt=["x", *HALF],
        section="reasoning",
    ),
    "unknown ids": Row(
        [THINK], ["a"], [[reasoning("a")], []], counted(0, 1, 0), prompt=["<think>", None, None], section="reasoning"
    ),
    "unknown ids inside a marker": Row(
        [THINK], ["ink>", "a"], [[], [reasoning("a")], []], counted(0, 1, 1), prompt=["<th", None], section="reasoning"
    ),
    "an end that starts another": Row(
        [marker("reasoning", "<|r|>", "<|c|>"), marker("call", "<|c|>", "<|e|>")],
        ["a", "<|e|>", "<|c|>"],
        [[call("a")], [], [content("", "Z0")], []],
        counted(1, 0, 1, call=1),
        prompt=["<|r|>", "x", "<|c|>", "y"],
    ),
    "initial given": Row(
        [THINK],
        ["a", "</think>", "b", "<think>"],
        [[reasoning("a")], [], [content("b")], [content("<think>")], []],
        counted(2, 1, 1),
        prompt=["<think>", "x", "</think>"],
        initial="reasoning",
    ),
    "initial given, the first of that name": Row(
        [marker("call", "<|c|>", "!"), marker("reasoning", "<|r|>", "<|e|>"), marker("reasoning", "<|s|>", "<|f|>")],
        ["<|f|>", "a", "<|e|>", "b"],
        [[reasoning("", "Z0")], [reasoning("a")], [], [content("b")], []],
        counted(1, 2, 1, call=0),
        initial="reasoning",
    ),
    "initial content": Row(
        [THINK],
        ["a", "<think>", "b"],
        [[content("a")], [], [reasoning("b")], []],
        counted(1, 1, 1),
        prompt=["<think>"],
        initial="content",
        section="reasoning",
    ),
    "initial given, begun in the prompt": Row(
        [THINK], ["ink>"], [[content("ink>")], []], counted(1, 0, 0), prompt=["<th"], initial="content"
    ),
}

# Chunks that are cut elsewhere than behind tokens.
BUFFERED = {
    "a shown marker of which a part has come": Row(
        [THINK],
        ["<think>", "ab", "cdef"],
        [[], [], [reasoning("abc", "V0 V2")], [reasoning("def", "")]],
        counted(0, 2, 1),
        buffer=3,
        section="reasoning",
    ),
    "a kept marker of which a part has come": Row(
        [CALL],
        ["<call>", "ab", "cdef"],
        [[call("<ca")], [call("ll", "")], [call(">abc", "V1 V3")], [call("def", "")]],
        {"content": 0, "call": 2, "markers": 1},
        buffer=3,
        section="call",
    ),
    "a pattern's shown id of which a part has come": Row(
        [PATTERN],
        ["<|open|>", "th", "ree", "x"],
        [[], [], [content("<|open|>thre", "V0 V8 V10")], [content("e", "")], [content("x")]],
        counted(4, 0, 0),
        buffer=1,
        show=True,
    ),
    "text": Row(
        [THINK],
        ["x<", "think>", "a", "bc"],
        [[content("x")], [], [], [reasoning("ab", "V0 V1")], [reasoning("c", "")]],
        counted(1, 2, 1),
        buffer=1,
        section="reasoning",
        added=(),
    ),
}

TEXT = {name: row._replace(added=()) for name, row in TEXT.items()}
PROMPT_TEXT = [
    "begun in the prompt",
    "begun in the prompt, and fails",
    "begun in the prompt, nothing comes",
    "begun in the prompt, held at the end",
    "an end begun in the prompt",
    "unknown ids inside a marker",
    "initial given, begun in the prompt",
]
PROMPTS |= {name: PROMPTS[name]._replace(added=()) for name in PROMPT_TEXT}

ROWS = {
    f"{part}: {name}": each
    for part, table in {
        "ids": IDS,
        "text": TEXT,
        "zero-width": ZERO_WIDTH,
        "patterns": PATTERNS,
        "ends": ENDS,
        "prompts": PROMPTS,
        "buffered": BUFFERED,
    }.items()
    for name, each in table.items()
}
SIDES = ("library", "reference")


class Run:
    """A splitter behind a stream, of the library or of the reference."""

    def __init__(self, side: str, row: Row) -> None:
        vocabulary = row.vocabulary
        ours = side == "library"
        source: Any = vocabulary.tokenizer if ours else vocabulary.reference
        module: Any = detok if ours else reference_sections
        prompt = vocabulary.ids(row.prompt)
        options = {"skip_special_tokens": not row.show, "min_bytes_to_buffer": row.buffer, "unknown_ids": "skip"}
        self.stream = (detok if ours else reference).DecodeStream(source, prompt, **options)
        self.splitter = module.SectionSplitter(
            source,
            [module.Marker(**each) for each in row.markers],
            prompt_token_ids=prompt,
            initial=row.initial,
        )
        self.empty = (detok if ours else reference).DecodedText()

    def push(self, ids: list[int]) -> list[Shown]:
        self.stream.push_tokens(ids)
        return shown(self.splitter.push(self.stream.next_chunk() or self.empty))

    def end(self) -> list[Shown]:
        return shown(self.splitter.push(self.stream.flush()[0] or self.empty)) + shown(self.splitter.finish())

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.splitter.token_counts)


def shown(pieces: Any) -> list[Shown]:
    return [(name, plain(decoded).text, marks(plain(decoded))) for name, decoded in pieces]


def marks(decoded: reference.DecodedText) -> str:
    letters = [("v" if record.continues_char else "V") if record.visible else "Z" for record in decoded.records]
    return " ".join(f"{letter}{record.byte_offset}" for letter, record in zip(letters, decoded.records, strict=True))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ROWS)
def test_row(name, side):
    row = ROWS[name]
    run = Run(side, row)
    for token_id, expected in zip(row.vocabulary.ids(row.tokens), row.shown[:-1], strict=True):
        assert run.push([token_id]) == expected
    assert run.end() == row.shown[-1]
    assert run.counts == row.counts
    assert sum(row.counts.values()) == len(row.tokens)
    assert run.splitter.section == row.section


def joined(pieces: list[Shown]) -> list[Shown]:
    """Neighbours of one name as one, with the records of all of them."""
    out: list[Shown] = []
    for name, text, records in pieces:
        if out and out[-1][0] == name:
            _, before, others = out.pop()
            moved = [f"{mark[0]}{int(mark[1:]) + len(before.encode())}" for mark in records.split()]
            out.append((name, before + text, " ".join([*others.split(), *moved])))
        else:
            out.append((name, text, records))
    return out


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ROWS)
def test_row_in_any_grouping(name, side):
    """The same text, records and counts."""
    row = ROWS[name]
    ids = row.vocabulary.ids(row.tokens)
    for groups in groupings(ids, name):
        for buffer in {row.buffer, 0, 1, 4}:
            run = Run(side, row._replace(buffer=buffer))
            pieces = [piece for group in groups for piece in run.push(group)] + run.end()
            assert joined(pieces) == joined([piece for step in row.shown for piece in step])
            assert run.counts == row.counts


@pytest.mark.parametrize("side", SIDES)
def test_all_in_one_push(side):
    """Neighbours of one section are one piece, whatever was held between them."""
    tokens = ["a", "<thin", "g", "<think>", "b", "</thin", "c", "</think>", "d"]
    row = Row([THINK], tokens, [], {})
    run = Run(side, row)
    assert run.push(row.vocabulary.ids(tokens)) == [
        content("a<thing", "V0 V1 V6"),
        reasoning("b</thinc", "V0 V1 V7"),
        content("d"),
    ]
    assert run.end() == []


@pytest.mark.parametrize("side", SIDES)
def test_the_section_of_the_next_text(side):
    row = Row([THINK], [], [], {}, prompt=["<thi"], added=())
    run = Run(side, row)
    assert run.splitter.section == "content"
    seen = []
    for data in (b"nk>", b"x</think", b">"):
        decoded: Any = detok.DecodedText(data.decode()) if side == "library" else reference.DecodedText(data.decode())
        run.splitter.push(decoded)
        seen.append(run.splitter.section)
    assert seen == ["reasoning", "reasoning", "content"]


@pytest.mark.parametrize("side", SIDES)
def test_what_is_held_counts_where_it_stands(side):
    row = Row([THINK], ["a", "<th", "ink", ">"], [], {}, added=())
    run, seen = Run(side, row), []
    assert run.counts == counted(0, 0, 0)
    for token_id in row.vocabulary.ids(row.tokens):
        run.push([token_id])
        seen.append(run.counts)
    assert seen == [counted(1, 0, 0), counted(2, 0, 0), counted(3, 0, 0), counted(1, 0, 3)]


@pytest.mark.parametrize("side", SIDES)
def test_after_the_end(side):
    error = detok.StreamFinishedError if side == "library" else reference.StreamFinishedError
    run = Run(side, Row([THINK], [], [], {}))
    assert run.splitter.finish() == []
    for call in (run.splitter.finish, lambda: run.splitter.push(run.empty)):
        with pytest.raises(error):
            call()
    assert run.counts == counted(0, 0, 0)


# ---------------------------------------------------------------- arguments

BAD_MARKERS = {
    "no name": (("", "a", "b"), {}, ValueError),
    "the name of the count": (("markers", "a", "b"), {}, ValueError),
    "a name that is none": ((1, "a", "b"), {}, TypeError),
    "an empty start": (("x", "", "b"), {}, ValueError),
    "an empty end": (("x", "a", ""), {}, ValueError),
    "a start of nothing": (("x", [], "b"), {}, ValueError),
    "an empty part": (("x", ["a", ""], "b"), {}, ValueError),
    "an empty alternative": (("x", "a", "b"), {"also_end": [""]}, ValueError),
    "an alternative of nothing": (("x", "a", "b"), {"also_end": [[]]}, ValueError),
    "a bool": (("x", True, "b"), {}, TypeError),
    "a bool inside": (("x", ["a", False], "b"), {}, TypeError),
    "a float": (("x", "a", 1.0), {}, TypeError),
    "bytes": (("x", b"a", "b"), {}, TypeError),
    "None": (("x", "a", None), {}, TypeError),
    "patterns in a pattern": (("x", [["a"]], "b"), {}, TypeError),
    "a float among alternatives": (("x", "a", "b"), {"also_end": [1.5]}, TypeError),
    "a lone surrogate": (("x", "\ud800", "b"), {}, ValueError),
    "a lone surrogate inside": (("x", "a", ["b", "\udfff"]), {}, ValueError),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", BAD_MARKERS)
def test_markers_that_are_none(name, side):
    arguments, options, error = BAD_MARKERS[name]
    module: Any = detok if side == "library" else reference_sections
    with pytest.raises(error):
        module.Marker(*arguments, **options)


HALF_OF_ROOM = "a" * (32 * 1024)
BAD_SPLITTERS = {
    "one start twice": ([marker("x", "a", "b"), marker("y", "a", "c")], {}, ValueError),
    "one start twice, in parts": ([marker("x", "ab", "c"), marker("y", ["a", "b"], "c")], {}, ValueError),
    "one start twice, as id and name": ([marker("x", "<|a|>", "c"), marker("y", [256], "c")], {}, ValueError),
    "no such section": ([marker("x", "a", "b")], {"initial": "y"}, ValueError),
    "markers are no section": ([marker("x", "a", "b")], {"initial": "markers"}, ValueError),
    "an id without a token": ([marker("x", UNMAPPED, "b")], {}, "UnknownTokenError"),
    "an id without a token, inside": ([marker("x", "a", ["b", UNMAPPED])], {}, "UnknownTokenError"),
    "an id without a token, as alternative": ([marker("x", "a", "b", also_end=[UNMAPPED])], {}, "UnknownTokenError"),
    "a part of a character": ([marker("x", 0xE4, "b")], {}, ValueError),
    "a part of a character, as alternative": ([marker("x", "a", "b", also_end=[["c", 0xBD]])], {}, ValueError),
    "too long": ([marker("x", HALF_OF_ROOM, HALF_OF_ROOM, also_end=["b"])], {}, ValueError),
    "too long together": ([marker("x", HALF_OF_ROOM, "!"), marker("y", "b" + HALF_OF_ROOM, "!")], {}, ValueError),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", BAD_SPLITTERS)
def test_arguments_that_are_refused(name, side):
    markers, options, error = BAD_SPLITTERS[name]
    vocabulary = Vocabulary(["<|a|>"], ())
    assert vocabulary.ids(["<|a|>"]) == [256]
    module: Any = detok if side == "library" else reference_sections
    source: Any = vocabulary.tokenizer if side == "library" else vocabulary.reference
    if isinstance(error, str):
        error = getattr(detok if side == "library" else reference, error)
    with pytest.raises(error):
        module.SectionSplitter(source, [module.Marker(**each) for each in markers], **options)


@pytest.mark.parametrize("side", SIDES)
def test_patterns_of_all_the_room_there_is(side):
    vocabulary = Vocabulary([], ())
    module: Any = detok if side == "library" else reference_sections
    source: Any = vocabulary.tokenizer if side == "library" else vocabulary.reference
    splitter = module.SectionSplitter(source, [module.Marker("x", HALF_OF_ROOM, "b" + HALF_OF_ROOM[1:])])
    assert splitter.section == "content"


def test_a_marker_is_a_value():
    one = detok.Marker("x", ["<|open|>", 7], "b", also_end=["c", [1, "d"]], reopen=True, keep_markers=True)
    assert (one.name, one.start, one.end) == ("x", ("<|open|>", 7), "b")
    assert (one.also_end, one.reopen, one.keep_markers) == (("c", (1, "d")), True, True)
    other = detok.Marker("x", ("<|open|>", 7), "b", also_end=("c", (1, "d")), reopen=True, keep_markers=True)
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == repr(other)
    assert "<|open|>" in repr(one)
    assert pickle.loads(pickle.dumps(one)) == one
    plain_one = detok.Marker("x", "a", "b")
    assert (plain_one.also_end, plain_one.reopen, plain_one.keep_markers) == ((), False, False)
    assert plain_one != one
    with pytest.raises(AttributeError):
        plain_one.name = "y"


def test_what_is_not_decoded_text_is_refused():
    """And changes nothing."""
    row = ROWS["text: split over tokens"]
    run = Run("library", row)
    seen = []
    for group in ones(row.vocabulary.ids(row.tokens)):
        for wrong in ("a", None, b"a", [1]):
            with pytest.raises(TypeError):
                run.splitter.push(wrong)
        seen.append(run.push(group))
    assert [*seen, run.end()] == row.shown


def test_where_an_id_is_wrong():
    """The error says in which pattern, and where in it."""
    with pytest.raises(detok.UnknownTokenError, match="at index 1") as raised:
        detok.Marker("x", ["a", 2**40], "b")
    assert (raised.value.index, raised.value.__notes__) == (1, ["in start[1] of a Marker"])
    with pytest.raises(TypeError, match=r"also_end\[1\]\[0\] must be a str or a token id, not bool"):
        detok.Marker("x", "a", "b", also_end=["c", [True]])
    tokenizer = detok.Tokenizer.from_token_bytes([b"a", b"\xe4"])
    with pytest.raises(detok.UnknownTokenError, match=r"part 1 of end of marker \"x\" is token id 7") as raised:
        detok.SectionSplitter(tokenizer, [detok.Marker("x", 0, ["b", 7])])
    assert (raised.value.token_id, raised.value.index) == (7, 1)
    with pytest.raises(ValueError, match=r"part 0 of also_end\[1\] of marker \"x\" is token id 1, .*character"):
        detok.SectionSplitter(tokenizer, [detok.Marker("x", 0, "b", also_end=["c", 1])])


def test_added_tokens_of_a_window():
    """A source that is decoded by windows has markers that are added tokens too."""
    tokens = ["<", "think", ">", "a", "<think>"]
    data = {
        "added_tokens": [
            {"id": 4, "content": "<think>", "special": False, "single_word": False, "lstrip": False}
            | {"rstrip": False, "normalized": False}
        ],
        "decoder": {"type": "Replace", "pattern": {"Regex": "zz"}, "content": "z"},
        "model": {"type": "WordLevel", "vocab": {name: i for i, name in enumerate(tokens[:4])}, "unk_token": "a"},
    }
    tokenizer = detok.Tokenizer.from_json(json.dumps(data))
    assert tokenizer.strategy == "window"
    for ids, section in (([0, 1, 2], "content"), ([4], "r")):
        splitter = detok.SectionSplitter(tokenizer, [detok.Marker("r", "<think>", ">")])
        splitter.push(tokenizer.decode_attributed(ids))
        assert splitter.section == section


def test_the_text_of_a_marker_ends_where_another_token_has_text():
    """However the tokenizer spells it in its place, and however late it comes."""
    data = {
        "decoder": {"type": "BPEDecoder", "suffix": "</w>"},
        "model": {"type": "BPE", "vocab": {"a": 0, "foo</w>": 1}, "merges": []},
    }
    tokenizer = detok.Tokenizer.from_json(json.dumps(data))
    for held in range(6):
        stream = detok.DecodeStream(tokenizer, min_bytes_to_buffer=held)
        splitter = detok.SectionSplitter(tokenizer, [detok.Marker("x", 1, 1)])
        pieces = []
        for token_id in (1, 1, 0):  # foo, blank and foo, blank and a
            stream.push_token(token_id)
            pieces += splitter.push(stream.next_chunk() or detok.DecodedText())
        pieces += splitter.push(stream.flush()[0] or detok.DecodedText()) + splitter.finish()
        assert {name for name, _ in pieces} == {"content"}
        assert "".join(piece.text for _, piece in pieces) == " a"
        assert dict(splitter.token_counts) == {"content": 1, "x": 0, "markers": 2}

"""Stops that are looked for in one section: the text after each update, by the library and by the reference.

A row is a list of tokens, one an update, the stop, and what is shown after each; without a match the last string is
what the end gives. A match is (where the text ends, which token completed it).
"""

from typing import Any, NamedTuple

import detok
import pytest
import reference
import reference_events
import reference_sections
from helpers import groupings
from test_section import CALL, HIDDEN, PATTERN, SIDES, TAGS, THINK, UNMAPPED, Row, Token, Vocabulary, marker

LETTERS = marker("reasoning", "<th>", "</th>")


class Scoped(NamedTuple):
    sections: list[dict[str, Any]]
    tokens: list[Token]
    stop: str | list[str]
    shown: list[str]
    match: tuple[int, int] | None
    options: dict[str, Any]
    prompt: list[Token]

    @property
    def vocabulary(self) -> Vocabulary:
        return Row(self.sections, self.tokens, [], {}, TAGS, self.prompt).vocabulary


def row(
    sections: list[dict[str, Any]],
    tokens: list[Token],
    stop: str | list[str],
    shown: list[str],
    match: tuple[int, int] | None = None,
    *,
    scope: str | None = "content",
    prompt: list[Token] | None = None,
    **options: Any,
) -> Scoped:
    return Scoped(sections, tokens, stop, shown, match, {"stop_scope": scope, **options}, prompt or [])


INCLUDE = {"include_stop_str_in_output": True}

ROWS = {
    "not in another section": row(
        [THINK],
        ["<think>", "aSTOP", "</think>", "b", "STOP"],
        "STOP",
        ["<think>", "aSTOP", "</think>", "b", ""],
        (21, 4),
    ),
    "everywhere, if no section is named": row(
        [THINK], ["<think>", "aSTOP"], "STOP", ["<think>", "a"], (8, 1), scope=None
    ),
    "only in reasoning": row(
        [THINK], ["STOP", "<think>", "a", "STOP"], "STOP", ["STOP", "<think>", "a", ""], (12, 3), scope="reasoning"
    ),
    "behind hidden markers": row(
        [HIDDEN], ["<|think|>", "STOP", "<|/think|>", "ST", "OP"], "STOP", ["", "STOP", "", "", ""], (4, 4)
    ),
    "begun in the prompt": row(
        [THINK], ["STOP", "</think>", "STOP"], "STOP", ["STOP", "</think>", ""], (12, 2), prompt=["<think>"]
    ),
    "nothing is held elsewhere": row([THINK], ["<think>", "ST", "OP"], "STOP", ["<think>", "ST", "OP", ""]),
    "held in the section": row([THINK], ["ST", "x"], "STOP", ["", "STx", ""]),
    "released by a marker": row([THINK], ["aST", "<think>", "OP"], "STOP", ["a", "ST<think>", "OP", ""]),
    "not across another section": row(
        [HIDDEN], ["ST", "<|think|>", "x", "<|/think|>", "OP"], "STOP", ["", "ST", "x", "", "OP", ""]
    ),
    "not across a section that is empty": row(
        [HIDDEN], ["ST", "<|think|>", "<|/think|>", "OP"], "STOP", ["", "ST", "", "OP", ""]
    ),
    "not in a marker": row([THINK], ["a", "<think>"], "think", ["a", "<think>", ""]),
    "not in a marker that is kept": row([CALL], ["<call>", "a"], "call", ["<call>", "a", ""], scope="call"),
    "not in a marker of letters": row([LETTERS], ["a", "<", "th", ">", "b"], "th", ["a", "", "", "<th>", "b", ""]),
    "in what is left of a marker's token": row([LETTERS], ["<th>xSTOP"], "STOP", ["<th>x"], (5, 0), scope="reasoning"),
    "held to the end, and released": row([LETTERS], ["a", "<t"], "STOP", ["a", "", "<t"]),
    "undecided, elsewhere": row([LETTERS], ["<th>", "a", "</", "x"], "STOP", ["<th>", "a", "</", "x", ""]),
    "across what was undecided": row([LETTERS], ["a<", "t", "x"], "<tx", ["a", "", ""], (1, 2)),
    "included, held nevertheless": row([LETTERS], ["a<", "t", "x"], "<tx", ["a", "", "<tx"], (4, 2), **INCLUDE),
    "included, nothing to hold": row([LETTERS], ["S", "T"], "ST", ["S", "T"], (2, 1), **INCLUDE),
    # It is the token that makes the stop certain which completes it: what has been reported stays.
    "decided later": row([LETTERS], ["a", "<", "x"], "<", ["a", "", ""], (1, 2)),
    "decided two tokens later": row([LETTERS], ["a", "<", "t", "x"], "<", ["a", "", "", ""], (1, 3)),
    "decided later, included": row([LETTERS], ["a", "<", "t", "x"], "<", ["a", "", "", "<"], (2, 3), **INCLUDE),
    "decided by a token that ends it too": row([LETTERS], ["a", "<", "x"], ["x", "<"], ["a", "", ""], (1, 2)),
    "decided by the end": row([LETTERS], ["a", "<t"], "<", ["a", "", ""], (1, 1)),
    "decided by the end, two tokens later": row([LETTERS], ["a", "<", "t"], "<", ["a", "", "", ""], (1, 2)),
    "decided against": row([LETTERS], ["a", "<", "th", ">"], "<", ["a", "", "", "<th>", ""]),
    "decided later, too early": row([LETTERS], ["<", "x", "<", "y"], "<", ["", "<x", "", ""], (2, 3), min_tokens=2),
    "a pattern decided later": row([PATTERN], ["a", "<|open|>", "th", "x"], "th", ["a", "", "", ""], (1, 3)),
    "a stop token behind what is undecided": row(
        [LETTERS], ["a", "<", "<|e|>"], "<", ["a", "", ""], (1, 2), stop_token_ids=["<|e|>"]
    ),
    "a stop token in another section": row(
        [HIDDEN], ["<|think|>", "a", "<|e|>"], "STOP", ["", "a", ""], (1, 2), stop_token_ids=["<|e|>"]
    ),
    "a stop token that has a stop": row(
        [LETTERS], ["a", "END"], "N", ["a", "END"], (4, 1), stop_token_ids=["END"], **INCLUDE
    ),
    "two tokens of bytes to buffer": row([THINK], ["ab", "cd"], "STOP", ["", "ab", "cd"], min_bytes_to_buffer=2),
}


def asked(side: str, each: Scoped, groups: list[list[int]]) -> dict[str, Any]:
    """What a request shows after each update, and what it says in the end."""
    ours = side == "reference"
    vocabulary: Any = each.vocabulary
    module: Any = reference_events if ours else detok
    kind: Any = (reference_sections if ours else detok).Marker
    ids = vocabulary.ids(each.options.get("stop_token_ids", []))
    options = each.options | {"stop": each.stop, "sections": [kind(**section) for section in each.sections]}
    source = vocabulary.reference if ours else vocabulary.tokenizer
    settings = (module.Options if ours else module.TextDecodeOptions)(**(options | {"stop_token_ids": ids}))
    decoder = module.RequestDecoder(source, vocabulary.ids(each.prompt), settings)
    shown: list[str] = []
    for update in [*(module.EngineUpdate(group) for group in groups), module.EngineUpdate(finish_reason="length")]:
        delta = decoder.push(update)[-1]
        shown.append(delta.decoded.text)
        if decoder.is_finished:
            break
    found = delta.finished.stop_match
    match = found and (found.byte_offset, found.token_index)
    kept = delta.finished.usage.output_token_count
    return {"shown": shown, "match": match, "kept": kept, "dropped": list(delta.finished.dropped_token_ids)}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ROWS)
def test_row(name, side):
    each = ROWS[name]
    ids = each.vocabulary.ids(each.tokens)
    got = asked(side, each, [[token_id] for token_id in ids])
    assert got["shown"] == each.shown
    assert got["match"] == each.match
    kept = len(ids) if each.match is None else each.match[1] + 1
    assert got["kept"] == kept
    assert got["dropped"] == ids[kept : len(each.shown)]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ROWS)
def test_row_in_any_grouping(name, side):
    each = ROWS[name]
    ids = each.vocabulary.ids(each.tokens)
    for groups in groupings(ids, name):
        got = asked(side, each, [list(group) for group in groups])
        assert "".join(got["shown"]) == "".join(each.shown)
        assert got["match"] == each.match
        assert got["kept"] == (len(ids) if each.match is None else each.match[1] + 1)


@pytest.mark.parametrize("intermediate", [True, False])
def test_a_token_that_left_before_it_was_known_to_end_is_cut(intermediate):
    """What may be a marker is held back, and the token before it is not; the end tells that it was none."""
    tokenizer = detok.Tokenizer.from_token_bytes([b"e", b"ab the"])
    options = detok.TextDecodeOptions(stop="the", sections=[detok.Marker("r", "e<", "e>")], stop_scope="content")
    vocabulary = reference.Vocabulary.from_token_bytes([b"e", b"ab the"])
    twin_options = reference_events.Options(
        stop="the", sections=[reference_sections.Marker("r", "e<", "e>")], stop_scope="content"
    )
    ours = reference_events.RequestDecoder(vocabulary, [], twin_options, intermediate=intermediate)
    theirs = detok.RequestDecoder(tokenizer, [], options, intermediate=intermediate)
    for module, decoder in ((reference_events, ours), (detok, theirs)):
        decoder.push(module.EngineUpdate([1]))
        finished = decoder.push(module.EngineUpdate(finish_reason="length"))[-1].finished
        match = finished.stop_match
        assert (match.byte_offset, match.token_index, match.cut, finished.first_cut_token) == (3, 0, True, 0)


BAD = {
    "no sections": ([], "content"),
    "no such section": ([THINK], "call"),
    "the markers": ([THINK], "markers"),
    "nothing": ([THINK], ""),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", BAD)
def test_scopes_that_are_none(name, side):
    sections, scope = BAD[name]
    ours = side == "reference"
    kind: Any = (reference_sections if ours else detok).Marker
    options: Any = reference_events.Options if ours else detok.TextDecodeOptions
    with pytest.raises(ValueError, match="stop_scope"):
        options(sections=[kind(**section) for section in sections], stop_scope=scope)


def test_options_say_their_sections():
    think = detok.Marker(**THINK)
    options = detok.TextDecodeOptions(stop="x", sections=[think], stop_scope="reasoning")
    assert (tuple(options.sections), options.stop_scope) == ((think,), "reasoning")
    assert options == detok.TextDecodeOptions(stop="x", sections=(think,), stop_scope="reasoning")
    assert options != detok.TextDecodeOptions(stop="x", sections=[think], stop_scope="content")
    assert (tuple(detok.TextDecodeOptions().sections), detok.TextDecodeOptions().stop_scope) == ((), None)


def test_sections_of_another_tokenizer():
    """Ids of patterns are looked up where options meet a tokenizer."""
    options = detok.TextDecodeOptions(stop="x", sections=[detok.Marker("r", UNMAPPED, "b")], stop_scope="r")
    tokenizer = Vocabulary([], ()).tokenizer
    with pytest.raises(detok.UnknownTokenError):
        detok.RequestDecoder(tokenizer, [], options).push(detok.EngineUpdate([0]))

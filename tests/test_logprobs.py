"""Logprobs: numbers as the engine gave them, and for every token its exact bytes and its text in left context."""

import copy
import math
import pickle
import re
from collections import OrderedDict
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace

import detok
import numpy as np
import pytest
import small_tokenizers as small
from conftest import load_tokenizer, read_jsonl
from detok import EngineUpdate, PositionLogprobs, RequestDecoder, TextDecodeOptions, TokenLogprob
from engine import Token, serve, updates, vocabulary
from helpers import CountingDecoder, groupings, lossy, ones
from small_tokenizers import Piece

HIDDEN, UNKNOWN = "<|hidden|>", None
E4, BD, A0 = b"\xe4", b"\xbd", b"\xa0"  # 你
FRAGMENTS = ("openai", "empty", "replacement")


def scored(ids, alternatives=()) -> list[dict[int, float]]:
    """A logprob for each id, and for the alternatives at every position."""
    return [{i: -1.0} | dict.fromkeys(alternatives, -2.0) for i in ids]


def texts_of(tokenizer, ids, options: TextDecodeOptions, prompt=()) -> list[str]:
    """The sampled tokens' texts: with or without numbers, and however ids are grouped into updates."""
    expect, end = None, EngineUpdate(finish_reason="length")
    for groups in groupings(ids, options):
        lines = [EngineUpdate(group, logprobs=scored(group)) for group in groups]
        outcome = serve(tokenizer, [*lines, end], options, prompt)
        got = [p.sampled.token for p in outcome.logprobs]
        for source in (lines, [EngineUpdate(group) for group in groups]):
            for intermediate in (True, False):
                how = {"intermediate": intermediate, "token_texts": True}
                assert serve(tokenizer, [*source, end], options, prompt, **how).token_texts == got
        assert [p.sampled.token_bytes for p in outcome.logprobs] == [tokenizer.token_bytes(i) or b"" for i in ids]
        assert expect is None or got == expect
        expect = got
    return expect


# ------------------------------------------------------------------ text in context

FF = "\ufffd"

# name: (prompt, tokens, options, texts by fragments: openai, empty, replacement)
TEXTS = {
    "whole tokens": ([], ["a", " b"], {}, ["a", " b"], ["a", " b"], ["a", " b"]),
    "one byte each": ([], [E4, BD, A0], {}, ["\\xe4", "\\xbd", "\\xa0"], ["", "", "你"], [FF] * 3),
    "two bytes and one": ([], [E4 + BD, A0], {}, ["\\xe4\\xbd", "\\xa0"], ["", "你"], [FF, FF]),
    "one byte and two": ([], [E4, BD + A0], {}, ["\\xe4", "\\xbd\\xa0"], ["", "你"], [FF, FF + FF]),
    "letters around": (
        [],
        [b"b" + E4, BD + A0 + b"c"],
        {},
        ["b\\xe4", "\\xbd\\xa0c"],
        ["b", "你c"],
        ["b" + FF, FF * 2 + "c"],
    ),
    "completes one, begins one": (
        [],
        [E4, BD + A0 + E4, BD + A0],
        {},
        ["\\xe4", "\\xbd\\xa0\\xe4", "\\xbd\\xa0"],
        ["", "你", "你"],
        [FF, FF * 3, FF * 2],
    ),
    "four bytes": (
        [],
        [b"\xf0\x9f", b"\x98", b"\x8a"],
        {},
        ["\\xf0\\x9f", "\\x98", "\\x8a"],
        ["", "", "😊"],
        [FF, FF, FF],
    ),
    "left broken": ([], [E4, "b"], {}, ["\\xe4", "b"], ["", "b"], [FF, "b"]),
    "left broken by a whole character": ([], [E4, "你"], {}, ["\\xe4", "你"], ["", "你"], [FF, "你"]),
    "broken twice": ([], [E4, E4, BD + A0], {}, ["\\xe4", "\\xe4", "\\xbd\\xa0"], ["", "", "你"], [FF, FF, FF * 2]),
    "no character at all": ([], [b"a\xffb"], {}, ["a\\xffb"], ["ab"], [f"a{FF}b"]),
    "too long a form": ([], [b"\xc0\xaf"], {}, ["\\xc0\\xaf"], [""], [FF * 2]),
    "half a pair": ([], [b"\xed\xa0\x80"], {}, ["\\xed\\xa0\\x80"], [""], [FF * 3]),
    "the character U+FFFD": ([], [FF, "a"], {}, [FF, "a"], [FF, "a"], [FF, "a"]),
    "a backslash": ([], ["\\xe4"], {}, ["\\xe4"], ["\\xe4"], ["\\xe4"]),
    "zero byte": ([], ["\0"], {}, ["\0"], ["\0"], ["\0"]),
    "an empty token": ([], ["a", "", "b"], {}, ["a", "", "b"], ["a", "", "b"], ["a", "", "b"]),
    "an empty token inside": ([], [E4, "", BD + A0], {}, ["\\xe4", "", "\\xbd\\xa0"], ["", "", "你"], [FF, "", FF * 2]),
    # A token that is hidden has a name all the same, and parts no character.
    "hidden": ([], ["ok", HIDDEN], {}, ["ok", HIDDEN], ["ok", HIDDEN], ["ok", HIDDEN]),
    "hidden, inside": (
        [],
        [E4, HIDDEN, BD + A0],
        {},
        ["\\xe4", HIDDEN, "\\xbd\\xa0"],
        ["", HIDDEN, "你"],
        [FF, HIDDEN, FF * 2],
    ),
    "shown, inside": (
        [],
        [E4, HIDDEN, BD + A0],
        {"skip_special_tokens": False},
        ["\\xe4", HIDDEN, "\\xbd\\xa0"],
        ["", HIDDEN, ""],
        [FF, HIDDEN, FF * 2],
    ),
    "kept, inside": (
        [],
        [E4, HIDDEN, BD + A0],
        {"keep_special_tokens": [HIDDEN]},
        ["\\xe4", HIDDEN, "\\xbd\\xa0"],
        ["", HIDDEN, ""],
        [FF, HIDDEN, FF * 2],
    ),
    "unknown, inside": (
        [],
        [E4, UNKNOWN, BD + A0],
        {"unknown_ids": "skip"},
        ["\\xe4", "", "\\xbd\\xa0"],
        ["", "", "你"],
        [FF, "", FF * 2],
    ),
    # The prompt is left context too.
    "half in the prompt": (["x", E4, BD], [A0, "b"], {}, ["\\xa0", "b"], ["你", "b"], [FF, "b"]),
    "half in the prompt, two more": ([E4], [BD, A0], {}, ["\\xbd", "\\xa0"], ["", "你"], [FF, FF]),
    "half in the prompt, broken": ([E4], ["b"], {}, ["b"], ["b"], ["b"]),
    "half in the prompt, hidden behind": ([E4, HIDDEN], [BD + A0], {}, ["\\xbd\\xa0"], ["你"], [FF * 2]),
    "whole prompt": (["x"], [A0], {}, ["\\xa0"], [""], [FF]),
    # A stop holds the text back, not the logprobs.
    "held back": ([], [" m", "y", E4], {"stop": " my cat"}, [" m", "y", "\\xe4"], [" m", "y", ""], [" m", "y", FF]),
    "buffered": (
        [],
        ["a", E4, BD + A0],
        {"min_bytes_to_buffer": 32},
        ["a", "\\xe4", "\\xbd\\xa0"],
        ["a", "", "你"],
        ["a", FF, FF * 2],
    ),
}


@pytest.mark.parametrize("fragments", FRAGMENTS)
@pytest.mark.parametrize("name", TEXTS)
def test_text_in_context(name, fragments):
    prompt, tokens, given, *by_fragments = TEXTS[name]
    tokenizer, ids = vocabulary(*prompt, *tokens)
    before, ids = ids[: len(prompt)], ids[len(prompt) :]
    expect = by_fragments[FRAGMENTS.index(fragments)]
    assert texts_of(tokenizer, ids, TextDecodeOptions(fragments=fragments, **given), before) == expect


def test_openai_is_the_default():
    tokenizer, ids = vocabulary(E4, BD, A0)
    assert texts_of(tokenizer, ids, TextDecodeOptions()) == ["\\xe4", "\\xbd", "\\xa0"]


FAMILIES = {
    # The first blank is stripped where it is the first, and where the token says so it is its own.
    "llama": (
        small.spm_json(
            [Piece("▁Hi"), Piece("▁you")], small.sequence(small.REPLACE, small.BYTE_FALLBACK, small.FUSE, small.STRIP)
        ),
        ["▁Hi", "▁you", "▁Hi", "<0xE4>", "<0xBD>", "<0xA0>", "▁"],
        {
            "openai": ["Hi", " you", " Hi", "\\xe4", "\\xbd", "\\xa0", " "],
            "empty": ["Hi", " you", " Hi", "", "", "你", " "],
            "replacement": ["Hi", " you", " Hi", FF, FF, FF, " "],
        },
        " Hi",
    ),
    # So is one that bytes spell, if it is made a blank before.
    "a mark in bytes": (
        small.spm_json([Piece("▁Hi")], small.sequence(small.BYTE_FALLBACK, small.FUSE, small.REPLACE, small.STRIP)),
        ["<0xE2>", "<0x96>", "<0x81>", "▁Hi", "<0xE2>", "<0x96>", "<0x81>"],
        {
            "openai": ["\\xe2", "\\x96", "", " Hi", "\\xe2", "\\x96", "\\x81"],
            "empty": ["", "", "", " Hi", "", "", " "],
            "replacement": [FF, FF, "", " Hi", FF, FF, FF],
        },
        None,
    ),
    "metaspace": (
        small.unigram_json([Piece("▁Hi"), Piece("you")], small.METASPACE),
        ["▁Hi", "▁Hi", "you"],
        ["Hi", " Hi", "you"],
        " Hi",
    ),
    # A blank between tokens belongs to the later one.
    "wordpiece": (
        small.wordpiece_json([Piece("play"), Piece("##ing"), Piece("foo")]),
        ["play", "##ing", "foo", "##ing"],
        ["play", "ing", " foo", "ing"],
        " play",
    ),
    "bpe_suffix": (
        small.plain_json([Piece("lo"), Piece("w</w>"), Piece("er</w>")], small.BPE_SUFFIX),
        ["lo", "w</w>", "lo", "er</w>", "lo"],
        ["lo", "w", " lo", "er", " lo"],
        None,
    ),
    "plain": (
        small.plain_json([Piece("a"), Piece("b")]),
        ["a", "b", "a"],
        ["a", " b", " a"],
        " a",
    ),
}


@pytest.mark.parametrize("fragments", FRAGMENTS)
@pytest.mark.parametrize("name", FAMILIES)
def test_families(name, fragments):
    data, pieces, expect, after_prompt = FAMILIES[name]
    tokenizer = detok.Tokenizer.from_json(data)
    ids = [tokenizer.token_to_id(piece) for piece in pieces]
    options = TextDecodeOptions(fragments=fragments)
    # Where no token is a part of a character, the option makes no difference.
    expect = expect[fragments] if isinstance(expect, dict) else expect
    assert texts_of(tokenizer, ids, options) == expect
    if fragments == "empty":
        assert "".join(expect) == tokenizer.decode(ids)
    if after_prompt is not None:
        assert texts_of(tokenizer, ids[:1], options, ids)[0] == after_prompt


def test_a_hidden_token_does_not_begin_the_text():
    """The blank is stripped behind it, as it is in the text."""
    decoder = small.sequence(small.REPLACE, small.BYTE_FALLBACK, small.FUSE, small.STRIP)
    tokenizer = detok.Tokenizer.from_json(small.spm_json([Piece("▁Hi"), Piece("<s>", "special")], decoder))
    ids = [tokenizer.token_to_id(piece) for piece in ("<s>", "▁Hi")]
    assert texts_of(tokenizer, ids, TextDecodeOptions()) == ["<s>", "Hi"]
    assert texts_of(tokenizer, ids, TextDecodeOptions(skip_special_tokens=False)) == ["<s>", " Hi"]


SMOLLM2 = read_jsonl("smollm2_streams.jsonl")


@pytest.mark.parametrize("row", SMOLLM2, ids=lambda row: row["id"])
def test_recorded_streams(row):
    """Bytes join to the stream's bytes; texts join to its text, or spell its bytes, by `fragments`."""
    tokenizer, ids = load_tokenizer("smollm2"), row["ids"]
    data = bytes.fromhex(row["bytes_hex"])
    lines = [EngineUpdate([i], logprobs=[{i: -1.0}]) for i in ids] + [EngineUpdate(finish_reason="length")]

    def tokens(fragments: str) -> list[TokenLogprob]:
        options = TextDecodeOptions(fragments=fragments, skip_special_tokens=False)
        return [p.sampled for p in serve(tokenizer, lines, options, row["prompt_ids"]).logprobs]

    spelled = tokens("openai")
    assert b"".join(t.token_bytes for t in spelled) == data
    for token in spelled:
        if "\\x" not in token.token:
            assert token.token.encode() == token.token_bytes
        else:
            raw = re.sub(r"\\x([0-9a-f]{2})", lambda m: chr(0xDC00 + int(m[1], 16)), token.token)
            assert raw.encode("utf-8", "surrogateescape") == token.token_bytes
    assert [t.token for t in tokens("replacement")] == [lossy(t.token_bytes) for t in spelled]
    joined = "".join(t.token for t in tokens("empty"))
    assert joined == data.decode(errors="ignore")
    for fragments in FRAGMENTS:
        options = TextDecodeOptions(fragments=fragments, skip_special_tokens=False)
        outcome = serve(tokenizer, updates(ones(ids)), options, row["prompt_ids"], token_texts=True)
        assert outcome.token_texts == [t.token for t in tokens(fragments)]


# ------------------------------------------------------------------ alternatives and prompts


def test_alternatives_are_read_as_if_sampled():
    """Each in the context of that position, in the engine's order."""
    tokenizer, (e4, bd, a0, b, end) = vocabulary(E4, BD, A0, "b", HIDDEN)
    others = [b, a0, 10**6, end, e4]
    lines = [
        EngineUpdate([e4], logprobs=scored([e4], others)),
        EngineUpdate([bd, a0], logprobs=scored([bd, a0], others)),
        EngineUpdate(finish_reason="length"),
    ]
    # The sampled one is among them, where it was reported.
    order = [[e4, b, a0, 10**6, end], [bd, b, a0, 10**6, end, e4], [a0, b, 10**6, end, e4]]
    expect = {
        "openai": [
            ["\\xe4", "b", "\\xa0", "", HIDDEN],
            ["\\xbd", "b", "\\xa0", "", HIDDEN, "\\xe4"],
            ["\\xa0", "b", "", HIDDEN, "\\xe4"],
        ],
        "empty": [["", "b", "", "", HIDDEN], ["", "b", "", "", HIDDEN, ""], ["你", "b", "", HIDDEN, ""]],
        "replacement": [[FF, "b", FF, "", HIDDEN], [FF, "b", FF, "", HIDDEN, FF], [FF, "b", "", HIDDEN, FF]],
    }
    for fragments in FRAGMENTS:
        positions = serve(tokenizer, lines, TextDecodeOptions(fragments=fragments)).logprobs
        assert [[t.token_id for t in p.top] for p in positions] == order
        assert [[t.token for t in p.top] for p in positions] == expect[fragments]
        for position in positions:
            assert position.sampled == position.top[0]
            assert [t.token_bytes for t in position.top] == [
                tokenizer.token_bytes(t.token_id) or b"" for t in position.top
            ]


def test_alternatives_at_the_start_of_text():
    decoder = small.sequence(small.REPLACE, small.BYTE_FALLBACK, small.FUSE, small.STRIP)
    tokenizer = detok.Tokenizer.from_json(small.spm_json([Piece("▁Hi"), Piece("▁you")], decoder))
    hi, you = (tokenizer.token_to_id(piece) for piece in ("▁Hi", "▁you"))
    lines = [EngineUpdate([hi, hi], logprobs=scored([hi, hi], [you]), finish_reason="length")]
    first, second = serve(tokenizer, lines).logprobs
    assert [(t.token, t.token_bytes) for t in first.top] == [("Hi", b" Hi"), ("you", b" you")]
    assert [(t.token, t.token_bytes) for t in second.top] == [(" Hi", b" Hi"), (" you", b" you")]


# name: (prompt, texts of each position but the first)
PROMPTS = {
    "openai": ["\\xbd", "\\xa0", HIDDEN, "\\xe4", "", "\\xbd\\xa0b"],
    "empty": ["", "你", HIDDEN, "", "", "你b"],
    "replacement": [FF, FF, HIDDEN, FF, "", FF * 2 + "b"],
}


@pytest.mark.parametrize("where", ["decoder", "update", "both"])
@pytest.mark.parametrize("fragments", FRAGMENTS)
def test_prompt_logprobs(fragments, where):
    """Each id in the context of the prompt before it; the first has none."""
    tokenizer, ids = vocabulary(E4, BD, A0, HIDDEN, E4, UNKNOWN, BD + A0 + b"b", "x")
    *prompt, x = ids
    given = [None, *scored(prompt[1:], [x])]
    decoder = RequestDecoder(tokenizer, None if where == "update" else prompt, TextDecodeOptions(fragments=fragments))
    update = EngineUpdate([x], prompt_token_ids=None if where == "decoder" else prompt, prompt_logprobs=given)
    start, delta = decoder.push(update)
    first, *rest = start.prompt_logprobs
    assert first is None
    assert [p.sampled.token for p in rest] == PROMPTS[fragments]
    assert [[t.token_id for t in p.top] for p in rest] == [[i, x] for i in prompt[1:]]
    assert [p.top[1].token for p in rest] == ["x"] * len(rest)
    assert delta.sampled.logprobs is None


def test_prompt_logprobs_of_the_first_and_of_none():
    """A position may have one or not; a first position that has is the start of text."""
    decoder = small.sequence(small.REPLACE, small.BYTE_FALLBACK, small.FUSE, small.STRIP)
    tokenizer = detok.Tokenizer.from_json(small.spm_json([Piece("▁Hi")], decoder))
    hi = tokenizer.token_to_id("▁Hi")
    start, _ = RequestDecoder(tokenizer, [hi] * 3).push(EngineUpdate(prompt_logprobs=[{hi: -1.0}, None, {hi: -1.0}]))
    assert [p and p.sampled.token for p in start.prompt_logprobs] == ["Hi", None, " Hi"]
    start, _ = RequestDecoder(tokenizer, []).push(EngineUpdate(prompt_logprobs=[]))
    assert list(start.prompt_logprobs) == []


def test_prompt_logprobs_of_numbers():
    """Whose they are is known when the prompt is."""
    tokenizer, ids = vocabulary("a", E4, BD)
    update = EngineUpdate(prompt_logprobs=[None, -0.5, -1.5])
    assert update.prompt_logprobs == [None, -0.5, -1.5]
    assert pickle.loads(pickle.dumps(update)) == update
    start, _ = RequestDecoder(tokenizer, ids).push(update)
    entries = [(p.sampled.token_id, p.sampled.logprob, p.sampled.token) for p in start.prompt_logprobs[1:]]
    assert entries == [(ids[1], -0.5, "\\xe4"), (ids[2], -1.5, "\\xbd")]


def test_prompt_logprobs_of_another_length():
    tokenizer, (a,) = vocabulary("a")
    decoder = RequestDecoder(tokenizer, [a, a])
    for given in ([], [None], [None] * 3):
        with pytest.raises(ValueError, match="2"):
            decoder.push(EngineUpdate([a], prompt_logprobs=given))
        with pytest.raises(ValueError, match="2"):
            decoder.push(EngineUpdate([a], prompt_token_ids=[a, a], prompt_logprobs=given))
    # Nothing has changed.
    start, _ = decoder.push(EngineUpdate([a], prompt_logprobs=[None, {a: -1.0}]))
    assert [p and p.sampled.token for p in start.prompt_logprobs] == [None, "a"]
    with pytest.raises(ValueError, match="prompt_logprobs"):
        RequestDecoder(tokenizer, [a, a]).push(EngineUpdate([a], prompt_logprobs=[None, {7: -1.0}]))


# ------------------------------------------------------------------ forms


@dataclass
class Reported:
    """As vLLM reports one."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = "not read"


A, B = TokenLogprob(1, -0.5, 3), TokenLogprob(2, -1.5, 1)

# name: (entry for the sampled id 1, sampled, top)
FORMS = {
    "a number": (-0.5, TokenLogprob(1, -0.5), []),
    "a number of numpy": (np.float32(-0.5), TokenLogprob(1, -0.5), []),
    "a whole number": (0, TokenLogprob(1, 0.0), []),
    "an array without dimensions": (np.array(-0.5), TokenLogprob(1, -0.5), []),
    "a number that is none": (-math.inf, TokenLogprob(1, -math.inf), []),
    "one": (A, A, []),
    "a list of one": ([A], A, []),
    "a list": ([A, B], A, [B]),
    "a tuple": ((A, B, A), A, [B, A]),
    "numbers by id": ({2: -1.5, 1: -0.5}, TokenLogprob(1, -0.5), [TokenLogprob(2, -1.5), TokenLogprob(1, -0.5)]),
    "the sampled one last": ({2: -1.5, 3: -2.5, 1: -9.0}, TokenLogprob(1, -9.0), [(2, -1.5), (3, -2.5), (1, -9.0)]),
    "objects by id": ({1: Reported(-0.5, 3), 2: Reported(-1.5, 1)}, A, [A, B]),
    "objects without a rank": ({1: SimpleNamespace(logprob=-0.5)}, TokenLogprob(1, -0.5), [TokenLogprob(1, -0.5)]),
    "objects of rank None": ({1: Reported(-0.5)}, TokenLogprob(1, -0.5), [TokenLogprob(1, -0.5)]),
    "another mapping": (MappingProxyType({1: -0.5}), TokenLogprob(1, -0.5), [TokenLogprob(1, -0.5)]),
    "an ordered one": (OrderedDict([(2, -1.5), (1, -0.5)]), TokenLogprob(1, -0.5), [(2, -1.5), (1, -0.5)]),
    "whole numbers": ({1: 0}, TokenLogprob(1, 0.0), [TokenLogprob(1, 0.0)]),
    "numbers of numpy": ({np.int64(1): np.float32(-0.5)}, TokenLogprob(1, -0.5), [TokenLogprob(1, -0.5)]),
    "a TokenLogprob by id": ({1: A, 2: B}, A, [A, B]),
}


def bare(given: TokenLogprob | tuple) -> tuple:
    """What an engine says of a token."""
    return (given.token_id, given.logprob, given.rank) if isinstance(given, TokenLogprob) else (*given, None)


@pytest.mark.parametrize("name", FORMS)
def test_forms(name):
    entry, sampled, top = FORMS[name]
    update = EngineUpdate([1], logprobs=[entry], prompt_token_ids=[1], prompt_logprobs=[entry])
    tokenizer, _ = vocabulary("x", "a", "b", "c")
    start, delta = RequestDecoder(tokenizer).push(update)
    for (position,) in (update.logprobs, update.prompt_logprobs, delta.sampled.logprobs, start.prompt_logprobs):
        assert isinstance(position, PositionLogprobs)
        assert bare(position.sampled) == bare(sampled)
        assert [bare(t) for t in position.top] == [bare(t) for t in top]
    # Filled by the decoder, not by the update.
    assert (update.logprobs[0].sampled.token, update.logprobs[0].sampled.token_bytes) == ("", b"")
    for position in (delta.sampled.logprobs[0], start.prompt_logprobs[0]):
        assert [t.token for t in [position.sampled, *position.top]] == ["xabc"[bare(t)[0]] for t in [sampled, *top]]


BAD_FORMS = {
    "an empty list": ([], ValueError),
    "an empty mapping": ({}, ValueError),
    "another token": (TokenLogprob(2, -1.0), ValueError),
    "another token first": ([TokenLogprob(2, -1.0), A], ValueError),
    "a mapping without it": ({2: -1.0}, ValueError),
    "None": (None, TypeError),
    "a bool": (True, TypeError),
    "a bool of numpy": (np.True_, TypeError),
    "a number beyond floats": (10**400, OverflowError),
    "an array of text": (np.array("a"), (TypeError, ValueError)),
    "text": ("-0.5", TypeError),
    "numbers in a list": ([-0.5], TypeError),
    "text by id": ({1: "-0.5"}, TypeError),
    "None by id": ({1: None}, TypeError),
    "objects without a number": ({1: SimpleNamespace(rank=1)}, (TypeError, AttributeError)),
    "names for ids": ({"a": -0.5}, TypeError),
    "a bool for an id": ({True: -0.5}, TypeError),
    "a negative id": ({1: -0.5, -1: -0.5}, detok.UnknownTokenError),
    "an id of 33 bits": ({1: -0.5, 2**32: -0.5}, detok.UnknownTokenError),
    "a rank of text": ({1: Reported(-0.5, "1")}, TypeError),
}


@pytest.mark.parametrize("name", BAD_FORMS)
def test_forms_that_are_none(name):
    entry, error = BAD_FORMS[name]
    with pytest.raises(error):
        EngineUpdate([1], logprobs=[entry])
    if entry is not None:
        with pytest.raises(error):
            EngineUpdate(prompt_token_ids=[1], prompt_logprobs=[entry])


@pytest.mark.parametrize("given", [{1: -0.5}, {1}, b"\x01", "1", iter([-0.5]), MappingProxyType({1: -0.5})], ids=repr)
def test_what_is_no_sequence_of_entries(given):
    """Least of all a mapping in the place of a list with one: its keys would be numbers."""
    with pytest.raises(TypeError):
        EngineUpdate([1], logprobs=given)
    with pytest.raises(TypeError):
        EngineUpdate(prompt_token_ids=[1], prompt_logprobs=given)


def test_a_number_that_raises():
    class Raises:
        def __float__(self):
            raise RuntimeError("its own")

    with pytest.raises(RuntimeError, match="its own"):
        EngineUpdate([1], logprobs=[Raises()])


@pytest.mark.parametrize("array", [np.array([-0.5, -1.5]), (-0.5, -1.5)], ids=["array", "tuple"])
def test_numbers_in_an_array(array):
    update = EngineUpdate([1, 2], logprobs=array)
    assert [(p.sampled.token_id, p.sampled.logprob) for p in update.logprobs] == [(1, -0.5), (2, -1.5)]


def test_a_decoder_does_not_write_into_what_it_gets():
    tokenizer, (a,) = vocabulary("a")
    given = TokenLogprob(a, -1.0, token="a lie", token_bytes=b"a lie")
    update = EngineUpdate([a], logprobs=[given])
    for _ in range(2):
        _, delta = RequestDecoder(tokenizer, []).push(update)
        assert delta.sampled.logprobs == [PositionLogprobs(TokenLogprob(a, -1.0, token="a", token_bytes=b"a"))]
    assert (given.token, given.token_bytes) == ("a lie", b"a lie")


# ------------------------------------------------------------------ numbers

NUMBERS = [-0.0, 0.0, -0.1, -1e-300, -9999.0, -12345.678, 1.0, -math.inf, math.inf, math.nan, float(np.float32(-0.1))]


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_stay_as_they_are(number):
    """No floor, no rounding to 32 bits: floors are for those who write JSON."""
    tokenizer, (a, b) = vocabulary("a", "b")
    forms = [TokenLogprob(a, number), [TokenLogprob(a, number)], {a: number, b: -1.0}, {a: Reported(number)}]
    for form in forms:
        (position,) = serve(tokenizer, [EngineUpdate([a], logprobs=[form], finish_reason="length")]).logprobs
        for got in [position.sampled, *(t for t in position.top if t.token_id == a)]:
            assert repr(got.logprob) == repr(number)
    value = TokenLogprob(a, number, 2**31)
    for twin in (
        pickle.loads(pickle.dumps(value)),
        copy.copy(value),
        copy.deepcopy(value),
        TokenLogprob(a, number, 2**31),
    ):
        assert twin == value
        assert hash(twin) == hash(value)
        assert (repr(twin.logprob), twin.rank) == (repr(number), 2**31)


def test_numbers_and_equality():
    """NaN equals NaN, so that events compare; the number is no part of the hash."""
    nan = TokenLogprob(1, math.nan)
    assert nan == TokenLogprob(1, -math.nan)
    assert nan != TokenLogprob(1, 0.0)
    assert PositionLogprobs(nan, [nan]) == PositionLogprobs(TokenLogprob(1, math.nan), [nan])
    assert TokenLogprob(1, 0.0) == TokenLogprob(1, -0.0)
    assert hash(nan) == hash(TokenLogprob(1, 0.0)) == hash(TokenLogprob(1, -math.inf))
    assert EngineUpdate([1], logprobs=[nan]) == EngineUpdate([1], logprobs=[TokenLogprob(1, math.nan)])


# ------------------------------------------------------------------ lengths


# name: (tokens, options, finish of the last update, ids kept)
LENGTHS = {
    "a stop": (["a", "ST", "OP", "b", "c"], {"stop": "STOP"}, None, 3),
    "a stop in one update's middle": (["a", "STOP", "b"], {"stop": "STOP"}, "length", 2),
    "a stop id": (["a", HIDDEN, "b"], {"stop_token_ids": [1]}, None, 2),
    "a stop id, included": (["a", HIDDEN, "b"], {"stop_token_ids": [1], "include_stop_str_in_output": True}, None, 2),
    "the engine's token": (["a", "b"], {}, "stop", 2),
    "no stop": (["a", E4, HIDDEN], {}, "length", 3),
    "no stop, held": (["a", "ST"], {"stop": "STOP"}, "length", 2),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_one_for_every_id_that_is_kept(name):
    """Ids, logprobs and usage are of one length in every event; what is behind a stop is in none."""
    tokens, given, finish, kept = LENGTHS[name]
    tokenizer, ids = vocabulary(*tokens)
    for groups in groupings(ids, name):
        groups = [group for group in groups if group]
        lines = [
            EngineUpdate(group, logprobs=scored(group, [0]), finish_reason=finish if n == len(groups) else None)
            for n, group in enumerate(groups, 1)
        ]
        for intermediate in (True, False):
            # `collect` has compared the lists of each event.
            outcome = serve(tokenizer, lines, TextDecodeOptions(**given), intermediate=intermediate)
            assert outcome.sampled == ids[:kept]
            assert [p.sampled.token_id for p in outcome.logprobs] == ids[:kept]
            assert outcome.finished.usage.output_token_count == kept


def test_off_and_empty():
    """None is off. An update without ids may have an empty list."""
    tokenizer, (a,) = vocabulary("a")
    decoder = RequestDecoder(tokenizer, [])
    assert decoder.push(EngineUpdate([a]))[-1].sampled.logprobs is None
    assert decoder.push(EngineUpdate([], logprobs=[]))[-1].sampled.logprobs == []
    assert decoder.push(EngineUpdate([], finish_reason="length"))[-1].sampled.logprobs is None


@pytest.mark.parametrize("given", [(True, False, True), (False, True, True), (True, True, False), (False, False, True)])
def test_an_engine_that_gives_some(given):
    """Lists of one clock are aligned or not there: with everything in one delta, too."""
    tokenizer, (a,) = vocabulary("a")
    lines = [EngineUpdate([a], logprobs=scored([a]) if scores else None) for scores in given]
    for intermediate in (True, False):
        decoder = RequestDecoder(tokenizer, [], intermediate=intermediate)
        events = [event for line in lines for event in decoder.push(line)]
        events += decoder.push(EngineUpdate(finish_reason="length"))
        for delta in events[1:]:
            assert delta.sampled.logprobs is None or len(delta.sampled.logprobs) == len(delta.sampled.token_ids)
            assert pickle.loads(pickle.dumps(delta)) == delta


# ------------------------------------------------------------------ offsets

# name: (tokens, options, offsets in characters). Offsets come from anchors: what a token is called plays no part.
OFFSETS = {
    "plain": (["Hello", " my", " dog"], {}, [0, 5, 8]),
    "held back": (["Hello", " my", " dog"], {"stop": " my dogs"}, [0, 5, 8]),
    "buffered": (["Hello", " my", " dog"], {"min_bytes_to_buffer": 7}, [0, 5, 8]),
    "fragments": ([E4, BD, A0, "你", "b"], {}, [0, 0, 0, 1, 2]),
    "fragments held back": (["S", E4, BD, A0, "b"], {"stop": "S你x"}, [0, 1, 1, 1, 2]),
    "left broken": ([E4, "a", b"\xff", "b"], {}, [0, 1, 2, 3]),
    "hidden": (["a", HIDDEN, "b"], {}, [0, 1, 1]),
    "cut": (["ab", "S", "TOP"], {"stop": "STOP"}, [0, 2, 2]),
    "cut inside": (["abS", "TOP"], {"stop": "STOP"}, [0, 2]),
}


@pytest.mark.parametrize("fragments", FRAGMENTS)
@pytest.mark.parametrize("name", OFFSETS)
def test_offsets_come_from_anchors(name, fragments):
    """A builder queues logprobs by token index until the record of that index is there."""
    tokens, given, expect = OFFSETS[name]
    tokenizer, ids = vocabulary(*tokens)
    decoder = RequestDecoder(tokenizer, [], TextDecodeOptions(fragments=fragments, **given))
    queue, rows, shown = [], [], 0
    for update in [*(EngineUpdate([i], logprobs=scored([i])) for i in ids), EngineUpdate(finish_reason="length")]:
        delta = decoder.push(update)[-1]
        queue += delta.sampled.logprobs or []
        for record, offset in zip(delta.decoded.attributions, delta.decoded.offsets(unit="codepoint"), strict=True):
            logprob = queue.pop(0).sampled
            assert logprob.token_id == record.token_id
            rows.append((logprob.token, shown + offset))
        shown += len(delta.decoded.text)
        if decoder.is_finished:
            break
    assert queue == []
    assert [offset for _, offset in rows] == expect
    assert len(rows) == len(ids)


def test_sums_of_names_would_drift():
    """Why: what a fragment is called is longer than its text."""
    tokenizer, ids = vocabulary(E4, BD, A0, "b")
    for fragments, drift in [("openai", 12), ("replacement", 3)]:
        names = texts_of(tokenizer, ids, TextDecodeOptions(fragments=fragments))
        assert sum(map(len, names[:3])) == drift
    assert tokenizer.decode_attributed(ids).offsets()[3] == 1


# ------------------------------------------------------------------ the window


def test_an_object_that_decodes():
    """decode(window and the id) less what is known: a text that ends in U+FFFD is no text yet."""
    tokens: list[Token] = ["a", E4 + BD, A0, "b", HIDDEN]
    mirror = [t if isinstance(t, bytes) else t.encode() for t in tokens]
    tokenizer = detok.Tokenizer.load(CountingDecoder(mirror, frozenset([4])))
    expect = {"openai": ["a", FF, "你", "b"], "empty": ["a", "", "你", "b"], "replacement": ["a", FF, "你", "b"]}
    for fragments in FRAGMENTS:
        options = TextDecodeOptions(fragments=fragments)
        for groups in groupings([0, 1, 2, 3], fragments):
            lines = [EngineUpdate(group, logprobs=scored(group, [3])) for group in groups]
            outcome = serve(tokenizer, [*lines, EngineUpdate(finish_reason="length")], options)
            assert outcome.text == "a你b"
            assert [p.sampled.token for p in outcome.logprobs] == expect[fragments]
        # After half a character of the prompt.
        lines = [EngineUpdate([2], logprobs=scored([2]), finish_reason="length")]
        assert serve(tokenizer, lines, options, [0, 1]).logprobs[0].sampled.token == "你"


def test_logprobs_do_not_change_the_text():
    """Asked for or not, text, records and stops are the same; so with texts of tokens."""
    tokenizer, ids = vocabulary("a", E4, BD, A0, HIDDEN, "ST", "OP", "b")
    options = TextDecodeOptions(stop="STOP")
    plain = serve(tokenizer, updates(ones(ids)), options)
    lines = [EngineUpdate([i], logprobs=scored([i], ids)) for i in ids]
    with_numbers = serve(tokenizer, lines, options)
    with_texts = serve(tokenizer, updates(ones(ids)), options, token_texts=True)
    assert with_texts.token_texts == ["a", "\\xe4", "\\xbd", "\\xa0", HIDDEN, "ST", "OP"]
    for other in (with_numbers, with_texts):
        assert (other.shown, other.joined, other.finished) == (plain.shown, plain.joined, plain.finished)
    assert (plain.token_texts, with_numbers.token_texts) == (None, None)


def test_token_texts_of_an_object_that_decodes():
    tokenizer = detok.Tokenizer.load(CountingDecoder([b"a", E4 + BD, A0, b"b"], frozenset()))
    assert texts_of(tokenizer, [0, 1, 2, 3], TextDecodeOptions()) == ["a", FF, "你", "b"]


def test_strings_of_tokens_are_shared():
    """What a token is called is the same in every stream, and made once."""
    tokenizer, (a, part) = vocabulary("one", E4)
    one, two = (RequestDecoder(tokenizer, [], token_texts=True) for _ in range(2))
    for decoder in (one, two):
        decoder.push(EngineUpdate())
    (first,), (second,) = one.push(EngineUpdate([a])), two.push(EngineUpdate([a]))
    assert first.text is second.text is first.token_texts[0]
    (first,), (second,) = one.push(EngineUpdate([part])), two.push(EngineUpdate([part]))
    assert first.token_texts[0] is second.token_texts[0]
    assert first.token_texts == ("\\xe4",)

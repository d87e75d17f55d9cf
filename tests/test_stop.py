"""Stop strings and stop ids: text that is held, where it is cut, which token is blamed.

A row is a list of tokens, the stops, and what is shown after each token, empty strings included. Without a stop the
last string is what the end of the request gives; with one the list ends at the token that completed it.
"""

import itertools
import random
from typing import Any, NamedTuple

import detok
import pytest
from engine import Outcome, Token, marks, places, serve, updates, vocabulary
from helpers import groupings, ones
from hypothesis import given
from hypothesis import strategies as st

HIDDEN = "<|hidden|>"
UNKNOWN = None
HALF, REST = b"\xe4\xb8", b"\x96"  # of 世


class Row(NamedTuple):
    tokens: list[Token]
    stop: str | list[str] | None
    shown: list[str]
    match: str | None
    options: dict[str, Any]


def row(tokens: list[Token], stop: Any, shown: list[str], match: str | None = None, **options: Any) -> Row:
    return Row(tokens, stop, shown, match, options)


INCLUDE = {"include_stop_str_in_output": True}

# What servers agree on.
COMMON = {
    "e": row([*"hello"], "e", ["h", ""], "e"),
    "e, whole": row(["hello"], "e", ["h"], "e"),
    "at the end": row([*"abcxyz"], "xyz", ["a", "b", "c", "", "", ""], "xyz"),
    "at the end, whole": row(["abcxyz"], "xyz", ["abc"], "xyz"),
    "at the start": row([*"xhello"], "x", [""], "x"),
    "none": row([*"hello"], "z", [*"hello", ""]),
    "two of one length": row([*"hello"], ["ll", "lo"], ["h", "e", "", ""], "ll"),
    "inside a word": row(["say", " hel", "lo", " world"], "lo", ["say", " he", "l"], "lo"),
    "inside a word, by letters": row([*"say hello world"], "lo", [*"say he", "", "l", ""], "lo"),
    "included": row([*"hello"], "ll", [*"hell"], "ll", **INCLUDE),
    "included, whole": row(["hello"], "ll", ["hell"], "ll", **INCLUDE),
    "too early": row([*"hello"], "e", [*"hello", ""], min_tokens=3),
    "not before the third": row([*"greet"], "e", ["g", "r", ""], "e", min_tokens=2),
    "min_tokens of none": row([*"hello"], "e", ["h", ""], "e", min_tokens=0),
    "no list": row([*"hello"], None, [*"hello", ""]),
    "empty list": row([*"hello"], [], [*"hello", ""]),
}

# The one that completes first; of those that complete together the first of the list.
WHICH = {
    "is completes first": row([" The", " user is a"], ["a", "is"], [" The", " user "], "is"),
    "is completes first, reversed": row([" The", " user is a"], ["is", "a"], [" The", " user "], "is"),
    "is, all at once": row([" The user is a"], ["a", "is"], [" The user "], "is"),
    "tie, the longer first": row(["ab"], ["ab", "b"], [""], "ab"),
    "tie, the shorter first": row(["ab"], ["b", "ab"], ["a"], "b"),
    "tie by letters, the longer first": row([*"ab"], ["ab", "b"], ["", ""], "ab"),
    "tie by letters, the shorter first": row([*"ab"], ["b", "ab"], ["", "a"], "b"),
    "starts later, completes earlier": row(["abc"], ["abc", "b"], ["a"], "b"),
    "starts later, by letters": row([*"abc"], ["abc", "b"], ["", "a"], "b"),
    "inside one that is under way": row([*"abcd"], ["abcd", "bc"], ["", "", "a"], "bc"),
    "behind one that failed": row([*"abcx"], ["abcd", "cx"], ["", "", "", "ab"], "cx"),
    "the same twice": row([*"abc"], ["b", "b"], ["a", ""], "b"),
    "the earlier of two in one token": row(["a END b STOP c"], ["STOP", "END"], ["a "], "END"),
    "a longer one never completes": row(
        [">>>> ", "MER", "GED", "\n"], [">>>> MERGED\n", ">>>> MERGED"], ["", "", ""], ">>>> MERGED"
    ),
}

# Matches end in the bytes that are new; `min_tokens` makes earlier text old.
WINDOW = {
    "one new byte": row(["say wo", "r"], "wor", ["say ", ""], "wor"),
    "the whole stop is new": row(["say ", "wor"], "wor", ["say ", ""], "wor"),
    "not there": row(["say wo", "r"], "xyz", ["say wo", "r", ""]),
    "another before the window": row(["say wo", "r"], ["wor", "say"], ["say ", ""], "wor", min_tokens=1),
    "the second of the list": row(["say wo", "r"], ["xyz", "wor"], ["say ", ""], "wor"),
    "everything is new": row(["say wor"], "say", [""], "say"),
    "ended before the new byte": row(["say wo", "r"], "say", ["say wo", "r", ""], min_tokens=1),
    "all of the text": row(["abc"], "abc", [""], "abc"),
    "the last character": row(["hello", "!"], "!", ["hello", ""], "!"),
    "the first of two newlines": row(["Answer", "\n\n"], "\n", ["Answer", ""], "\n"),
    "wide characters": row(["你好世", "界"], "世界", ["你好", ""], "世界"),
}

# What is held is the longest end that may become a stop, and nothing else.
HELD = {
    "released when it fails": row(["ST", "OX", "!"], "STOP", ["", "STOX", "!", ""]),
    "only what may still match": row(["aSTST", "x"], "STOP", ["aST", "STx", ""]),
    "released at the end": row(["a", "ST"], "STOP", ["a", "", "ST"]),
    "the longest of two": row([*"abcq"], ["abX", "bcde"], ["", "", "a", "bcq", ""]),
    "the shorter goes on": row(["ab", "c", "de"], ["abX", "bcde"], ["", "a", ""], "bcde"),
    "one character is never held": row(["a", "b"], ["x", "y"], ["a", "b", ""]),
    "repeats itself": row([*"aaab"], "aab", ["", "", "a", ""], "aab"),
    "repeats itself, all the same": row([*"aaaaa"], "aaab", ["", "", "", "a", "a", "aaa"]),
    "nothing if it is included": row(["ST", "OX", "!"], "STOP", ["ST", "OX", "!", ""], **INCLUDE),
    "one accent, another letter": row(["ñ", "y"], "ñz", ["", "ñy", ""]),
    "half a character is not text": row([HALF, REST + b"!"], "世界", ["", "世!", ""]),
    "half a character behind held text": row([b"ST" + HALF, REST], "STOP", ["", "ST世", ""]),
    "half a character at the end": row([b"ST", HALF], "STOP", ["", "", "ST\ufffd"]),
    "an empty token": row(["ST", "", "OP"], "STOP", ["", "", ""], "STOP"),
    "at least so many bytes": row([*"abcde"], "zz", ["", "", "a", "b", "c", "de"], min_bytes_to_buffer=2),
    "the larger of both": row(["abST", "x", "y"], "STOP", ["ab", "ST", "x", "y"], min_bytes_to_buffer=1),
    "buffered bytes of a wide character": row(["a世", "b"], "zz", ["a", "", "世b"], min_bytes_to_buffer=2),
}

# min_tokens: a completion that comes too early is forgotten, a beginning is not.
EARLY = {
    "a beginning is remembered": row(["a", "<", "/s>", "b"], "</s>", ["a", "", ""], "</s>", min_tokens=2),
    "none of one token counts": row(["aXbX", "c", "X"], "X", ["aXbX", "c", ""], "X", min_tokens=1),
    "the last that is too early": row(["a", "X", "b"], "X", ["a", "X", "b", ""], min_tokens=2),
    "the first that is not": row(["a", "X", "b"], "X", ["a", ""], "X", min_tokens=1),
    "its end begins another": row(["a", "a", "a"], "aa", ["", "a", ""], "aa", min_tokens=2),
    "letters of a name": row([" L", "ee", " and", " me", "et"], "e", [" L", "ee", " and", " m"], "e", min_tokens=3),
    "hidden tokens count": row([HIDDEN, HIDDEN, "e"], "e", ["", "", ""], "e", min_tokens=2),
    "unknown ids count": row([UNKNOWN, "a", "e"], "e", ["", "a", ""], "e", min_tokens=2, unknown_ids="skip"),
    "more than there are": row(["a", "X"], "X", ["a", "X", ""], min_tokens=10**9),
    "another one later": row(["XY", "Y"], ["X", "YY"], ["X", ""], "YY", min_tokens=1),
    "included": row(["aX", "bX", "c"], "X", ["aX", "bX"], "X", min_tokens=1, **INCLUDE),
}

# Tokens without text stand between parts of a stop; prompts, ends and things that look alike do not match.
WHERE = {
    "across a hidden token": row(["a", "ST", HIDDEN, "OP"], "STOP", ["a", "", "", ""], "STOP"),
    "across an unknown id": row(["a", "ST", UNKNOWN, "OP"], "STOP", ["a", "", "", ""], "STOP", unknown_ids="skip"),
    "around a hidden token": row(["x", HIDDEN, "STOP"], "STOP", ["x", "", ""], "STOP"),
    "a hidden token has no text": row([HIDDEN, "a"], HIDDEN, ["", "a", ""]),
    "a shown special has": row(["a", HIDDEN, "b"], HIDDEN, ["a", ""], HIDDEN, skip_special_tokens=False),
    "a kept special has": row(["a", HIDDEN, "b"], "dd", ["a", "<|hi"], "dd", keep_special_tokens=[HIDDEN]),
    "a replaced byte": row(["a", HALF, "b"], "\ufffd", ["a", "", ""], "\ufffd"),
    "a replaced byte of the flush": row(["a", HALF], "\ufffd", ["a", "", "\ufffd"]),
    "capitals": row(["Stop", "STOP"], "stop", ["Stop", "STOP", ""]),
    "another way to write é": row(["e\u0301"], "\u00e9", ["e\u0301", ""]),
    "U+FFFD spelled by a token": row(["a\ufffdb"], "\ufffdb", ["a"], "\ufffdb"),
    "zero bytes": row(["a\0", "\0b"], "\0\0", ["a", ""], "\0\0"),
    "behind half a character": row([b"a" + HALF, REST + b"b"], "世", ["a", ""], "世"),
    "and half a character more": row([b"STOP" + HALF, REST], "STOP", [""], "STOP"),
    "included, half a character more": row([b"STOP" + HALF, REST], "STOP", ["STOP"], "STOP", **INCLUDE),
}

# Every sign of a pattern is that sign.
LITERAL = [
    ".",
    "a.c",
    "(",
    ")",
    "[a]",
    "\\d+",
    "^a",
    "a$",
    "a|b",
    "*",
    "a*",
    "a?",
    "{2}",
    "(?i)a",
    "\\",
    "\\n",
    "$0",
    "\n",
]
SIGNS = {f"literal {stop!r}": row(["x", *stop], stop, ["x", *[""] * len(stop)], stop) for stop in LITERAL}
NO_SIGNS = {
    f"no pattern {stop!r}": row(["abc", "d"], stop, shown)
    for stop, shown in {
        ".": ["abc", "d", ""],
        "a.c": ["abc", "d", ""],
        "[a]": ["abc", "d", ""],
        "a|b": ["abc", "d", ""],
        "d$": ["abc", "", "d"],  # a beginning of it, so held
        "^a": ["abc", "d", ""],
        "\\w": ["abc", "d", ""],
        "d?": ["abc", "", "d"],
    }.items()
}

# Stops of one section. Text that may be a marker waits, and a stop in it is complete with the token that tells.
THINK = detok.Marker("reasoning", "<|think|>", "<|/think|>")
NOTE = detok.Marker("note", "((", "))", reopen=True)
THOUGHT = ["<|think|>", "a", "x", "b", "<|/think|>", "c", "x"]


def scoped(scope: str | None, *sections: detok.Marker) -> dict[str, Any]:
    return {"sections": sections, "stop_scope": scope}


SCOPED = {
    "outside only": row(THOUGHT, "x", ["", "a", "x", "b", "", "c", ""], "x", **scoped("content", THINK)),
    "inside only": row(THOUGHT, "x", ["", "a", ""], "x", **scoped("reasoning", THINK)),
    "inside a section that never comes": row([*"axb"], "x", [*"axb", ""], **scoped("reasoning", THINK)),
    "everywhere": row(THOUGHT, "x", ["", "a", ""], "x", **scoped(None, THINK)),
    "not around a section": row(
        ["a", "<|think|>", "<|/think|>", "b"], "ab", ["", "a", "", "b", ""], **scoped("content", THINK)
    ),
    "not out of a section": row(
        ["<|think|>", "a", "<|/think|>", "b"], "ab", ["", "", "a", "b", ""], **scoped("reasoning", THINK)
    ),
    "a marker is in no section": row(
        ["a", "(", "(", "b", ")", ")", "c"], "(", ["a", "", "((", "b", ")", ")", "c", ""], **scoped("content", NOTE)
    ),
    "no marker after all": row(["a", "(", "b"], "(", ["a", "", ""], "(", **scoped("content", NOTE)),
    "no marker after all, included": row(
        ["a", "(", "b"], "(", ["a", "", "("], "(", **scoped("content", NOTE), **INCLUDE
    ),
    "not among the first tokens": row(
        [*"axbx"], "x", ["a", "x", "b", ""], "x", min_tokens=2, **scoped("content", THINK)
    ),
}

ROWS = {
    f"{part}: {name}": each
    for part, table in {
        "common": COMMON,
        "which": WHICH,
        "window": WINDOW,
        "held": HELD,
        "early": EARLY,
        "where": WHERE,
        "signs": SIGNS | NO_SIGNS,
        "scoped": SCOPED,
    }.items()
    for name, each in table.items()
}


def options_of(each: Row) -> detok.TextDecodeOptions:
    return detok.TextDecodeOptions(stop=each.stop, **each.options)


def whole(tokenizer: detok.Tokenizer, outcome: Outcome, options: dict[str, Any], cut: int | None) -> detok.DecodedText:
    """The same text by a stream that hands nothing out before it is cut."""
    kept = {k: options[k] for k in ("skip_special_tokens", "keep_special_tokens", "unknown_ids") if k in options}
    stream = detok.DecodeStream(tokenizer, **kept)
    stream.push_tokens(outcome.joined.token_ids)
    return stream.flush(cut)[1]


@pytest.mark.parametrize("name", ROWS)
def test_row(name):
    each = ROWS[name]
    tokenizer, ids = vocabulary(*each.tokens)
    outcome = serve(tokenizer, updates(ones(ids)), options_of(each))
    assert outcome.shown == each.shown
    assert outcome.stop == each.match
    assert outcome.finished.dropped_token_ids == []
    if each.match is None:
        assert outcome.reason == ("length", None)
        assert outcome.finished.stop_match is None
        assert outcome.finished.first_cut_token is None
        assert outcome.abort_cause is None
        assert outcome.sampled == ids
        return
    match = outcome.finished.stop_match
    assert outcome.reason == ("stop", each.match)
    assert outcome.abort_cause == "stop_string"
    assert match.byte_offset == len(outcome.text.encode())
    assert match.token_index == len(each.shown) - 1
    assert outcome.sampled == ids[: len(each.shown)]
    assert match.cut is list(outcome.joined.attributions)[-1].cut


@pytest.mark.parametrize("name", ROWS)
def test_row_in_any_grouping(name):
    """The same stop, text, records and counts, and they are those of one cut of all the text."""
    each = ROWS[name]
    tokenizer, ids = vocabulary(*each.tokens)
    single = serve(tokenizer, updates(ones(ids)), options_of(each))
    cut = single.finished.stop_match.byte_offset if each.match is not None else None
    at_once = whole(tokenizer, single, each.options, cut)
    for groups in groupings(ids, name):
        for intermediate in (True, False):
            got = serve(tokenizer, updates(groups), options_of(each), intermediate=intermediate)
            assert got.text == single.text == at_once.text
            assert places(got.joined) == places(single.joined) == places(at_once)
            assert got.finished.stop_match == single.finished.stop_match
            assert got.finished.usage == single.finished.usage
            assert got.finished.finish_reason == single.finished.finish_reason
            # What the engine had sampled behind the match of that update.
            pushed = next(n for n in itertools.accumulate(map(len, groups)) if n >= len(got.sampled))
            assert got.finished.dropped_token_ids == ids[len(got.sampled) : pushed]
            cuts = [i for i, a in enumerate(at_once.attributions) if a.cut]
            assert got.finished.first_cut_token == (cuts[0] if cuts else None)


@pytest.mark.parametrize(("tokens", "end"), [([*"a("], {}), ([*"a(", "<|end|>"], {"stop_token_ids": [2]})])
def test_what_may_be_a_marker_is_none_at_the_end(tokens, end):
    """So a stop in it has come, before a stop id too."""
    tokenizer, ids = vocabulary(*tokens)
    options = detok.TextDecodeOptions(stop="(", **scoped("content", NOTE), **end)
    outcome = serve(tokenizer, updates(ones(ids)), options)
    assert (outcome.text, outcome.reason, outcome.sampled) == ("a", ("stop", "("), ids)
    batch = detok.BatchDecoder(tokenizer, options)
    slot = batch.add()
    for token_id in ids:
        step = batch.step([slot], [token_id])
    last = step if end else batch.finish([slot])
    assert (last.texts, last.stopped[slot].stop) == ([""], "(")


# ------------------------------------------------------------------ every split


def splits(data: bytes):
    """All the ways to part `data` into tokens."""
    for borders in itertools.product([False, True], repeat=len(data) - 1):
        token = data[:1]
        parts = []
        for border, byte in zip(borders, data[1:], strict=True):
            if border:
                parts.append(token)
                token = b""
            token += bytes([byte])
        yield [*parts, token]


def settled(data: bytes) -> bytes:
    """Without the character that is not complete."""
    return data.decode(errors="ignore").encode()


def held(text: bytes, stops: list[bytes]) -> int:
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


@pytest.mark.parametrize(
    ("text", "stop", "left"),
    [("é世界!", "世界", "é"), ("a😀b", "😀", "a"), ("ñyñz", "ñz", "ñy"), ("aéé", "éé", "a"), ("世世界", "世界", "世")],
)
def test_a_stop_split_in_every_way(text, stop, left):
    """Each token shows what is certain: complete characters less the longest end that may become the stop."""
    data = text.encode()
    options = detok.TextDecodeOptions(stop=stop)
    for tokens in splits(data):
        tokenizer, ids = vocabulary(*tokens)
        outcome = serve(tokenizer, updates(ones(ids)), options)
        expect, seen = [], b""
        for token in tokens:
            seen += token
            if stop.encode() in seen:
                break
            complete = settled(seen)
            expect.append(complete[: len(complete) - held(complete, [stop.encode()])].decode())
        assert [*itertools.accumulate(outcome.shown[:-1])] == expect, tokens
        assert (outcome.text, outcome.stop) == (left, stop), tokens


def naive(stream: detok.DecodeStream, ids: list[int], stops: list[bytes], include: bool, early: int, buffer: int):
    """Stops as one would write them down: cumulative text after each token, all of it searched again."""
    shown, text = [], b""
    for index, token_id in enumerate(ids):
        before = len(text)
        stream.push_token(token_id)
        text = stream.output.encode()
        ends = [
            (end, n, end - len(stop))
            for n, stop in enumerate(stops)
            for end in range(before + 1, len(text) + 1)
            if text[:end].endswith(stop)
        ]
        if ends and index + 1 > early:
            end, which, start = min(ends)
            return [*shown, text[: end if include else start].decode()], which
        keep = max(0 if include else held(text, stops), buffer)
        shown.append(settled(text[: max(0, len(text) - keep)]).decode())
    return [*shown, stream.flush()[1].text], None


TOKENS = ["a", "b", "ab", "ba", "aab", "é", b"\xc3", b"\xa9", b"b\xc3", "", HIDDEN]
STOPS = st.lists(st.text("abé", min_size=1, max_size=4), max_size=4)


@given(
    picks=st.lists(st.integers(0, len(TOKENS) - 1), max_size=12),
    stops=STOPS,
    include=st.booleans(),
    early=st.integers(0, 5),
    buffer=st.sampled_from([0, 0, 1, 3]),
)
def test_as_written_down(picks, stops, include, early, buffer):
    tokenizer, table = vocabulary(*TOKENS)
    ids = [table[i] for i in picks]
    options = detok.TextDecodeOptions(
        stop=stops, include_stop_str_in_output=include, min_tokens=early, min_bytes_to_buffer=buffer
    )
    outcome = serve(tokenizer, updates(ones(ids)), options)
    raw = [stop.encode() for stop in stops]
    shown, which = naive(detok.DecodeStream(tokenizer), ids, raw, include, early, buffer)
    assert [*itertools.accumulate(outcome.shown)] == shown
    assert outcome.stop == (None if which is None else stops[which])
    match = outcome.finished.stop_match
    at_once = whole(tokenizer, outcome, {}, match.byte_offset if match else None)
    cuts = [i for i, a in enumerate(at_once.attributions) if a.cut]
    for groups in groupings(ids, picks):
        got = serve(tokenizer, updates(groups), options)
        assert places(got.joined) == places(at_once)
        assert got.finished.stop_match == match
        assert match is None or match.cut is (bool(cuts) and cuts[-1] == match.token_index)
        assert got.finished.first_cut_token == (cuts[0] if cuts else None)


# ------------------------------------------------------------------ who lost text

# name: (tokens, stop, options, records after the cut, first token that lost text, the completing one lost text)
BLAME = {
    "tokens of their own": (["he", "l", "lo"], "llo", {}, "V0 Z2 Z2", 1, True),
    "the completing token alone": (["he", "llo"], "llo", {}, "V0 Z2", 1, True),
    "shown in part before": (["abS", "TOP"], "STOP", {}, "V0 Z2", 0, True),
    "shown in part, two later": (["abS", "T", "OP"], "STOP", {}, "V0 Z2 Z2", 0, True),
    "shown as a whole before": (["ab", "STOP"], "STOP", {}, "V0 Z2", 1, True),
    "its held text came out": (["aS", "x", "STOP"], "STOP", {}, "V0 V2 Z3", 2, True),
    "its held text is not cut": (["aST", "STOP"], "STOP", {}, "V0 Z3", 1, True),
    "the second of two parts": (["aS", "TS", "TOP"], "STOP", {}, "V0 V2 Z3", 1, True),
    "all of it in one token": (["abSTOPx"], "STOP", {}, "V0", 0, True),
    "a hidden token among them": (["a", "S", HIDDEN, "TOP"], "STOP", {}, "V0 Z1 Z1 Z1", 1, True),
    "a hidden token after a part": (["aS", HIDDEN, "TOP"], "STOP", {}, "V0 Z1 Z1", 0, True),
    "a hidden token before it": (["a", HIDDEN, "STOP"], "STOP", {}, "V0 Z1 Z1", 2, True),
    "half a character": ([b"a" + HALF, REST], "世", {}, "V0 Z1", 0, True),
    "half a character of its own": (["a", HALF, REST], "世", {}, "V0 Z1 Z1", 1, True),
    "included to the end": (["he", "ll", "o"], "ll", INCLUDE, "V0 V2", None, False),
    "included, more behind": (["he", "llo"], "ll", INCLUDE, "V0 V2", 1, True),
    "included, half a character behind": (["he", b"ll" + HALF], "ll", INCLUDE, "V0 V2", 1, True),
    "included, inside one token": (["hello"], "ll", INCLUDE, "V0", 0, True),
    "buffered": (["ab", "STOP"], "STOP", {"min_bytes_to_buffer": 32}, "V0 Z2", 1, True),
}


@pytest.mark.parametrize("name", BLAME)
def test_who_lost_text(name):
    tokens, stop, given_options, expect, first, cut = BLAME[name]
    tokenizer, ids = vocabulary(*tokens)
    options = detok.TextDecodeOptions(stop=stop, **given_options)
    for groups in groupings(ids, name):
        outcome = serve(tokenizer, updates(groups), options)
        assert marks(outcome.joined) == expect, groups
        assert outcome.finished.first_cut_token == first, groups
        assert outcome.finished.stop_match.cut is cut, groups


def test_a_record_that_left_does_not_change():
    """`abS` has been shown as `ab`: only `first_cut_token` can tell that it loses its S."""
    tokenizer, ids = vocabulary("abS", "TOP")
    decoder = detok.RequestDecoder(tokenizer, (), detok.TextDecodeOptions(stop="STOP"))
    (_, first), (last,) = decoder.push(detok.EngineUpdate(ids[:1])), decoder.push(detok.EngineUpdate(ids[1:]))
    assert [(first.decoded.text, marks(first.decoded)), (last.decoded.text, marks(last.decoded))] == [
        ("ab", "V0"),
        ("", "Z0"),
    ]
    assert [a.cut for d in (first, last) for a in d.decoded.attributions] == [False, True]
    assert last.finished.first_cut_token == 0


def test_ids_behind_a_match_are_dropped():
    """Also ids that nobody knows: they are not looked at."""
    tokenizer, ids = vocabulary("a", "STOP", "b", "c")
    update = detok.EngineUpdate([*ids, 10**6, *ids], finish_reason="length")
    outcome = serve(tokenizer, [update], detok.TextDecodeOptions(stop="STOP"))
    assert (outcome.text, outcome.sampled) == ("a", ids[:2])
    assert outcome.finished.dropped_token_ids == [*ids[2:], 10**6, *ids]
    assert outcome.finished.usage == detok.TokenUsage(0, 2)
    # The engine had said length, too.
    assert outcome.reason == ("stop", "STOP")
    assert outcome.abort_cause == "stop_string"


def test_after_a_match_it_is_over():
    tokenizer, ids = vocabulary("a", "STOP")
    decoder = detok.RequestDecoder(tokenizer, (), detok.TextDecodeOptions(stop="STOP"))
    decoder.push(detok.EngineUpdate(ids))
    assert decoder.is_finished
    for late in [detok.EngineUpdate(ids), detok.EngineUpdate(), detok.EngineUpdate(finish_reason="stop")]:
        with pytest.raises(detok.StreamFinishedError):
            decoder.push(late)
    decoder.close()
    assert decoder.abort_cause == "stop_string"


# ------------------------------------------------------------------ prompts

# name: (prompt, tokens, stop, shown, match)
PROMPTS = {
    "never into the prompt": (["a", "ST"], ["OP", "!"], "STOP", ["OP", "!", ""], None),
    "never in the prompt": (["STOP"], ["a", "b"], "STOP", ["a", "b", ""], None),
    "after the prompt": (["ST"], ["OP", "STOP"], "STOP", ["OP", ""], "STOP"),
    "a long one": (["p"] * 2000, ["x", "STO", "P tail"], "STOP", ["x", "", ""], "STOP"),
    # The character that the first token completes is generated text.
    "half a character of it": (["a", HALF], [REST, "b"], "世", [""], "世"),
    "half a character, left broken": (["a", HALF], ["b", "c"], "\ufffd", ["b", "c", ""], None),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts(name):
    prompt, tokens, stop, shown, match = PROMPTS[name]
    tokenizer, ids = vocabulary(*prompt, *tokens)
    outcome = serve(
        tokenizer, updates(ones(ids[len(prompt) :])), detok.TextDecodeOptions(stop=stop), ids[: len(prompt)]
    )
    assert (outcome.shown, outcome.stop) == (shown, match)


# ------------------------------------------------------------------ stop ids and the engine's own end

END, OTHER = "<|end|>", "<|other|>"

# name: (tokens, stop ids as tokens, options, shown, records, index of the id that stops)
STOP_IDS = {
    "hidden": (["a", "b", END, "c"], [END], {}, ["a", "b", ""], "V0 V1", 2),
    "a plain token": (["a", "b", "c"], ["b"], {}, ["a", ""], "V0", 1),
    "at the start": ([END, "a"], [END], {}, [""], "", 0),
    "one of several": (["a", OTHER, END], [END, OTHER], {}, ["a", ""], "V0", 1),
    "not there": (["a", "b"], [END], {}, ["a", "b", ""], "V0 V1", None),
    "included, hidden": (["a", END, "c"], [END], INCLUDE, ["a", ""], "V0 Z1", 1),
    "included, shown": (["a", END], [END], {**INCLUDE, "skip_special_tokens": False}, ["a", END], "V0 V1", 1),
    "included, plain": (["a", "b", "c"], ["b"], INCLUDE, ["a", "b"], "V0 V1", 1),
    "not pushed though shown": (["a", END], [END], {"skip_special_tokens": False}, ["a", ""], "V0", 1),
    "held text leaves": (["ST", END], [END], {"stop": "STOP"}, ["", "ST"], "V0", 1),
    "half a character leaves": (["a", HALF, END], [END], {}, ["a", "", "\ufffd"], "V0 V1", 2),
    "too early": (["a", END, "b", END], [END], {"min_tokens": 2}, ["a", "", "b", ""], "V0 Z1 V1", 3),
    "too early, plain": (["b", "a", "b"], ["b"], {"min_tokens": 1}, ["b", "a", ""], "V0 V1", 2),
    "an unknown id": (["a", None], [None], {}, ["a", ""], "V0", 1),
    "an unknown id, included": (["a", None], [None], {**INCLUDE, "unknown_ids": "skip"}, ["a", ""], "V0 Z1", 1),
    # The id is judged when it is sampled, before there is text.
    "before its own text": (["a", "STOP!"], ["STOP!"], {"stop": "STOP"}, ["a", ""], "V0", 1),
    "before its own text, included": (
        ["a", "STOP!"],
        ["STOP!"],
        {"stop": "STOP", **INCLUDE},
        ["a", "STOP!"],
        "V0 V1",
        1,
    ),
    "too early for the id and the text": (
        ["STOP!", "STOP!"],
        ["STOP!"],
        {"stop": "STOP", "min_tokens": 1},
        ["STOP!", ""],
        "V0",
        1,
    ),
}


@pytest.mark.parametrize("name", STOP_IDS)
def test_stop_ids(name):
    tokens, stop, given_options, shown, records, index = STOP_IDS[name]
    tokenizer, ids = vocabulary(*tokens, *stop)
    ids, stop_ids = ids[: len(tokens)], ids[len(tokens) :]
    options = detok.TextDecodeOptions(stop_token_ids=stop_ids, **given_options)
    outcome = serve(tokenizer, updates(ones(ids)), options)
    assert outcome.shown == shown
    for groups in groupings(ids, name):
        got = serve(tokenizer, updates(groups), options)
        assert (got.text, marks(got.joined)) == ("".join(shown), records)
        if index is None:
            assert (got.reason, got.abort_cause) == (("length", None), None)
            continue
        assert got.sampled == ids[: index + 1]
        assert got.reason == ("stop", ids[index])
        assert got.abort_cause == "stop_token_id"
        assert got.finished.usage.output_token_count == index + 1
        assert got.finished.stop_match == detok.StopMatch(ids[index], len(got.text.encode()), index, False)
        assert got.finished.first_cut_token is None


def test_a_stop_id_that_no_token_has():
    """Sampled and not pushed it is never unknown; included it is pushed, and is."""
    tokenizer, (a, none) = vocabulary("a", None)
    outcome = serve(tokenizer, [detok.EngineUpdate([a, none])], detok.TextDecodeOptions(stop_token_ids=[none]))
    assert (outcome.text, outcome.stop) == ("a", none)
    decoder = detok.RequestDecoder(tokenizer, (), detok.TextDecodeOptions(stop_token_ids=[none], **INCLUDE))
    with pytest.raises(detok.UnknownTokenError) as caught:
        decoder.push(detok.EngineUpdate([a, none]))
    assert (caught.value.token_id, caught.value.index) == (none, 1)
    assert not decoder.is_finished


def test_the_first_of_string_and_id():
    """In the order of the tokens, whichever kind they are."""
    tokenizer, ids = vocabulary("one ", "STOP", " two", END)
    one, stop, two, end = ids
    options = detok.TextDecodeOptions(stop="STOP", stop_token_ids=[end])
    for order, expect in [([one, stop, two, end], "STOP"), ([one, end, two, stop], end)]:
        for groups in groupings(order, expect):
            outcome = serve(tokenizer, updates(groups), options)
            assert (outcome.text, outcome.stop) == ("one ", expect)
            assert outcome.sampled == order[:2]


# name: (tokens of the last update, how it ends, options, text, records, reason). Tokens are a ! END; ids by place.
TERMINAL = {
    "suppressed": (["a", "!"], {"finish_reason": "stop"}, {}, "a", "V0", None),
    "suppressed, special": (["a", END], {"finish_reason": "stop"}, {"skip_special_tokens": False}, "a", "V0", None),
    "the only one": ([END], {"finish_reason": "stop"}, {}, "", "", None),
    "no ids": ([], {"finish_reason": "stop"}, {}, "", "", None),
    "named": (["a", "!"], {"finish_reason": "stop", "stop_token_id": "!"}, {}, "a", "V0", "!"),
    "another is named": (["a", "!"], {"finish_reason": "stop", "stop_token_id": END}, {}, "a!", "V0 V1", END),
    "named, no ids": ([], {"finish_reason": "stop", "stop_token_id": END}, {}, "", "", END),
    "a string is named": (["a", "!"], {"finish_reason": "stop", "stop_string": "xyz"}, {}, "a!", "V0 V1", "xyz"),
    "included": (["a", "!"], {"finish_reason": "stop"}, INCLUDE, "a!", "V0 V1", None),
    "included, hidden": (["a", END], {"finish_reason": "stop"}, INCLUDE, "a", "V0 Z1", None),
    "length": (["a", END], {"finish_reason": "length"}, {}, "a", "V0 Z1", None),
    "abort": (["a", "!"], {"finish_reason": "abort"}, {}, "a!", "V0 V1", None),
    "repetition": (["a", "!"], {"finish_reason": "repetition"}, {}, "a!", "V0 V1", None),
    # Not pushed, so that it can neither complete a stop nor be unknown.
    "it completes no stop": (["a", "!"], {"finish_reason": "stop"}, {"stop": "!"}, "a", "V0", None),
    "nor the end of one": (["a", "!"], {"finish_reason": "stop"}, {"stop": "a!"}, "a", "V0", None),
    "unknown": (["a", None], {"finish_reason": "stop"}, {}, "a", "V0", None),
}


@pytest.mark.parametrize("name", TERMINAL)
def test_the_engines_terminal_token(name):
    tokens, ending, given_options, text, records, stop = TERMINAL[name]
    tokenizer, table = vocabulary("a", "!", END, None)
    ids = dict(zip(["a", "!", END, None], table, strict=True))
    if "stop_token_id" in ending:
        ending = ending | {"stop_token_id": ids[ending["stop_token_id"]]}
        stop = ids[stop]
    sampled = [ids[t] for t in tokens]
    outcome = serve(tokenizer, [detok.EngineUpdate(sampled, **ending)], detok.TextDecodeOptions(**given_options))
    assert (outcome.text, marks(outcome.joined)) == (text, records)
    assert outcome.sampled == sampled
    assert outcome.finished.usage.output_token_count == len(sampled)
    assert outcome.reason == (ending["finish_reason"], stop)
    assert outcome.finished.stop_match is None
    assert outcome.abort_cause is None


def test_our_stop_wins_over_the_engines():
    """In the terminal update: a string before the suppressed token, and an id that is that token."""
    tokenizer, (a, stop, end) = vocabulary("a", "STOP", END)
    options = detok.TextDecodeOptions(stop="STOP", stop_token_ids=[end])
    for reason in ("stop", "length", "abort", "repetition"):
        outcome = serve(tokenizer, [detok.EngineUpdate([a, stop, end], finish_reason=reason)], options)
        assert (outcome.reason, outcome.abort_cause) == (("stop", "STOP"), "stop_string")
        assert outcome.finished.dropped_token_ids == [end]
        outcome = serve(tokenizer, [detok.EngineUpdate([a, end], finish_reason=reason)], options)
        assert (outcome.reason, outcome.abort_cause) == (("stop", end), "stop_token_id")
        assert outcome.finished.stop_match == detok.StopMatch(end, 1, 1)


# ------------------------------------------------------------------ options

BAD = {
    "empty": ("", ValueError),
    "an empty one": (["world", ""], ValueError),
    "a lone surrogate": ("a\ud800", ValueError),
    "a lone surrogate among others": (["x", "\udfff"], ValueError),
    "bytes": (b"x", TypeError),
    # Ties go by the order of the list: there must be one.
    "a set": ({"x", "y"}, TypeError),
    "bytes in a list": ([b"x"], TypeError),
    "a number": (1, TypeError),
    "a number in a list": (["x", 1], TypeError),
    "None in a list": ([None], TypeError),
    "nested": ([["x"]], TypeError),
}


@pytest.mark.parametrize("name", BAD)
def test_stops_that_are_none(name):
    stop, error = BAD[name]
    with pytest.raises(error):
        detok.TextDecodeOptions(stop=stop)


def test_stops_are_kept_in_order():
    assert detok.TextDecodeOptions().stop == ()
    assert detok.TextDecodeOptions(stop="ab").stop == ("ab",)
    assert detok.TextDecodeOptions(stop=("b", "a", "b")).stop == ("b", "a", "b")
    assert detok.TextDecodeOptions(stop_token_ids=[5, 3, 5]).stop_token_ids == (3, 5)
    # The order decides ties, so it tells options apart.
    assert detok.TextDecodeOptions(stop=["a", "b"]) != detok.TextDecodeOptions(stop=["b", "a"])


# ------------------------------------------------------------------ limits


def held_bytes(tokenizer, options, groups) -> tuple[list[int], str]:
    """What a slot holds after each step, and all its text."""
    batch = detok.BatchDecoder(tokenizer, options)
    slot = batch.add()
    seen, text = [], ""
    for group in groups:
        out = batch.step([slot], group, [len(group)])
        text += out.texts[0]
        if slot in out.stopped:
            return seen, text
        pending = batch.pending(slot)
        assert pending["incomplete_bytes"] <= 3
        seen.append(pending["held_bytes"])
    return seen, text + batch.finish([slot]).texts[0]


def test_a_hundred_thousand_stops():
    """Nothing is held that is no beginning of one of them, whatever their number."""
    stops = [f"<{i}>" for i in range(100_000)]
    tokenizer, ids = vocabulary("a", "<", "9", ">", "x")
    a, less, nine, more, x = ids
    options = detok.TextDecodeOptions(stop=stops)
    assert len(options.stop) == 100_000
    for n in (1, 2, 5):
        tokens = [a, less, *[nine] * n, more, x]
        held_now, text = held_bytes(tokenizer, options, ones(tokens))
        assert (held_now, text) == ([0, *range(1, n + 2)], "a")
        assert serve(tokenizer, updates(ones(tokens)), options).stop == f"<{'9' * n}>"
    # Six digits are none of them: all is released, and at once.
    held_now, text = held_bytes(tokenizer, options, ones([a, less, *[nine] * 6, more, x]))
    assert (held_now, text) == ([0, 1, 2, 3, 4, 5, 6, 0, 0, 0], "a<999999>x")
    assert serve(tokenizer, updates(ones([a] * 1000)), options).shown == ["a"] * 1000 + [""]


def test_a_hundred_thousand_stops_that_all_begin_alike():
    """The longest beginning is held; the one that completes is found among them."""
    stem = "stop" * 8
    stops = [f"{stem}{i:05}" for i in range(100_000)]
    tokenizer, ids = vocabulary("stop", *"0123456789", "!")
    options = detok.TextDecodeOptions(stop=stops)
    four, (zero, *_, nine), end = ids[0], ids[1:11], ids[11]
    held_now, _ = held_bytes(tokenizer, options, ones([four] * 100))
    assert max(held_now) == len(stem)
    outcome = serve(tokenizer, updates(ones([four] * 10 + [zero, zero, nine, nine, nine, end])), options)
    assert (outcome.text, outcome.stop) == ("stop" * 2, stem + "00999")


def test_more_stops_than_there_is_room_for():
    """Beyond the documented number of bytes together they are refused, whether one or many."""
    limit = 4 << 20
    for stops in (["a" * limit], ["ab" * (limit // 8)] * 4):
        with pytest.raises(ValueError, match=str(limit)):
            detok.TextDecodeOptions(stop=[*stops, "b"])


def test_a_stop_of_a_megabyte():
    """Held to its last byte, released by the byte that differs, matched by the one that does not."""
    size = 1 << 20
    chunk = "ab" * 512
    tokenizer, (chunk_id, end, other) = vocabulary(chunk, "!", "?")
    options = detok.TextDecodeOptions(stop="ab" * (size // 2) + "!")
    count = size // 1024
    held_now, text = held_bytes(tokenizer, options, [[chunk_id]] * count + [[other]])
    assert held_now == [1024 * (i + 1) for i in range(count)] + [0]
    assert len(text) == size + 1
    # One chunk more than the stop has: it goes as the others come.
    held_now, text = held_bytes(tokenizer, options, [[chunk_id]] * (count + 3) + [[end]])
    assert max(held_now) == size
    assert text == chunk * 3
    outcome = serve(tokenizer, updates([[chunk_id] * (count + 1), [end, other]]), options)
    assert (outcome.shown, outcome.finished.dropped_token_ids) == ([chunk, ""], [other])
    assert outcome.finished.stop_match.byte_offset == len(chunk)


def test_a_stop_of_ten_thousand_same_characters():
    """One end of it is the next beginning of it: the worst case for a search that starts again."""
    count = 10_000
    tokenizer, (wide, other) = vocabulary("あ", "い")
    options = detok.TextDecodeOptions(stop="あ" * count)
    tokens = [wide] * (count - 1)
    held_now, text = held_bytes(tokenizer, options, ones([*tokens, other, *tokens, other]))
    assert held_now == [*range(3, 3 * count, 3), 0] * 2
    assert text == ("あ" * (count - 1) + "い") * 2
    outcome = serve(tokenizer, updates([[*tokens, other, *tokens, wide, wide]]), options)
    assert outcome.text == "あ" * (count - 1) + "い"
    assert outcome.finished.dropped_token_ids == [wide]
    # A completion that came too early leaves the longest proper beginning, token after token.
    early = detok.TextDecodeOptions(stop="あ" * count, min_tokens=count + 5)
    outcome = serve(tokenizer, updates(ones([wide] * (count + 10))), early)
    assert outcome.shown == [""] * (count - 1) + ["あ"] * 6 + [""]
    assert outcome.finished.stop_match == detok.StopMatch("あ" * count, 18, count + 5, True)


def test_many_stops_give_what_one_gives():
    """Stops that never come change nothing, however many they are."""
    rng = random.Random(0)
    tokenizer, ids = vocabulary("a", "b", "STOP", "c", "S")
    tokens = [rng.choice(ids[:2] + ids[3:]) for _ in range(500)] + [ids[2]]
    one = serve(tokenizer, updates(ones(tokens)), detok.TextDecodeOptions(stop="STOP"))
    for count in (100, 4_096):
        never = [f"\x01{i}" for i in range(count - 1)]
        many = serve(tokenizer, updates(ones(tokens)), detok.TextDecodeOptions(stop=[*never, "STOP"]))
        assert (many.shown, many.stop, places(many.joined)) == (one.shown, "STOP", places(one.joined))

"""DecodedText, TokenAnchor, TokenAttribution: what they hold, how they join, split and answer."""

import copy
import json
import pickle
from collections.abc import Sequence
from typing import Any

import detok
import pytest
import reference
import strategies as own
from detok import DecodedText, DecodeStream, TokenAnchor, TokenAttribution, Tokenizer
from hypothesis import given
from hypothesis import strategies as st

SAID = r"\w"  # every error says something

# ---------------------------------------------------------------- shorthand


def record(token_id: int, short: str) -> TokenAttribution:
    """`V0` (visible at 0), `C0` (the same, continues its character), `Z0` (zero-width); `*` marks a cut."""
    place = int(short[1:].rstrip("*"))
    anchor = TokenAnchor.zero_width(place) if short[0] == "Z" else TokenAnchor.visible(place)
    return TokenAttribution(token_id, anchor, continues_char=short[0] == "C", cut=short.endswith("*"))


def decoded(text: str, shorts: str = "", first_id: int = 0) -> DecodedText:
    return DecodedText(text, [record(first_id + n, short) for n, short in enumerate(shorts.split())])


def short_of(attribution: TokenAttribution) -> str:
    letter = ("C" if attribution.continues_char else "V") if attribution.anchor.is_visible else "Z"
    return f"{letter}{attribution.anchor.byte_offset}{'*' if attribution.cut else ''}"


def shown(value: DecodedText | None) -> tuple[str, str] | None:
    if value is None:
        return None
    return value.text, " ".join(short_of(attribution) for attribution in value.attributions)


def mirrored(value: reference.DecodedText) -> DecodedText:
    """A value of the reference, as the library's."""
    return DecodedText(
        value.text,
        [
            TokenAttribution(
                r.token_id,
                TokenAnchor.visible(r.byte_offset) if r.visible else TokenAnchor.zero_width(r.byte_offset),
                continues_char=r.continues_char,
                cut=r.cut,
            )
            for r in value.records
        ],
    )


# ---------------------------------------------------------------- rows of the contract: what is shown after each step

SPECIAL, EMPTY, WORD, AB, STOP = 256, 257, 258, 259, 260
LETTERS = [bytes([byte]) for byte in range(256)] + [b"<special>", b"", b"abcd", b"ab", b"STOP"]
UNKNOWN = 10_000


def stream(prompt: Sequence[int] = (), **options: Any) -> DecodeStream:
    return DecodeStream(Tokenizer.from_token_bytes(LETTERS, special_token_ids=[SPECIAL]), prompt, **options)


CONTRACT = [
    pytest.param({}, b"ok", [("o", "V0"), ("k", "V0"), None], ("ok", "V0 V1"), id="row 5: two letters"),
    pytest.param(
        {}, b"\xe4\xbd\xa0", [None, None, ("你", "V0 C0 C0"), None], ("你", "V0 C0 C0"), id="row 6: one chunk"
    ),
    pytest.param(
        {"min_bytes_to_buffer": 2},
        [WORD],
        [("ab", "V0"), ("cd", "")],
        ("abcd", "V0"),
        id="row 7: held tail has no record",
    ),
    pytest.param(
        {},
        [0x61, SPECIAL, 0x62],
        [("a", "V0"), ("", "Z0"), ("b", "V0"), None],
        ("ab", "V0 Z1 V1"),
        id="row 8: hidden special between letters",
    ),
    pytest.param(
        {},
        [0xE4, SPECIAL, 0xBD, 0xA0],
        [None, None, None, ("你", "V0 Z0 C0 C0"), None],
        ("你", "V0 Z0 C0 C0"),
        id="row 9: hidden special inside a character",
    ),
    pytest.param(
        {"skip_special_tokens": False},
        [SPECIAL],
        [("<special>", "V0"), None],
        ("<special>", "V0"),
        id="row 10: special shown",
    ),
    pytest.param({}, [EMPTY], [("", "Z0"), None], ("", "Z0"), id="row 11: a token that gives nothing"),
    pytest.param(
        {},
        [0xE4, 0xBD],
        [None, None, ("\ufffd", "V0 C0")],
        ("\ufffd", "V0 C0"),
        id="row 12: half a character at the end",
    ),
    pytest.param(
        {"prompt": list(b"Hi")}, b"!", [("!", "V0"), None], ("!", "V0"), id="row 15: the prompt has no record"
    ),
    pytest.param(
        {"unknown_ids": "skip"},
        [UNKNOWN, 0x48, UNKNOWN, 0x65],
        [("", "Z0"), ("H", "V0"), ("", "Z0"), ("e", "V0"), None],
        ("He", "Z0 V0 Z1 V1"),
        id="row 16: unknown ids",
    ),
    pytest.param(
        {"min_bytes_to_buffer": 3},
        "你好A".encode(),
        [None, None, None, None, None, ("你", "V0 C0 C0"), None, ("好A", "V0 C0 C0 V3")],
        ("你好A", "V0 C0 C0 V3 C3 C3 V6"),
        id="the hold-back does not cut a character",
    ),
    pytest.param(
        {"min_bytes_to_buffer": 32},
        [0x61, SPECIAL],
        [None, None, ("a", "V0 Z1")],
        ("a", "V0 Z1"),
        id="records wait with their text",
    ),
]


@pytest.mark.parametrize(("options", "token_ids", "chunks", "everything"), CONTRACT)
def test_shown_after_each_step(options, token_ids, chunks, everything):
    running = stream(**options)
    seen = []
    for token_id in token_ids:
        running.push_token(token_id)
        seen.append(shown(running.next_chunk()))
    last, whole = running.flush()
    assert [*seen, shown(last)] == chunks
    assert shown(whole) == everything
    assert whole.token_ids == list(token_ids)


CUT = [
    pytest.param([AB, STOP], 2, ("ab", "V0 Z2*"), id="row 13: the token behind the cut has no width"),
    pytest.param([WORD], 2, ("ab", "V0*"), id="row 14: a token that loses its tail keeps its anchor"),
    pytest.param([WORD], 0, ("", "Z0*"), id="all of it"),
    pytest.param([AB, SPECIAL, STOP], 2, ("ab", "V0 Z2 Z2*"), id="a zero-width token at the cut stays"),
    pytest.param([AB, STOP, SPECIAL], 2, ("ab", "V0 Z2* Z2*"), id="one behind the cut is moved to it"),
    pytest.param([AB], 2, ("ab", "V0"), id="a cut at the end"),
    pytest.param([AB], 99, ("ab", "V0"), id="a cut past the end"),
    pytest.param([0x61, 0xE4, 0xBD], 1, ("a", "V0 Z1* Z1*"), id="pending bytes are resolved before the cut"),
    pytest.param([0x61, 0xE4, 0xBD], 4, ("a\ufffd", "V0 V1 C1"), id="a cut at the end of what was pending"),
]


@pytest.mark.parametrize(("token_ids", "cut", "everything"), CUT)
def test_flush_cuts(token_ids, cut, everything):
    running = stream(min_bytes_to_buffer=32)
    running.push_tokens(token_ids)
    last, whole = running.flush(cut)
    assert shown(whole) == everything
    assert (last or DecodedText()) == whole


def test_everything_tells_of_a_cut_also_for_records_that_left():
    running = stream(min_bytes_to_buffer=2)
    running.push_token(WORD)
    chunk = running.next_chunk()
    last, whole = running.flush(3)
    assert (shown(last), shown(whole)) == (("c", ""), ("abc", "V0*"))
    assert shown(chunk) == ("ab", "V0")


# ---------------------------------------------------------------- joining and splitting

JOINED = [
    pytest.param(("abcd", ""), ("x", "Z1"), ("abcdx", "Z5"), id="row 1: Z1 up by 4"),
    pytest.param(("a", "V0"), ("你", "V0 C0 C0 Z3"), ("a你", "V0 V1 C1 C1 Z4"), id="row 2: moved by the text before"),
    pytest.param(("", ""), ("a", "V0 Z1"), ("a", "V0 Z1"), id="row 3: to nothing"),
    pytest.param(("", "Z0"), ("a", "V0"), ("a", "Z0 V0"), id="row 4: records without text stay in front"),
    pytest.param(("a", "V0"), ("", ""), ("a", "V0"), id="nothing"),
    pytest.param(("é", "V0"), ("", "Z0"), ("é", "V0 Z2"), id="records without text"),
]


@pytest.mark.parametrize(("left", "right", "both"), JOINED)
def test_append(left, right, both):
    receiver, other = decoded(*left), decoded(*right, first_id=50)
    ids = receiver.token_ids + other.token_ids
    assert shown(receiver + other) == both
    assert (shown(receiver), shown(other)) == (left, right)
    receiver.append(other)
    assert (shown(receiver), receiver.token_ids) == (both, ids)
    assert shown(other) == right


def test_append_to_itself():
    value = decoded("ab", "V0 Z2")
    value.append(value)
    assert shown(value) == ("abab", "V0 Z2 V2 Z4")
    assert shown(value + value) == ("abababab", "V0 Z2 V2 Z4 V4 Z6 V6 Z8")


def test_appending_to_a_chunk_does_not_change_what_was_taken_from_it():
    value = decoded("ab", "V0")
    records, text, ids = value.attributions, value.text, value.token_ids
    value.append(decoded("c", "V0"))
    assert ([short_of(r) for r in records], text, ids) == (["V0"], "ab", [0])


DRAINED = [
    pytest.param(("abcd", "V3"), 2, ("ab", ""), ("cd", "V1"), id="row 1: V3 down by 2"),
    pytest.param(("abc", "V0 Z1 V1"), 1, ("a", "V0 Z1"), ("bc", "V0"), id="a zero-width token at the cut leaves"),
    pytest.param(("abc", "V0 V1 Z2"), 1, ("a", "V0"), ("bc", "V0 Z1"), id="one behind stays"),
    pytest.param(("你", "V0 Z0 C0 C0"), 0, ("", ""), ("你", "V0 Z0 C0 C0"), id="nothing overtakes a visible token"),
    pytest.param(("你", "Z0 V0 C0 C0"), 0, ("", "Z0"), ("你", "V0 C0 C0"), id="a leading zero-width token leaves"),
    pytest.param(("你x", "V0 C0 V3"), 3, ("你", "V0 C0"), ("x", "V0"), id="a shared character goes whole"),
    pytest.param(("ab", "V0 Z2"), 2, ("ab", "V0 Z2"), ("", ""), id="everything"),
    pytest.param(("abcd", "V0"), 2, ("ab", "V0"), ("cd", ""), id="the tail of a token has no record"),
]


@pytest.mark.parametrize(("value", "length", "head", "rest"), DRAINED)
def test_drain_prefix(value, length, head, rest):
    whole = decoded(*value)
    ids = whole.token_ids
    drained = whole.drain_prefix(length)
    assert (shown(drained), shown(whole)) == (head, rest)
    assert drained.token_ids + whole.token_ids == ids
    assert shown(drained + whole) == value


@pytest.mark.parametrize("length", [1, 2, 4, 5, 10**6])
def test_drain_prefix_needs_a_boundary(length):
    value = decoded("你", "V0")
    with pytest.raises(ValueError, match=SAID):
        value.drain_prefix(length)
    assert shown(value) == ("你", "V0")


def test_take():
    value = decoded("ab", "V0 Z2")
    taken = value.take()
    assert (shown(taken), shown(value), bool(value)) == (("ab", "V0 Z2"), ("", ""), False)
    value.append(decoded("c", "V0"))
    assert (shown(taken), shown(value)) == (("ab", "V0 Z2"), ("c", "V0"))


@pytest.mark.parametrize(
    ("value", "truth"), [(("", ""), False), (("a", ""), True), (("", "Z0"), True), (("a", "V0"), True)]
)
def test_truth(value, truth):
    assert bool(decoded(*value)) is truth


def test_no_length():
    with pytest.raises(TypeError):
        len(decoded("a", "V0"))


@given(own.decoded_texts(), own.decoded_texts())
def test_append_as_the_reference(left, right):
    try:
        expected = left + right
    except ValueError:
        return  # a record at the end of `left` that waits for a character it cannot share with `right`
    receiver, other = mirrored(left), mirrored(right)
    assert receiver + other == mirrored(expected)
    receiver.append(other)
    assert receiver == mirrored(expected)
    assert other == mirrored(right)


@given(own.decoded_texts(), st.integers(0, 24))
def test_drain_prefix_as_the_reference(ours, length):
    theirs = mirrored(ours)
    before = mirrored(ours)
    if length not in reference.boundaries(ours.text):
        with pytest.raises(ValueError, match=SAID):
            theirs.drain_prefix(length)
        assert theirs == before
        return
    head = ours.drain_prefix(length)
    drained = theirs.drain_prefix(length)
    assert drained == mirrored(head)
    assert theirs == mirrored(ours)
    assert drained + theirs == before


# ---------------------------------------------------------------- the constructor

REFUSED = [
    pytest.param("ab", "V1 V0", id="offsets decrease"),
    pytest.param("ab", "Z1 V0", id="offsets decrease behind a zero-width token"),
    pytest.param("你", "V1", id="visible inside a character"),
    pytest.param("你", "Z2", id="zero-width inside a character"),
    pytest.param("ab", "V2", id="visible at the end"),
    pytest.param("", "V0", id="visible without text"),
    pytest.param("ab", "Z3", id="zero-width past the end"),
    pytest.param("ab", "C3", id="continuing past the end"),
    pytest.param("ab", "V4294967295", id="far past the end"),
]


@pytest.mark.parametrize(("text", "shorts"), REFUSED)
def test_constructor_refuses(text, shorts):
    with pytest.raises(ValueError, match=SAID):
        decoded(text, shorts)


@pytest.mark.parametrize(
    ("text", "shorts"),
    [("", ""), ("", "Z0 Z0"), ("ab", "V0 V0 V1"), ("ab", "V0 Z2"), ("ab", "C2"), ("", "C0"), ("你", "V0 C0 Z3 C3")],
)
def test_constructor_takes(text, shorts):
    assert shown(decoded(text, shorts)) == (text, shorts)


def test_constructor_takes_any_iterable():
    assert shown(DecodedText("a", (record(n, short) for n, short in enumerate(["V0", "Z1"])))) == ("a", "V0 Z1")
    assert DecodedText() == DecodedText("") == DecodedText("", [])
    for wrong in ([1], ["V0"], [None], [TokenAnchor.visible(0)]):
        with pytest.raises(TypeError):
            DecodedText("a", wrong)
    with pytest.raises(TypeError):
        DecodedText(b"a")


# ---------------------------------------------------------------- values

VALUES = [
    pytest.param(TokenAnchor.visible(3), TokenAnchor.zero_width(3), id="anchor"),
    pytest.param(record(7, "V3"), record(7, "Z3"), id="kind"),
    pytest.param(record(7, "V3"), record(8, "V3"), id="id"),
    pytest.param(record(7, "V3"), record(7, "V4"), id="offset"),
    pytest.param(record(7, "V3"), record(7, "C3"), id="continues_char"),
    pytest.param(record(7, "V3"), record(7, "V3*"), id="cut"),
]


@pytest.mark.parametrize(("value", "other"), VALUES)
def test_frozen_values(value, other):
    twin = pickle.loads(pickle.dumps(value))
    assert twin == value
    assert hash(twin) == hash(value)
    assert repr(twin) == repr(value)
    assert copy.copy(value) == copy.deepcopy(value) == value
    assert value != other
    assert repr(value) != repr(other)
    assert len({value, twin, other}) == 2
    assert value != 3
    assert value != "V3"
    for name in ("byte_offset", "token_id", "anchor", "kind", "anything"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(value, name, 1)


def test_decoded_text_is_a_value_that_changes():
    value = decoded("a你", "V0 Z1 V1 C1*")
    for twin in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert twin == value
        assert repr(twin) == repr(value)
        twin.append(decoded("x", "V0"))
        assert twin != value
    assert shown(value) == ("a你", "V0 Z1 V1 C1*")
    assert value != decoded("a你", "V0 Z1 V1 C1")
    assert value != decoded("a你")
    assert value != "a你"
    with pytest.raises(TypeError):
        hash(value)


def test_repr_names_what_is_in_it():
    assert "visible" in repr(TokenAnchor.visible(3)).lower()
    assert "3" in repr(TokenAnchor.visible(3))
    assert "zero_width" in repr(TokenAnchor.zero_width(3)).lower()
    assert "4711" in repr(record(4711, "V3"))
    assert repr("a\n你") in repr(decoded("a\n你", "V0")) or '"a\\n你"' in repr(decoded("a\n你", "V0"))


def test_match():
    def told(value: Any) -> Any:
        match value:
            case TokenAnchor("visible", place):
                return "visible", place
            case TokenAnchor("zero_width", place):
                return "zero-width", place
            case TokenAttribution(token_id, TokenAnchor("visible", place)):
                return token_id, place
            case TokenAttribution(token_id, anchor):
                return token_id, anchor

    assert told(TokenAnchor.visible(3)) == ("visible", 3)
    assert told(TokenAnchor.zero_width(4)) == ("zero-width", 4)
    assert told(record(7, "V5")) == (7, 5)
    assert told(record(7, "Z5")) == (7, TokenAnchor.zero_width(5))


def test_anchor_properties():
    visible, hidden = TokenAnchor.visible(3), TokenAnchor.zero_width(4)
    assert (visible.kind, visible.is_visible, visible.byte_offset) == ("visible", True, 3)
    assert (hidden.kind, hidden.is_visible, hidden.byte_offset) == ("zero_width", False, 4)


@pytest.mark.parametrize("bad", [-1, 2**32, 2**70])
def test_numbers_outside_32_bits_are_refused(bad):
    for call in (
        lambda: TokenAnchor.visible(bad),
        lambda: TokenAnchor.zero_width(bad),
        lambda: TokenAttribution(bad, TokenAnchor.visible(0)),
    ):
        with pytest.raises((ValueError, OverflowError)):
            call()


def test_attributions_are_a_sequence():
    value = decoded("ab你", "V0 V1 Z2 V2 C2")
    records = value.attributions
    assert len(records) == 5
    assert records[0] == record(0, "V0")
    assert records[-1] == record(4, "C2")
    assert [short_of(r) for r in records] == ["V0", "V1", "Z2", "V2", "C2"]
    assert [short_of(r) for r in records[1:3]] == ["V1", "Z2"]
    assert list(reversed(records)) == list(records)[::-1]
    assert record(1, "V1") in records
    assert record(9, "V1") not in records
    for index in (5, -6, 2**70):
        with pytest.raises(IndexError):
            records[index]
    with pytest.raises(TypeError):
        records["0"]


def test_columns():
    value = decoded("ab你", "V0 V1 Z2 C2 C2*")
    ids, offsets, flags = value.to_numpy()
    assert list(ids) == value.token_ids == [0, 1, 2, 3, 4]
    assert list(offsets) == value.offsets(unit="byte") == [0, 1, 2, 2, 2]
    assert len(flags) == 5
    # The columns are a copy: what comes later does not show in them.
    value.append(decoded("c", "V0"))
    assert (len(ids), len(value.to_numpy()[0])) == (5, 6)


def test_to_dict_is_plain_data():
    value = decoded("ab你", "V0 V1 Z2 V2 C2")
    assert json.loads(json.dumps(value.to_dict()))["text"] == "ab你"


# ---------------------------------------------------------------- spans

SPANS = [
    pytest.param("ab", "V0 V1", [(0, 1), (1, 2)], [(0, 1), (1, 2)], id="two letters"),
    pytest.param("你", "V0 C0 C0", [(0, 1)] * 3, [(0, 1), (1, 1), (1, 1)], id="three tokens, one character"),
    pytest.param("a你b", "V0 C1 V4", [(0, 2), (1, 2), (2, 3)], [(0, 2), (2, 2), (2, 3)], id="a shared character"),
    pytest.param("a你b", "V0 C1", [(0, 2), (1, 3)], [(0, 2), (2, 3)], id="ends one, owns the next"),
    pytest.param("你b", "C0", [(0, 2)], [(0, 2)], id="the first byte lies in the prompt"),
    pytest.param("你b", "C0 C0 V3", [(0, 1), (0, 1), (1, 2)], [(0, 1), (1, 1), (1, 2)], id="the first of two has it"),
    pytest.param("ab", "V0 Z1 V1 Z2", [(0, 1), (1, 1), (1, 2), (2, 2)], None, id="zero-width tokens"),
    pytest.param("xyab", "V2", [(2, 4)], [(2, 4)], id="the tail of an earlier token has no span"),
    pytest.param("xyab", "", [], [], id="text alone"),
    pytest.param("ab", "Z0 V0* Z2*", [(0, 0), (0, 2), (2, 2)], None, id="cut"),
    pytest.param("你你", "V0 C0 C3", [(0, 1), (0, 2), (1, 2)], [(0, 1), (1, 2), (2, 2)], id="a chain"),
    pytest.param("你b", "V0 V0 V0 V3", [(0, 1), (0, 1), (0, 1), (1, 2)], [(0, 1), (1, 1), (1, 1), (1, 2)], id="window"),
    pytest.param("a", "V0 C1", [(0, 1), (1, 1)], [(0, 1), (1, 1)], id="its character is not here"),
]


@pytest.mark.parametrize(("text", "shorts", "touch", "owned"), SPANS)
def test_spans(text, shorts, touch, owned):
    value = decoded(text, shorts)
    assert value.spans() == value.spans(unit="codepoint", shared="touch") == touch
    assert value.spans(shared="own") == (touch if owned is None else owned)


UNITS = [
    pytest.param("byte", [(0, 1), (1, 5), (1, 5), (5, 5), (5, 7)], [0, 1, 1, 5, 5], id="byte"),
    pytest.param("codepoint", [(0, 1), (1, 2), (1, 2), (2, 2), (2, 3)], [0, 1, 1, 2, 2], id="codepoint"),
    pytest.param("utf16", [(0, 1), (1, 3), (1, 3), (3, 3), (3, 4)], [0, 1, 1, 3, 3], id="utf16"),
]


@pytest.mark.parametrize(("unit", "spans", "offsets"), UNITS)
def test_units(unit, spans, offsets):
    value = decoded("a😀é", "V0 V1 C1 Z5 V5")
    assert value.spans(unit=unit) == spans
    assert value.offsets(unit=unit) == offsets


def test_unknown_words_are_refused():
    value = decoded("a", "V0")
    for call in (
        lambda: value.spans(unit="char"),
        lambda: value.spans(shared="mine"),
        lambda: value.offsets(unit=""),
        lambda: value.tokens_at(0, 1, unit="bytes"),
        lambda: value.mask([(0, 1)], rule="most"),
    ):
        with pytest.raises(ValueError, match=SAID):
            call()


@given(own.decoded_texts(), st.sampled_from(["byte", "codepoint", "utf16"]))
def test_spans_as_the_reference(ours, unit):
    theirs = mirrored(ours)
    assert theirs.offsets(unit=unit) == ours.offsets(unit=unit)
    assert theirs.spans(unit=unit) == ours.spans(unit=unit)
    assert theirs.spans(unit=unit, shared="own") == ours.spans(unit=unit, shared="own")


# ---------------------------------------------------------------- tokens at a place

FOUR = ("ab你c", "V0 Z1 V1 V2 C2 V5 Z6")  # a, hidden, b, two tokens of one character, c, hidden

AT = [
    pytest.param(0, 1, range(1), id="one letter"),
    pytest.param(1, 2, range(2, 3), id="no zero-width token at its edge"),
    pytest.param(0, 2, range(3), id="a zero-width token inside"),
    pytest.param(2, 3, range(3, 5), id="all tokens of one character"),
    pytest.param(3, 4, range(5, 6), id="the last letter without the token behind it"),
    pytest.param(0, 99, range(6), id="past the end"),
    pytest.param(2, 2, range(0), id="an empty query"),
    pytest.param(4, 9, range(0), id="behind the text"),
    pytest.param(50, 60, range(0), id="far behind the text"),
]


@pytest.mark.parametrize(("start", "end", "indices"), AT)
def test_tokens_at(start, end, indices):
    found = decoded(*FOUR).tokens_at(start, end)
    assert isinstance(found, range)
    assert found == indices


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (2, 1), (-2, -1), (0, -1)])
def test_tokens_at_refuses(start, end):
    with pytest.raises(ValueError, match=SAID):
        decoded(*FOUR).tokens_at(start, end)


@given(own.decoded_texts(), st.integers(0, 20), st.integers(0, 20), st.sampled_from(["byte", "codepoint", "utf16"]))
def test_tokens_at_as_the_reference(ours, start, length, unit):
    theirs = mirrored(ours)
    assert theirs.tokens_at(start, start + length, unit=unit) == ours.tokens_at(start, start + length, unit=unit)
    # A second query comes from what the first one prepared.
    assert theirs.tokens_at(0, start, unit=unit) == ours.tokens_at(0, start, unit=unit)


# ---------------------------------------------------------------- masks

MASKS = [
    pytest.param("ab", "V0 V1", [(0, 1)], "first", [True, False], id="one of two"),
    pytest.param("ab", "V0 V1", [], "first", [False, False], id="no range"),
    pytest.param("ab", "V0 V1", [(0, 1), (1, 2)], "all", [True, True], id="two ranges"),
    pytest.param("abcd", "V0", [(0, 1)], "first", [True], id="first: the anchor's character"),
    pytest.param("abcd", "V0", [(1, 4)], "first", [False], id="first: not the rest"),
    pytest.param("abcd", "V0", [(3, 4)], "any", [True], id="any"),
    pytest.param("abcd", "V0", [(0, 3)], "all", [False], id="all: one is missing"),
    pytest.param("abcd", "V0", [(0, 2), (2, 4)], "all", [True], id="all: by two ranges"),
    pytest.param("abcd", "V0", [(0, 2)], "majority", [False], id="majority: half is not enough"),
    pytest.param("abcd", "V0", [(0, 3)], "majority", [True], id="majority"),
    pytest.param("你你aa", "V0", [(0, 2)], "majority", [False], id="majority counts code points, not bytes"),
    pytest.param("你", "V0 C0", [(0, 1)], "first", [True, True], id="both tokens of a character"),
    pytest.param("a你", "V0 C1", [(1, 2)], "first", [False, True], id="a shared character is the later one's anchor"),
    pytest.param("ab", "V0 Z1 V1", [(0, 1)], "any", [True, False, False], id="zero-width at the end of a range"),
    pytest.param("ab", "V0 Z1 V1", [(1, 2)], "all", [False, True, True], id="zero-width at the start of a range"),
    pytest.param("ab", "V0 V1 Z2", [(1, 2)], "first", [False, True, True], id="zero-width at the end of text"),
    pytest.param("ab", "V0 V1 Z2", [(0, 9)], "first", [True, True, True], id="a range past the end of text"),
    pytest.param("ab", "V0 V1 Z2", [(0, 1)], "first", [True, False, False], id="zero-width outside"),
]


@pytest.mark.parametrize(("text", "shorts", "ranges", "rule", "mask"), MASKS)
def test_mask(text, shorts, ranges, rule, mask):
    assert decoded(text, shorts).mask(ranges, rule=rule) == mask
    assert decoded(text, shorts).mask(iter(ranges), rule=rule) == mask


@given(own.decoded_texts(), st.data(), st.sampled_from(["byte", "codepoint", "utf16"]))
def test_mask_as_the_reference(ours, data, unit):
    places = sorted(ours.unit_of(unit).values())
    place = st.sampled_from([*places, places[-1] + 3])
    pairs = data.draw(st.lists(st.tuples(place, place), max_size=3))
    ranges = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
    theirs = mirrored(ours)
    for rule in ("first", "any", "all", "majority"):
        assert theirs.mask(ranges, unit=unit, rule=rule) == ours.mask(ranges, unit=unit, rule=rule)


@given(own.cases())
def test_values_of_streams_as_the_reference(case):
    """The same questions on records that a stream made, not a constructor."""
    ours = reference.DecodeStream(case.drawn.reference, case.prompt, **case.options)
    theirs = detok.DecodeStream(case.drawn.tokenizer, case.prompt, **case.options)
    ours.push_tokens(case.token_ids)
    theirs.push_tokens(case.token_ids)
    expected, value = ours.flush()[1], theirs.flush()[1]
    assert value == mirrored(expected) == pickle.loads(pickle.dumps(value))
    for unit in ("byte", "codepoint", "utf16"):
        assert value.offsets(unit=unit) == expected.offsets(unit=unit)
        edges = expected.unit_of(unit).values()
        for start in edges:
            assert value.tokens_at(start, start + 2, unit=unit) == expected.tokens_at(start, start + 2, unit=unit)

"""Bad input of every kind at every door: the exception, its words, and a state that has not moved."""

import array
import ctypes

import detok
import numpy as np
import pytest
import small_tokenizers as small
from helpers import CountedId, CountingDecoder
from small_tokenizers import Piece

PIECES = [Piece(b"ab"), Piece(b"\xe4\xb8"), Piece(b"\x96!"), Piece(b"<s>", "special")]
AB, HALF, REST, SPECIAL = 256, 257, 258, 259
MIRROR = [*(bytes([b]) for b in range(256)), b"ab", b"\xe4\xb8", b"\x96!", b"<s>"]


def byte_level() -> detok.Tokenizer:
    return detok.Tokenizer.from_json(small.byte_level_json(PIECES))


def window() -> detok.Tokenizer:
    return detok.Tokenizer.load(CountingDecoder(MIRROR, frozenset([SPECIAL])))


TOKENIZERS = {"byte_level": byte_level, "window": window}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]()


def state(stream: detok.DecodeStream) -> tuple:
    return stream.output, dict(stream.pending), stream.token_count


# ------------------------------------------------------------------ one id

# name: (value, exception)
BAD_IDS = {
    "negative": (-1, detok.UnknownTokenError),
    "very negative": (-(2**63), detok.UnknownTokenError),
    "beyond 64 bits below": (-(2**70), detok.UnknownTokenError),
    "2**32": (2**32, detok.UnknownTokenError),
    "beyond 64 bits": (2**64, detok.UnknownTokenError),
    "far beyond": (10**30, detok.UnknownTokenError),
    "unmapped": (100_000, detok.UnknownTokenError),
    "last of 32 bits": (2**32 - 1, detok.UnknownTokenError),
    "True": (True, TypeError),
    "False": (False, TypeError),
    "float": (1.0, TypeError),
    "nan": (float("nan"), TypeError),
    "None": (None, TypeError),
    "str": ("1", TypeError),
    "bytes": (b"1", TypeError),
    "list": ([1], TypeError),
    "numpy bool": (np.bool_(True), TypeError),
    "numpy float": (np.float32(1), TypeError),
}
ALWAYS = [name for name, (value, _) in BAD_IDS.items() if value not in (100_000, 2**32 - 1)]


def called(value: object, error: type[Exception], index: int, call, *, sequence: bool) -> None:
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    if error is detok.UnknownTokenError:
        assert (caught.value.token_id, caught.value.index) == (value, index)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, detok.DetokError)
        assert str(value) in message
        assert str(index) in message
    elif sequence:
        # A type is named, and where in the sequence it stands.
        assert type(value).__name__ in message or repr(value) in message, message
        assert str(index) in message, message


@pytest.mark.parametrize("policy", ["error", "skip"])
@pytest.mark.parametrize("name", BAD_IDS)
def test_a_bad_id_changes_nothing(tokenizer, name, policy):
    value, error = BAD_IDS[name]
    if policy == "skip" and name not in ALWAYS:
        error = None
    stream = detok.DecodeStream(tokenizer, [AB], unknown_ids=policy)
    stream.push_tokens([AB, SPECIAL, HALF])
    before = state(stream)
    if error is None:
        # Unmapped ids are what the policy is for: a record, no text.
        stream.push_token(value)
        assert stream.token_count == before[2] + 1
        assert stream.output == before[0]
        return
    for call, index, sequence in [
        (lambda: stream.push_token(value), 0, False),
        (lambda: stream.step(value), 0, False),
        (lambda: stream.push_tokens([value]), 0, True),
        (lambda: stream.push_tokens([AB, REST, value, AB]), 2, True),
        (lambda: stream.push_tokens((AB, value)), 1, True),
    ]:
        called(value, error, index, call, sequence=sequence)
        assert state(stream) == before
    stream.push_tokens([REST, AB])
    _, everything = stream.flush()
    assert everything.text == "ab世!ab"
    assert everything.token_ids == [AB, SPECIAL, HALF, REST, AB]


@pytest.mark.parametrize("name", BAD_IDS)
def test_a_bad_id_in_one_call(tokenizer, name):
    value, error = BAD_IDS[name]
    for call in [
        lambda: tokenizer.decode([AB, value]),
        lambda: tokenizer.decode_attributed([AB, value]),
        lambda: tokenizer.decode_batch([[AB, value]]),
    ]:
        called(value, error, 1, call, sequence=True)
    if name in ALWAYS:
        called(value, error, 1, lambda: tokenizer.decode([AB, value], unknown_ids="skip"), sequence=True)
    else:
        assert tokenizer.decode([AB, value, AB], unknown_ids="skip") == "abab"


@pytest.mark.parametrize("name", ALWAYS)
def test_a_bad_id_at_the_end_of_a_prompt(tokenizer, name):
    value, error = BAD_IDS[name]
    prompt = [AB, AB, value]
    stream = detok.DecodeStream(tokenizer)
    stream.push_tokens([AB, HALF])
    before = state(stream)
    for call in [
        lambda: detok.DecodeStream(tokenizer, prompt),
        lambda: tokenizer.decode_attributed([AB], prompt_token_ids=prompt),
        lambda: stream.reset(prompt),
        lambda: list(tokenizer.stream([AB], prompt_token_ids=prompt)),
    ]:
        called(value, error, 2, call, sequence=True)
    assert state(stream) == before


def test_unmapped_prompt_ids_are_dropped(tokenizer):
    """They may lie between the tokenizer's vocabulary and the model's."""
    for prompt in ([100_000], [2**32 - 1] * 3, [AB, 100_000], [AB] * 8 + [100_000] * 8):
        stream = detok.DecodeStream(tokenizer, prompt)
        stream.push_token(AB)
        assert stream.next_chunk().text == "ab"


def test_unmapped_prompt_ids_do_not_part_a_character():
    stream = detok.DecodeStream(byte_level(), [AB, HALF, 100_000, 2**32 - 1])
    assert stream.step(REST) == "世!"
    # Left broken, the prompt's own U+FFFD is the prompt's.
    stream.reset([AB, HALF, 100_000])
    assert stream.step(AB) == "ab"


def test_the_first_bad_id_is_named(tokenizer):
    for first, second in [(100_000, 100_001), (-1, 2**40), (2**40, -1)]:
        with pytest.raises(detok.UnknownTokenError) as caught:
            tokenizer.decode([AB, first, second])
        assert (caught.value.token_id, caught.value.index) == (first, 1)


def test_an_index_that_raises():
    class Bad:
        def __index__(self):
            raise ZeroDivisionError("no number today")

    class Wrong:
        def __index__(self):
            return "7"

    stream = detok.DecodeStream(byte_level())
    for value, error in [(Bad(), ZeroDivisionError), (Wrong(), TypeError)]:
        for call in [lambda v=value: stream.push_tokens([AB, v]), lambda v=value: stream.push_token(v)]:
            with pytest.raises(error):
                call()
    assert stream.token_count == 0


# ------------------------------------------------------------------ sequences

GOOD = [AB, HALF, REST]

SEQUENCES = {
    "list": GOOD,
    "tuple": tuple(GOOD),
    "range": range(AB, REST + 1),
    "array I": array.array("I", GOOD),
    "array i": array.array("i", GOOD),
    "array q": array.array("q", GOOD),
    "array Q": array.array("Q", GOOD),
    "uint32": np.array(GOOD, dtype=np.uint32),
    "int32": np.array(GOOD, dtype=np.int32),
    "int64": np.array(GOOD, dtype=np.int64),
    "uint64": np.array(GOOD, dtype=np.uint64),
    "strided": np.array([AB, 0, HALF, 0, REST, 0], dtype=np.int64)[::2],
    "reversed": np.array(GOOD[::-1], dtype=np.uint32)[::-1],
    "column": np.array([[AB, 1], [HALF, 1], [REST, 1]], dtype=np.int32)[:, 0],
    "read-only": np.frombuffer(np.array(GOOD, dtype=np.uint32).tobytes(), dtype=np.uint32),
    "memoryview": memoryview(array.array("I", GOOD)),
    "ctypes": (ctypes.c_uint32 * 3)(*GOOD),
    "native order named": np.array(GOOD, dtype=np.dtype(np.uint32).newbyteorder("=")),
    "list of numpy ints": list(np.array(GOOD, dtype=np.int64)),
    "objects with __index__": [CountedId(i) for i in GOOD],
    "mixed list": [AB, np.uint32(HALF), CountedId(REST)],
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_that_hold_ids(tokenizer, name):
    stream = detok.DecodeStream(tokenizer, SEQUENCES[name])
    assert stream.push_tokens(SEQUENCES[name]) == len("ab世!".encode())
    assert stream.next_chunk().token_ids == GOOD
    assert tokenizer.decode(SEQUENCES[name]) == "ab世!"
    assert tokenizer.decode_batch([SEQUENCES[name]]) == ["ab世!"]
    assert tokenizer.decode_attributed(SEQUENCES[name]).token_ids == GOOD


EMPTY = {"list": [], "tuple": (), "numpy": np.array([], dtype=np.uint32), "array": array.array("I")}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_sequences(tokenizer, name):
    stream = detok.DecodeStream(tokenizer, EMPTY[name])
    assert stream.push_tokens(EMPTY[name]) == 0
    assert stream.next_chunk() is None
    assert tokenizer.decode(EMPTY[name]) == ""
    last, everything = stream.flush()
    assert not last
    assert not everything


def swapped(kind: type) -> np.ndarray:
    return np.array(GOOD, dtype=kind).astype(np.dtype(kind).newbyteorder())


# name: (value, exception)
BAD_SEQUENCES = {
    "str": ("abc", TypeError),
    "empty str": ("", TypeError),
    "bytes": (b"abc", TypeError),
    "bytearray": (bytearray(b"abc"), TypeError),
    "memoryview of bytes": (memoryview(b"abc"), TypeError),
    "generator": ((i for i in GOOD), TypeError),
    "iterator": (iter(GOOD), TypeError),
    "map": (map(int, GOOD), TypeError),
    "set": (set(GOOD), TypeError),
    "dict": (dict.fromkeys(GOOD), TypeError),
    "int": (AB, TypeError),
    "None": (None, TypeError),
    "float array": (np.array(GOOD, dtype=np.float64), TypeError),
    "float32 array": (np.array(GOOD, dtype=np.float32), TypeError),
    "array of doubles": (array.array("d", GOOD), TypeError),
    "bool array": (np.array([True, False]), TypeError),
    "uint8 array": (np.array([1, 2], dtype=np.uint8), TypeError),
    "int16 array": (np.array([1, 2], dtype=np.int16), TypeError),
    "complex array": (np.array([1j]), TypeError),
    "text array": (np.array(["1"]), TypeError),
    "byte-swapped 32": (swapped(np.uint32), TypeError),
    "byte-swapped 64": (swapped(np.int64), TypeError),
    "2-D": (np.array([GOOD, GOOD], dtype=np.uint32), ValueError),
    "2-D of one": (np.array([GOOD], dtype=np.int64), ValueError),
    "3-D": (np.zeros((1, 1, 1), dtype=np.int32), ValueError),
    "0-D": (np.array(AB, dtype=np.int64), (TypeError, ValueError)),
    "nested list": ([GOOD], TypeError),
}


@pytest.mark.parametrize("name", BAD_SEQUENCES)
def test_sequences_that_do_not(tokenizer, name):
    value, error = BAD_SEQUENCES[name]
    stream = detok.DecodeStream(tokenizer)
    stream.push_tokens([AB, HALF])
    before = state(stream)
    for call in [
        lambda: stream.push_tokens(value),
        lambda: stream.reset(value),
        lambda: detok.DecodeStream(tokenizer, value),
        lambda: tokenizer.decode(value),
        lambda: tokenizer.decode_attributed(value),
        lambda: tokenizer.decode_attributed([AB], prompt_token_ids=value),
        lambda: tokenizer.decode_batch([value]),
    ]:
        with pytest.raises(error) as caught:
            call()
        # A bad type is not a token that is unknown.
        assert not isinstance(caught.value, detok.DetokError)
        assert state(stream) == before


ARRAYS = {
    "int32": (np.int32, -5),
    "int64": (np.int64, -5),
    "int64 beyond": (np.int64, 2**40),
    "uint64 beyond": (np.uint64, 2**63 + 1),
    "uint32 unmapped": (np.uint32, 2**32 - 1),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_bad_ids_inside_arrays(tokenizer, name):
    kind, bad = ARRAYS[name]
    ids = np.array([AB, HALF, REST, bad, AB], dtype=kind)
    stream = detok.DecodeStream(tokenizer)
    for call, index in [
        (lambda: stream.push_tokens(ids), 3),
        (lambda: stream.push_tokens(ids[1::2]), 1),
        (lambda: tokenizer.decode(ids), 3),
        (lambda: tokenizer.decode_attributed(ids), 3),
    ]:
        with pytest.raises(detok.UnknownTokenError) as caught:
            call()
        assert (caught.value.token_id, caught.value.index) == (bad, index)
    assert stream.token_count == 0


# ------------------------------------------------------------------ flush and its end


def test_flush_inside_a_character(tokenizer):
    """A cut that is no border is refused, and nothing has happened."""
    stream = detok.DecodeStream(tokenizer)
    stream.push_tokens([AB, HALF, REST])  # ab世!, borders at 0 1 2 5 6
    before = state(stream)
    for cut in (3, 4):
        with pytest.raises(ValueError, match=str(cut)):
            stream.flush(truncate_output_to=cut)
        assert state(stream) == before
    last, everything = stream.flush(truncate_output_to=2)
    assert last.text == everything.text == "ab"
    assert [a.cut for a in everything.attributions] == [False, True, True]
    assert [(a.anchor.kind, a.anchor.byte_offset) for a in everything.attributions] == [
        ("visible", 0),
        ("zero_width", 2),
        ("zero_width", 2),
    ]


def test_flush_before_what_was_handed_out(tokenizer):
    stream = detok.DecodeStream(tokenizer)
    stream.push_tokens([AB, AB])
    assert stream.next_chunk().text == "abab"
    stream.push_token(AB)
    for cut in (0, 2, 3):
        with pytest.raises(ValueError, match=str(cut)):
            stream.flush(truncate_output_to=cut)
    assert stream.token_count == 3
    last, everything = stream.flush(truncate_output_to=5)
    assert (last.text, everything.text) == ("a", "ababa")


@pytest.mark.parametrize(("cut", "error"), [(-1, ValueError), (1.0, TypeError), ("1", TypeError), (b"1", TypeError)])
def test_flush_at_what_is_no_place(tokenizer, cut, error):
    stream = detok.DecodeStream(tokenizer)
    stream.push_token(AB)
    # A negative number is refused as such or as one too large for a size; both are the caller's error.
    with pytest.raises((error, OverflowError) if cut == -1 else error):
        stream.flush(truncate_output_to=cut)
    assert stream.flush()[1].text == "ab"


def test_flush_past_the_end_cuts_nothing(tokenizer):
    stream = detok.DecodeStream(tokenizer)
    stream.push_tokens([AB, HALF])
    _, everything = stream.flush(truncate_output_to=10_000)
    assert everything.text == "ab\ufffd"
    assert not any(a.cut for a in everything.attributions)


def test_after_flush_only_reset_goes_on(tokenizer):
    stream = detok.DecodeStream(tokenizer)
    stream.push_tokens([AB, HALF])
    stream.flush()
    for call in [
        lambda: stream.push_token(AB),
        lambda: stream.push_tokens([AB]),
        lambda: stream.push_tokens([]),
        lambda: stream.step(AB),
        lambda: stream.flush(),
    ]:
        with pytest.raises(detok.StreamFinishedError) as caught:
            call()
        assert isinstance(caught.value, RuntimeError)
    assert stream.next_chunk() is None
    assert (stream.output, stream.token_count) == ("ab\ufffd", 2)
    stream.reset()
    assert (stream.output, stream.token_count) == ("", 0)
    assert stream.step(AB) == "ab"


def test_output_needs_to_be_kept(tokenizer):
    stream = detok.DecodeStream(tokenizer, keep_output=False)
    stream.push_tokens([AB, AB])
    with pytest.raises(detok.StateError):
        _ = stream.output
    assert stream.next_chunk().text == "abab"
    stream.push_tokens([AB, HALF])
    last, rest = stream.flush()
    assert last.text == rest.text == "ab\ufffd"
    assert rest.token_ids == [AB, HALF]


# ------------------------------------------------------------------ options

BAD_OPTIONS = {
    "unknown_ids": ({"unknown_ids": "ignore"}, ValueError),
    "unknown_ids of a bool": ({"unknown_ids": True}, TypeError),
    "buffer below zero": ({"min_bytes_to_buffer": -1}, (ValueError, OverflowError)),
    "buffer of a float": ({"min_bytes_to_buffer": 1.5}, TypeError),
    "a name for specials": ({"keep_special_tokens": "<s>"}, TypeError),
    "an unknown special": ({"keep_special_tokens": ["<none>"]}, ValueError),
    "a misspelt option": ({"skip_specials": True}, TypeError),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options(name):
    options, error = BAD_OPTIONS[name]
    with pytest.raises(error):
        detok.DecodeStream(byte_level(), **options)


def test_the_legal_values_are_named():
    with pytest.raises(ValueError, match=r"error.*skip"):
        detok.DecodeStream(byte_level(), unknown_ids="ignore")
    with pytest.raises(ValueError, match=r"byte.*codepoint.*utf16"):
        byte_level().decode_attributed([AB]).spans(unit="grapheme")


def test_the_family_of_errors():
    """One base; the built-in that fits beside it."""
    for name, builtin in {
        "TokenizerLoadError": ValueError,
        "UnknownTokenError": ValueError,
        "StreamFinishedError": RuntimeError,
        "StateError": ValueError,
        "InternalError": RuntimeError,
    }.items():
        error = getattr(detok, name)
        assert issubclass(error, detok.DetokError)
        assert issubclass(error, builtin)
    assert issubclass(detok.DetokError, Exception)
    assert issubclass(detok.DetokWarning, UserWarning)


def test_a_stream_of_an_iterable_counts_ids_over_its_whole_length():
    tokenizer = detok.Tokenizer.from_token_bytes([b"a", b"b"])
    chunks = tokenizer.stream(iter([0, 1, 7, 0]))
    assert [next(chunks).text, next(chunks).text] == ["a", "b"]
    with pytest.raises(detok.UnknownTokenError, match="id 7 at index 2") as caught:
        next(chunks)
    assert (caught.value.token_id, caught.value.index) == (7, 2)
    assert list(chunks) == []  # like a generator that raised


def test_an_int_too_long_to_write_out_is_described():
    stream = detok.DecodeStream(detok.Tokenizer.from_token_bytes([b"a"]))
    with pytest.raises(detok.UnknownTokenError, match=r"an int of 16610 bits\) at index 0"):
        stream.push_token(10**5000)


@pytest.mark.parametrize("far", [10**6, 10**30])
def test_positions_past_every_end(far):
    stream = detok.DecodeStream(detok.Tokenizer.from_token_bytes([b"a"]))
    stream.push_token(0)
    _, everything = stream.flush(far)
    assert everything.text == "a"
    assert everything.tokens_at(0, far) == range(1)
    assert everything.mask([(0, far)]) == [True]
    with pytest.raises(ValueError, match="byte_offset"):
        detok.TokenAnchor.visible(max(far, 2**32))
    with pytest.raises(TypeError, match="bool"):
        everything.tokens_at(True, far)


def test_an_unaligned_array_is_read_all_the_same():
    tokenizer = detok.Tokenizer.from_token_bytes([b"a", b"b"])
    ids = np.frombuffer(b"x\x01\0\0\0\0\0\0\0", np.uint32, offset=1)
    assert tokenizer.decode(ids) == "ba"


@pytest.mark.parametrize("ranges", [(0, 1), [[0]], [(0, 1, 2)], ["ab"]])
def test_ranges_of_a_mask_are_pairs(ranges):
    decoded = detok.Tokenizer.from_token_bytes([b"a"]).decode_attributed([0])
    with pytest.raises(TypeError):
        decoded.mask(ranges)
    assert decoded.mask([[0, 1]]) == [True]  # as JSON has them

"""The values that events are made of: they compare, hash, match, print, pickle, and never change."""

import copy
import gc
import pickle
import weakref

import detok
import pytest
from detok import (
    DecodedText,
    EngineUpdate,
    Finished,
    FinishReason,
    Marker,
    PositionLogprobs,
    RequestDecoder,
    SampledDelta,
    Start,
    StopMatch,
    TextDecodeOptions,
    TextDelta,
    TokenAnchor,
    TokenAttribution,
    TokenLogprob,
    TokenUsage,
)
from engine import marks, vocabulary

E4, BD, A0 = b"\xe4", b"\xbd", b"\xa0"  # 你


USAGE, REASON = TokenUsage(3, 2, 1), FinishReason("stop", "x")
MATCH = StopMatch("x", 4, 2, True)
FINISHED = Finished(USAGE, REASON, MATCH, ("kv",), [7, 8], 1)
TEXT = DecodedText("ab", [TokenAttribution(1, TokenAnchor.visible(0), cut=True)])
LOGPROB, TOP = TokenLogprob(1, -0.5, 2, token="a", token_bytes=b"a"), TokenLogprob(5, -1.5)
MARKER = Marker("r", ["<", 4, ">"], "</r>", also_end=[4, "x"], reopen=True, keep_markers=True)
POSITION = PositionLogprobs(LOGPROB, [LOGPROB, TOP])
SAMPLED = SampledDelta([1], [POSITION], token_texts=["a"])

# Arguments that have no place.
BY_NAME_ONLY = {
    TokenLogprob: ("token", "token_bytes"),
    SampledDelta: ("token_texts",),
    Marker: ("also_end", "reopen", "keep_markers"),
}

# class: (a value, others that differ from it in one part each, names for `match`)
VALUES = {
    TokenLogprob: (
        LOGPROB,
        [
            TokenLogprob(2, -0.5, 2, token="a", token_bytes=b"a"),
            TokenLogprob(1, -0.6, 2, token="a", token_bytes=b"a"),
            TokenLogprob(1, -0.5, 3, token="a", token_bytes=b"a"),
            TokenLogprob(1, -0.5, token="a", token_bytes=b"a"),
            TokenLogprob(1, -0.5, 2, token="b", token_bytes=b"a"),
            TokenLogprob(1, -0.5, 2, token="a", token_bytes=b"b"),
        ],
        ("token_id", "logprob", "rank"),
    ),
    PositionLogprobs: (
        POSITION,
        [PositionLogprobs(LOGPROB), PositionLogprobs(TOP, [LOGPROB, TOP]), PositionLogprobs(LOGPROB, [TOP, LOGPROB])],
        ("sampled", "top"),
    ),
    SampledDelta: (
        SAMPLED,
        [
            SampledDelta([1]),
            SampledDelta([1], [POSITION]),
            SampledDelta([1], [POSITION], token_texts=["b"]),
            SampledDelta([1], [PositionLogprobs(LOGPROB)], token_texts=["a"]),
        ],
        ("token_ids", "logprobs"),
    ),
    TokenUsage: (
        USAGE,
        [TokenUsage(2, 2, 1), TokenUsage(3, 3, 1), TokenUsage(3, 2)],
        ("prompt_token_count", "output_token_count", "cached_token_count"),
    ),
    FinishReason: (
        REASON,
        [FinishReason("stop"), FinishReason("stop", "y"), FinishReason("stop", 5), FinishReason("length")],
        ("kind", "stop"),
    ),
    StopMatch: (
        MATCH,
        [StopMatch(5, 4, 2, True), StopMatch("x", 3, 2, True), StopMatch("x", 4, 1, True), StopMatch("x", 4, 2)],
        ("stop", "byte_offset", "token_index", "cut"),
    ),
    Finished: (
        FINISHED,
        [
            Finished(TokenUsage(0, 0), REASON, MATCH, ("kv",), [7, 8], 1),
            Finished(USAGE, FinishReason("length"), MATCH, ("kv",), [7, 8], 1),
            Finished(USAGE, REASON, None, ("kv",), [7, 8], 1),
            Finished(USAGE, REASON, MATCH, None, [7, 8], 1),
            Finished(USAGE, REASON, MATCH, ("kv",), [7], 1),
            Finished(USAGE, REASON, MATCH, ("kv",), [7, 8], None),
        ],
        ("usage", "finish_reason", "stop_match", "kv_transfer_params", "dropped_token_ids", "first_cut_token"),
    ),
    Start: (
        Start([4, 1], [None, POSITION]),
        [Start([4, 1]), Start([4, 1], [POSITION, None]), Start([4])],
        ("prompt_token_ids", "prompt_logprobs"),
    ),
    TextDelta: (
        TextDelta(TEXT, SAMPLED, FINISHED),
        [
            TextDelta(TEXT, SAMPLED),
            TextDelta(TEXT, SampledDelta([1]), FINISHED),
            TextDelta(DecodedText("ab"), SAMPLED, FINISHED),
        ],
        ("decoded", "sampled", "finished"),
    ),
    Marker: (
        MARKER,
        [
            Marker("s", ["<", 4, ">"], "</r>", also_end=[4, "x"], reopen=True, keep_markers=True),
            Marker("r", ["<", 5, ">"], "</r>", also_end=[4, "x"], reopen=True, keep_markers=True),
            Marker("r", ["<", 4, ">"], "</s>", also_end=[4, "x"], reopen=True, keep_markers=True),
            Marker("r", ["<", 4, ">"], "</r>", also_end=["x", 4], reopen=True, keep_markers=True),
            Marker("r", ["<", 4, ">"], "</r>", also_end=[4, "x"], keep_markers=True),
            Marker("r", ["<", 4, ">"], "</r>", also_end=[4, "x"], reopen=True),
            Marker("r", ["<", "4", ">"], "</r>", also_end=[4, "x"], reopen=True, keep_markers=True),
        ],
        ("name", "start", "end"),
    ),
    TextDecodeOptions: (
        TextDecodeOptions(stop=["a.", "b"], stop_token_ids=[3], keep_special_tokens=["<s>", 4], fragments="empty"),
        [
            TextDecodeOptions(),
            TextDecodeOptions(stop=["b", "a."], stop_token_ids=[3], keep_special_tokens=["<s>", 4], fragments="empty"),
            TextDecodeOptions(stop=["a.", "b"], stop_token_ids=[4], keep_special_tokens=["<s>", 4], fragments="empty"),
            TextDecodeOptions(stop=["a.", "b"], stop_token_ids=[3], keep_special_tokens=["<s>"], fragments="empty"),
            TextDecodeOptions(stop=["a.", "b"], stop_token_ids=[3], keep_special_tokens=["<s>", 4]),
            *(
                TextDecodeOptions(
                    **{
                        "stop": ["a.", "b"],
                        "stop_token_ids": [3],
                        "keep_special_tokens": ["<s>", 4],
                        "fragments": "empty",
                    }
                    | other
                )
                for other in [
                    {"skip_special_tokens": False},
                    {"include_stop_str_in_output": True},
                    {"min_tokens": 1},
                    {"min_bytes_to_buffer": 1},
                    {"unknown_ids": "skip"},
                    {"sections": [MARKER]},
                    {"sections": [MARKER], "stop_scope": "content"},
                    {"sections": [MARKER], "stop_scope": "r"},
                ]
            ),
        ],
        None,
    ),
    EngineUpdate: (
        EngineUpdate(
            [1], logprobs=[TokenLogprob(1, -0.5)], prompt_token_ids=[4], prompt_logprobs=[None], cached_token_count=2
        ),
        [
            EngineUpdate(),
            EngineUpdate([1], logprobs=[TokenLogprob(1, -0.5)], prompt_token_ids=[4], prompt_logprobs=[None]),
            EngineUpdate([1], prompt_token_ids=[4], prompt_logprobs=[None], cached_token_count=2),
            EngineUpdate([1], logprobs=[TokenLogprob(1, -0.5)], prompt_token_ids=[4], cached_token_count=2),
            EngineUpdate(
                [1],
                logprobs=[TokenLogprob(1, -0.5)],
                prompt_token_ids=[5],
                prompt_logprobs=[None],
                cached_token_count=2,
            ),
            EngineUpdate(
                [1],
                logprobs=[TokenLogprob(1, -0.5)],
                prompt_token_ids=[4],
                prompt_logprobs=[None],
                cached_token_count=2,
                finish_reason="stop",
            ),
        ],
        None,
    ),
}
CLASSES = pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)


@CLASSES
def test_values_compare_hash_and_print(kind):
    value, others, _ = VALUES[kind]
    assert type(value) is kind
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        twin = pickle.loads(pickle.dumps(value, protocol))
        assert type(twin) is kind
        assert twin == value
        assert hash(twin) == hash(value)
        assert repr(twin) == repr(value)
    assert copy.copy(value) == copy.deepcopy(value) == value
    assert repr(value).startswith(kind.__name__ + "(")
    assert eval(repr(value), vars(detok).copy()) == value
    for other in others:
        assert value != other
        assert repr(value) != repr(other)
        assert pickle.loads(pickle.dumps(other)) == other
    assert len({value, *others}) == 1 + len(others)
    assert value != "x"
    assert value != 3
    assert value is not None
    assert (value == object()) is False
    with pytest.raises(TypeError):
        _ = value < value


@CLASSES
def test_values_are_frozen(kind):
    value, _, names = VALUES[kind]
    before = pickle.dumps(value)
    for name in [*(names or ("stop", "stop_token_ids", "token_ids", "min_tokens")), "anything"]:
        with pytest.raises((AttributeError, TypeError)):
            setattr(value, name, None)
        with pytest.raises((AttributeError, TypeError)):
            delattr(value, name)
    assert pickle.loads(before) == value
    with pytest.raises(TypeError):
        type("Sub", (kind,), {})


@CLASSES
def test_values_match_by_place(kind):
    value, _, names = VALUES[kind]
    if names is None:
        assert getattr(kind, "__match_args__", ()) == ()
        return
    assert kind.__match_args__[: len(names)] == names
    # A constructor takes the same, by place or by name.
    parts = [getattr(value, name) for name in names]
    more = {name: getattr(value, name) for name in BY_NAME_ONLY.get(kind, ())}
    assert kind(*parts, **more) == kind(**dict(zip(names, parts, strict=True)), **more) == value


def test_a_match_statement():
    tokenizer, (a, stop) = vocabulary("a", "STOP")
    decoder = RequestDecoder(tokenizer, [a], TextDecodeOptions(stop="STOP"))
    seen = []
    for event in [*decoder.push(EngineUpdate([a])), *decoder.push(EngineUpdate([a, stop]))]:
        match event:
            case Start(prompt):
                seen.append(list(prompt))
            case TextDelta(decoded, SampledDelta(ids), None):
                seen.append((decoded.text, ids))
            case TextDelta(
                decoded, sampled, Finished(TokenUsage(p, n), FinishReason("stop", word), StopMatch(_, end, index))
            ):
                seen.append((decoded.text, sampled.token_ids, p, n, word, end, index))
    assert seen == [[a], ("a", [a]), ("a", [a, stop], 1, 3, "STOP", 2, 2)]


def test_defaults():
    assert TokenLogprob(1, -0.5) == TokenLogprob(1, -0.5, None, token="", token_bytes=b"")
    assert list(PositionLogprobs(TOP).top) == []
    assert (SampledDelta([1]).logprobs, SampledDelta([1]).token_texts) == (None, None)
    assert TokenUsage(1, 2).cached_token_count == 0
    assert FinishReason("length").stop is None
    assert StopMatch("x", 1, 2).cut is False
    plain = Finished(USAGE, REASON)
    assert (plain.stop_match, plain.kv_transfer_params, plain.dropped_token_ids, plain.first_cut_token) == (
        None,
        None,
        [],
        None,
    )
    assert Start([1]).prompt_logprobs is None
    assert TextDelta(TEXT, SAMPLED).finished is None


BAD_VALUES = {
    "logprob of text": lambda: TokenLogprob(1, "0"),
    "logprob of a bool's id": lambda: TokenLogprob(True, 0.0),
    "logprob without a number": lambda: TokenLogprob(1),
    "token of bytes": lambda: TokenLogprob(1, 0.0, token=b"a"),
    "token_bytes of text": lambda: TokenLogprob(1, 0.0, token_bytes="a"),
    "token by place": lambda: TokenLogprob(1, 0.0, None, "a"),
    "position of a number": lambda: PositionLogprobs(-0.5),
    "top of numbers": lambda: PositionLogprobs(LOGPROB, [1]),
    "sampled of text": lambda: SampledDelta("a"),
    "sampled with numbers": lambda: SampledDelta([1], [0.5]),
    "sampled with texts of numbers": lambda: SampledDelta([1], token_texts=[1]),
    "sampled with one text": lambda: SampledDelta([1], token_texts="a"),
    "sampled with bytes for texts": lambda: SampledDelta([1], token_texts=b"a"),
    "usage of a float": lambda: TokenUsage(1.0, 2),
    "usage of one": lambda: TokenUsage(1),
    "reason of a number": lambda: FinishReason(1),
    "stop of bytes": lambda: StopMatch(b"x", 1, 2),
    "finished without a reason": lambda: Finished(USAGE),
    "finished with text": lambda: Finished(USAGE, "stop"),
    "start of text": lambda: Start("ab"),
    "delta of text": lambda: TextDelta("ab", SAMPLED),
    "delta without ids": lambda: TextDelta(TEXT),
    "delta with a list": lambda: TextDelta(TEXT, [1]),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_values_that_are_none(name):
    with pytest.raises(TypeError):
        BAD_VALUES[name]()


def test_values_out_of_range():
    for call, words in [
        (lambda: FinishReason("eos"), "stop.*length"),
        (lambda: SampledDelta([1, 2], [POSITION]), "2"),
        (lambda: SampledDelta([1, 2], token_texts=["a"]), "token_texts.*1 for 2"),
        (lambda: SampledDelta([1], token_texts=["\ud800"]), r"token_texts\[0\].*surrogate"),
        (lambda: TokenLogprob(-1, 0.0), "-1"),
        (lambda: TokenLogprob(2**32, 0.0), str(2**32)),
        (lambda: Start([1, 2], [None]), "2"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
    for call in [lambda: TokenUsage(-1, 0), lambda: StopMatch("x", -1, 0), lambda: StopMatch("x", 0, -1)]:
        with pytest.raises((ValueError, OverflowError)):
            call()


# ------------------------------------------------------------------ what an event gives away


@pytest.mark.parametrize("token_texts", [False, True])
def test_an_event_of_one_whole_token_is_like_any_other(token_texts):
    """It is made of less; nothing shows it."""
    tokenizer, (token,) = vocabulary("ab")
    plain, told = (RequestDecoder(tokenizer, [], token_texts=token_texts) for _ in range(2))
    for decoder in (plain, told):
        decoder.push(EngineUpdate())
    (event,) = plain.push(EngineUpdate([token]))
    (other,) = told.push(EngineUpdate([token], kv_transfer_params={}))
    sampled = SampledDelta([token], token_texts=["ab"] if token_texts else None)
    made = TextDelta(DecodedText("ab", [TokenAttribution(token, TokenAnchor.visible(0))]), sampled)
    for same in (other, made, pickle.loads(pickle.dumps(event)), copy.deepcopy(event)):
        assert same == event
        assert (hash(same), repr(same)) == (hash(event), repr(event))
        assert (same.decoded, same.sampled, same.finished) == (event.decoded, event.sampled, event.finished)
        assert (same.text, same.token_texts) == (event.text, event.token_texts) == ("ab", sampled.token_texts)
    changed = event.decoded
    changed.append(DecodedText("more"))
    assert event.decoded.text == "ab"


def test_events_of_one_token_are_shared():
    """Made once for a token, not for a stream; the collector of garbage does not look at them."""
    tokenizer, (word, part) = vocabulary("ab", E4)
    streams = [RequestDecoder(tokenizer, [], token_texts=texts) for texts in (False, False, True, True)]
    events = []
    for decoder in streams:
        decoder.push(EngineUpdate())
        events.append([*decoder.push(EngineUpdate([word])), *decoder.push(EngineUpdate([part]))])
    assert [e is f for e, f in zip(*events[:2], strict=True)] == [True, True]
    assert [e is f for e, f in zip(*events[2:], strict=True)] == [True, True]
    assert [[e.token_texts for e in pair] for pair in events[1:3]] == [[None, None], [("ab",), ("\\xe4",)]]
    assert [[e.text for e in pair] for pair in events] == [["ab", ""]] * 4
    assert not any(gc.is_tracked(event) for pair in events for event in pair)
    (told,) = streams[0].push(EngineUpdate([word]))
    assert (told.text, gc.is_tracked(told)) == ("\ufffdab", True)
    del events, streams, tokenizer, decoder, told
    gc.collect()


def test_decoded_text_is_a_copy_of_its_own():
    """Appending, draining and taking never change the event."""
    tokenizer, ids = vocabulary("ab", "cd")
    _, delta = RequestDecoder(tokenizer, []).push(EngineUpdate(ids))
    before = pickle.dumps(delta)
    one, two = delta.decoded, delta.decoded
    assert one is not two
    one.append(DecodedText("more"))
    assert (one.text, two.text, delta.decoded.text) == ("abcdmore", "abcd", "abcd")
    assert two.drain_prefix(2).text == "ab"
    assert delta.decoded.take().text == "abcd"
    assert (delta.decoded.text, marks(delta.decoded)) == ("abcd", "V0 V2")
    assert pickle.loads(before) == delta
    joined = DecodedText()
    for _ in range(3):
        joined.append(delta.decoded)
    assert (joined.text, delta.decoded.text) == ("abcd" * 3, "abcd")


def test_a_constructor_takes_a_copy():
    text = DecodedText("ab")
    delta = TextDelta(text, SAMPLED)
    text.append(DecodedText("more"))
    assert delta.decoded.text == "ab"
    ids = [1, 2]
    sampled, start = SampledDelta(ids), Start(ids)
    ids.append(3)
    assert (sampled.token_ids, list(start.prompt_token_ids)) == ([1, 2], [1, 2])


def test_lists_are_copies():
    delta = TextDelta(TEXT, SAMPLED, FINISHED)
    key = hash(delta)
    delta.sampled.token_ids.append(9)
    delta.sampled.logprobs.clear()
    delta.finished.dropped_token_ids.append(9)
    assert (delta.sampled.token_ids, delta.sampled.logprobs) == ([1], [POSITION])
    assert delta.finished.dropped_token_ids == [7, 8]
    assert hash(delta) == key


def test_an_event_outlives_its_decoder():
    tokenizer, ids = vocabulary("ab", E4)
    decoder = RequestDecoder(tokenizer, ids[:1])
    start, delta = decoder.push(EngineUpdate(ids, logprobs=[{i: -1.0} for i in ids], finish_reason="length"))
    del decoder, tokenizer
    gc.collect()
    assert (list(start.prompt_token_ids), delta.decoded.text, delta.sampled.token_ids) == (ids[:1], "ab\ufffd", ids)
    assert [p.sampled.token for p in delta.sampled.logprobs] == ["ab", "\\xe4"]


class Cycle:
    """Something that can lie on a cycle and be watched."""


@pytest.mark.parametrize("name", ["update", "decoder", "finished"])
def test_cycles_are_collected(name):
    """`kv_transfer_params` is any object, so it may hold what holds it."""
    tokenizer, (a,) = vocabulary("a")
    cycle = Cycle()
    update = EngineUpdate([a], kv_transfer_params=cycle, finish_reason="length" if name == "finished" else None)
    decoder = RequestDecoder(tokenizer, [])
    event = decoder.push(update)[-1]
    cycle.holder = {"update": update, "decoder": decoder, "finished": event.finished}[name]
    watch = weakref.ref(cycle)
    del cycle, update, decoder, event
    gc.collect()
    assert watch() is None

"""One request: updates of an engine in, `Start` and `TextDelta` out."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import detok
import numpy as np
import pytest
from detok import (
    DecodedText,
    EngineUpdate,
    Finished,
    FinishReason,
    RequestDecoder,
    SampledDelta,
    Start,
    StopMatch,
    TextDecodeOptions,
    TextDelta,
    TokenLogprob,
    TokenUsage,
)
from engine import collect, marks, places, serve, updates, vocabulary
from helpers import CountingDecoder, groupings, ones

HIDDEN, UNKNOWN = "<|hidden|>", None
E4, BD, A0 = b"\xe4", b"\xbd", b"\xa0"  # 你
TIMEOUT = 60

# ------------------------------------------------------------------ the contract's rows

# name: (tokens, options, chunk and records of each update, of the end too if no stop came; all records)
STREAMS = {
    "5": (["o", "k"], {}, [("o", "V0"), ("k", "V0"), ("", "")], "V0 V1"),
    "6": ([E4, BD, A0], {}, [("", ""), ("", ""), ("你", "V0 V0 V0"), ("", "")], "V0 V0 V0"),
    "7": (["abcd"], {"min_bytes_to_buffer": 2}, [("ab", "V0"), ("cd", "")], "V0"),
    "8": (["a", HIDDEN, "b"], {}, [("a", "V0"), ("", "Z0"), ("b", "V0"), ("", "")], "V0 Z1 V1"),
    "9": ([E4, HIDDEN, BD, A0], {}, [*[("", "")] * 3, ("你", "V0 Z0 V0 V0"), ("", "")], "V0 Z0 V0 V0"),
    "10": ([HIDDEN], {"skip_special_tokens": False}, [(HIDDEN, "V0"), ("", "")], "V0"),
    "10, kept": ([HIDDEN], {"keep_special_tokens": [HIDDEN]}, [(HIDDEN, "V0"), ("", "")], "V0"),
    "11": ([""], {}, [("", "Z0"), ("", "")], "Z0"),
    "12": ([E4, BD], {}, [("", ""), ("", ""), ("\ufffd", "V0 V0")], "V0 V0"),
    "13": (["ab", "STOP"], {"min_bytes_to_buffer": 32, "stop": "STOP"}, [("", ""), ("ab", "V0 Z2")], "V0 Z2"),
    "14": (["abcd"], {"min_bytes_to_buffer": 32, "stop": "cd"}, [("ab", "V0")], "V0"),
    "16": (
        [UNKNOWN, "H", UNKNOWN, "e"],
        {"unknown_ids": "skip"},
        [("", "Z0"), ("H", "V0"), ("", "Z0"), ("e", "V0"), ("", "")],
        "Z0 V0 Z1 V1",
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_contract(name):
    tokens, given, chunks, records = STREAMS[name]
    tokenizer, ids = vocabulary(*tokens)
    decoder = RequestDecoder(tokenizer, [], TextDecodeOptions(**given))
    events = []
    for update in updates(ones(ids)):
        if not decoder.is_finished:
            events += decoder.push(update)
    assert [(e.decoded.text, marks(e.decoded)) for e in events[1:]] == chunks
    outcome = collect(events)
    assert (outcome.text, marks(outcome.joined)) == ("".join(text for text, _ in chunks), records)
    assert outcome.joined.token_ids == outcome.sampled == ids
    for groups in groupings(ids, name):
        for intermediate in (True, False):
            other = serve(tokenizer, updates(groups), TextDecodeOptions(**given), intermediate=intermediate)
            assert (other.text, places(other.joined)) == (outcome.text, places(outcome.joined))


def test_contract_14_says_what_was_cut():
    tokenizer, ids = vocabulary("abcd")
    outcome = serve(tokenizer, updates([ids]), TextDecodeOptions(min_bytes_to_buffer=32, stop="cd"))
    assert [a.cut for a in outcome.joined.attributions] == [True]
    assert outcome.finished.stop_match == StopMatch("cd", 2, 0, True)


def test_contract_15_a_prompt_has_no_record():
    tokenizer, (hi, mark) = vocabulary("Hi", "!")
    outcome = serve(tokenizer, updates([[mark]]), prompt=[hi])
    assert (outcome.shown, marks(outcome.joined)) == (["!", ""], "V0")
    assert outcome.start == Start([hi])
    assert outcome.finished.usage == TokenUsage(1, 1)


def test_contract_17_two_clocks():
    tokenizer, ids = vocabulary(E4, BD, A0)
    decoder = RequestDecoder(tokenizer, ())
    start, first = decoder.push(EngineUpdate(ids[:1]))
    (second,) = decoder.push(EngineUpdate(ids[1:], finish_reason="length"))
    assert start == Start([])
    assert first == TextDelta(DecodedText(), SampledDelta(ids[:1]))
    assert (second.decoded.text, marks(second.decoded)) == ("你", "V0 V0 V0")
    assert second.decoded.token_ids == ids
    assert second.sampled == SampledDelta(ids[1:])
    assert second.finished == Finished(TokenUsage(0, 3), FinishReason("length"))


def test_contract_18_the_token_that_ends():
    tokenizer, ids = vocabulary("a", "!")
    decoder = RequestDecoder(tokenizer, ())
    _, delta = decoder.push(EngineUpdate(ids, finish_reason="stop", stop_token_id=ids[1]))
    assert (delta.decoded.text, marks(delta.decoded)) == ("a", "V0")
    assert delta.sampled == SampledDelta(ids)
    assert delta.finished == Finished(TokenUsage(0, 2), FinishReason("stop", ids[1]))
    assert decoder.abort_cause is None


# ------------------------------------------------------------------ order of events


def test_start_comes_once_and_every_update_has_a_delta():
    tokenizer, (a, half, end) = vocabulary("a", E4, "<|end|>")
    decoder = RequestDecoder(tokenizer, [a, a])
    got = [decoder.push(EngineUpdate(ids)) for ids in ([], [a], [half], [end, a], [])]
    assert [[type(event) for event in events] for events in got] == [[Start, TextDelta], *[[TextDelta]] * 4]
    assert [events[-1].decoded.text for events in got] == ["", "a", "", "\ufffda", ""]
    assert not decoder.is_finished
    (last,) = decoder.push(EngineUpdate([half], finish_reason="length"))
    assert decoder.is_finished
    # Flushed text and the end of the request are one event.
    assert last.decoded.text == "\ufffd"
    assert last.finished == Finished(TokenUsage(2, 5), FinishReason("length"))
    with pytest.raises(detok.StreamFinishedError):
        decoder.push(EngineUpdate([a]))


def test_an_iterable_of_chunks_holds_each_record_once():
    tokenizer, ids = vocabulary("ab", E4, BD, A0, "<|end|>", "c")
    for groups in groupings(ids * 5, "records", 8):
        outcome = serve(tokenizer, updates(groups))
        at_once = tokenizer.decode_attributed(ids * 5)
        assert (outcome.text, places(outcome.joined)) == (at_once.text, places(at_once))


def test_all_in_one_delta():
    """Start with the first update, then nothing, then everything: what the deltas of the other mode add up to."""
    tokenizer, (a, half, b) = vocabulary("a", E4, "b")
    lines = [
        EngineUpdate([a], logprobs=[TokenLogprob(a, -1.0)]),
        EngineUpdate([half], logprobs=[TokenLogprob(half, -2.0)], cached_token_count=3),
        EngineUpdate([b], logprobs=[TokenLogprob(b, -3.0)], finish_reason="length", kv_transfer_params="kv"),
    ]
    decoder = RequestDecoder(tokenizer, [a], intermediate=False)
    first, second, third = (decoder.push(update) for update in lines)
    assert (first, second) == ([Start([a])], [])
    (delta,) = third
    each = serve(tokenizer, lines, prompt=[a])
    assert delta == TextDelta(each.joined, SampledDelta(each.sampled, each.logprobs), each.finished)
    assert (delta.decoded.text, marks(delta.decoded)) == ("a\ufffdb", "V0 V1 V4")
    assert [p.sampled.logprob for p in delta.sampled.logprobs] == [-1.0, -2.0, -3.0]
    assert delta.finished == Finished(TokenUsage(1, 3, 3), FinishReason("length"), kv_transfer_params="kv")
    # One update may be all there is.
    alone = RequestDecoder(tokenizer, [], intermediate=False).push(EngineUpdate([a], finish_reason="length"))
    assert [type(event) for event in alone] == [Start, TextDelta]


def test_all_in_one_delta_of_a_stop():
    tokenizer, ids = vocabulary("a", "ST", "OP", "b")
    decoder = RequestDecoder(tokenizer, [], TextDecodeOptions(stop="STOP"), intermediate=False)
    assert [len(decoder.push(EngineUpdate([i]))) for i in ids[:2]] == [1, 0]
    (delta,) = decoder.push(EngineUpdate(ids[2:]))
    # No record has left before, so each shows that it was cut.
    assert [(a.anchor.byte_offset, a.cut) for a in delta.decoded.attributions] == [(0, False), (1, True), (1, True)]
    assert delta.sampled.token_ids == ids[:3]
    assert delta.finished.dropped_token_ids == ids[3:]
    assert decoder.is_finished


# ------------------------------------------------------------------ the end


@pytest.mark.parametrize("reason", ["stop", "length", "abort", "repetition"])
def test_reasons(reason):
    tokenizer, (a,) = vocabulary("a")
    outcome = serve(tokenizer, [EngineUpdate([a, a]), EngineUpdate(finish_reason=reason)])
    assert outcome.finished == Finished(TokenUsage(0, 2), FinishReason(reason))
    assert outcome.abort_cause is None


def test_usage_of_the_whole_request():
    """Ids count when they come, hidden and fragments too; cached tokens are the most that was seen."""
    tokenizer, (half, end, a) = vocabulary(E4, "<|end|>", "a")
    lines = [
        EngineUpdate([half, end], cached_token_count=3),
        EngineUpdate([], cached_token_count=7, kv_transfer_params={"a": 1}),
        EngineUpdate([a], cached_token_count=5),
        EngineUpdate([a, end], finish_reason="stop", kv_transfer_params=None),
    ]
    usage = serve(tokenizer, lines, prompt=[a] * 9).finished.usage
    assert (usage.prompt_token_count, usage.output_token_count, usage.cached_token_count) == (9, 5, 7)


def test_parameters_for_a_transfer_are_the_last_that_came():
    tokenizer, (a,) = vocabulary("a")
    first, second = object(), {"blocks": [1, 2]}
    for given, expect in [
        ([None, None], None),
        ([first, None], first),
        ([first, second], second),
        ([None, first], first),
    ]:
        lines = [EngineUpdate([a], kv_transfer_params=given[0])]
        lines += [EngineUpdate([a], kv_transfer_params=given[1], finish_reason="length")]
        assert serve(tokenizer, lines).finished.kv_transfer_params is expect


def test_parameters_for_a_transfer_are_there_when_a_stop_ends_it():
    """They may have come long before, and the last update may say nothing at all."""
    tokenizer, (a, b) = vocabulary("a", "b")
    decoder = RequestDecoder(tokenizer, [], TextDecodeOptions(stop="b"))
    decoder.push(EngineUpdate([a], kv_transfer_params={"blocks": 1}))
    (delta,) = decoder.push(EngineUpdate([b]))
    assert delta.finished.kv_transfer_params == {"blocks": 1}


def test_a_request_without_an_end():
    tokenizer, (a,) = vocabulary("a")
    decoder = RequestDecoder(tokenizer, [], request_id="req-7")
    for _ in range(2):
        with pytest.raises(detok.RequestError, match="req-7") as caught:
            decoder.close()
        assert caught.value.request_id == "req-7"
        assert isinstance(caught.value, (detok.DetokError, RuntimeError))
        decoder.push(EngineUpdate([a]))
    decoder.push(EngineUpdate(finish_reason="abort"))
    assert decoder.close() is None
    assert decoder.close() is None


def test_an_engines_error():
    """It names the request and changes nothing: a last update may still come."""
    tokenizer, (a, half, rest) = vocabulary("a", b"\xe4\xbd", b"\xa0")
    decoder = RequestDecoder(tokenizer, [], request_id="req-8")
    decoder.push(EngineUpdate([a, half]))
    with pytest.raises(detok.RequestError, match="req-8") as caught:
        decoder.push(EngineUpdate([a], finish_reason="error"))
    assert caught.value.request_id == "req-8"
    assert not decoder.is_finished
    assert decoder.abort_cause is None
    (delta,) = decoder.push(EngineUpdate([rest], finish_reason="abort"))
    assert (delta.decoded.text, delta.finished.usage) == ("你", TokenUsage(0, 3))


def test_an_error_of_the_engine_before_anything_else():
    tokenizer, (a,) = vocabulary("a")
    decoder = RequestDecoder(tokenizer, [a], request_id="req-9")
    with pytest.raises(detok.RequestError, match="req-9"):
        decoder.push(EngineUpdate(finish_reason="error"))
    assert [type(event) for event in decoder.push(EngineUpdate([a]))] == [Start, TextDelta]


def test_who_ended_it():
    """A caller that aborts the engine's request can tell a stop from a client that went away."""
    tokenizer, (a, stop, end) = vocabulary("a", "STOP", "<|end|>")
    options = TextDecodeOptions(stop="STOP", stop_token_ids=[end])
    for ids, cause in [([a], None), ([a, stop], "stop_string"), ([a, end], "stop_token_id")]:
        for reason in (None, "length"):
            decoder = RequestDecoder(tokenizer, [], options)
            assert decoder.abort_cause is None
            decoder.push(EngineUpdate(ids, finish_reason=reason))
            assert decoder.abort_cause == cause
            assert decoder.is_finished is (cause is not None or reason is not None)


# ------------------------------------------------------------------ prompts

# name: (with the decoder, with the first update, what comes). Prompts are places in a table: x, half a character.
PROMPTS = {
    "with the decoder": ([0, 1], None, [0, 1]),
    "with the update": (None, [0, 1], [0, 1]),
    "with both": ([0, 1], [0, 1], [0, 1]),
    "with both, empty": ([], [], []),
    "empty, with the decoder": ([], None, []),
    "empty, with the update": (None, [], []),
    "of another kind": ((0, 1), np.array([0, 1], np.uint32), [0, 1]),
    "with neither": (None, None, detok.RequestError),
    "with both, another": ([0, 1], [0, 0], ValueError),
    "with both, longer": ([0, 1], [0, 1, 1], ValueError),
    "with both, one empty": ([], [0], ValueError),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts(name):
    given, with_update, expect = PROMPTS[name]
    tokenizer, (_, _, rest) = vocabulary("x", b"\xe4\xbd", b"\xa0")
    decoder = RequestDecoder(tokenizer, given, request_id="req-3")
    first = EngineUpdate([rest], prompt_token_ids=with_update)
    if isinstance(expect, list):
        start, delta = decoder.push(first)
        assert list(start.prompt_token_ids) == expect
        # The prompt is the context of the first text, wherever it came from.
        assert delta.decoded.text == ("你" if expect else "\ufffd")
        # Later updates may repeat it or anything else.
        (again,) = decoder.push(EngineUpdate([0], prompt_token_ids=[1, 1, 1]))
        assert again.decoded.text == "x"
        (last,) = decoder.push(EngineUpdate(finish_reason="length"))
        assert last.finished.usage.prompt_token_count == len(expect)
        return
    with pytest.raises(expect) as caught:
        decoder.push(first)
    if expect is detok.RequestError:
        assert caught.value.request_id == "req-3"
        assert "req-3" in str(caught.value)
    else:
        assert not isinstance(caught.value, detok.DetokError)
    # Nothing has happened: the right update may follow.
    start, delta = decoder.push(EngineUpdate([0], prompt_token_ids=given if given is not None else [0]))
    assert list(start.prompt_token_ids) == list(given if given is not None else [0])
    assert delta.decoded.text == "x"


def test_a_first_update_that_fails_has_no_start():
    tokenizer, (a,) = vocabulary("a")
    decoder = RequestDecoder(tokenizer)
    with pytest.raises(detok.UnknownTokenError):
        decoder.push(EngineUpdate([a, 99], prompt_token_ids=[a, a]))
    start, delta = decoder.push(EngineUpdate([a], prompt_token_ids=[a]))
    assert (start, delta.decoded.text) == (Start([a]), "a")


def test_a_prompt_that_is_none():
    tokenizer, (a,) = vocabulary("a")
    for bad, error in [([a, -1], detok.UnknownTokenError), ([True], TypeError), ("a", TypeError), (a, TypeError)]:
        for call in [
            lambda p=bad: RequestDecoder(tokenizer, p),
            lambda p=bad: EngineUpdate([a], prompt_token_ids=p),
        ]:
            with pytest.raises(error):
                call()
    # Ids that are no tokens here may be tokens of the model: they are in the prompt all the same.
    start, delta = RequestDecoder(tokenizer, [a, 99]).push(EngineUpdate([a]))
    assert (list(start.prompt_token_ids), delta.decoded.text) == ([a, 99], "a")


# ------------------------------------------------------------------ all or nothing

ATOMIC = {
    "at once": ([10**6], 0),
    "at the end": ([0, 1, 2, 10**6], 3),
    "before a stop": ([0, 10**6, 3], 1),
    "of the last of 32 bits": ([1, 2**32 - 1], 1),
    "twice": ([0, 0, 10**6, 10**7], 2),
}


@pytest.mark.parametrize("intermediate", [True, False])
@pytest.mark.parametrize("finish", [None, "length"])
@pytest.mark.parametrize("name", ATOMIC)
def test_an_update_that_raises_changes_nothing(name, finish, intermediate):
    """Half characters, held text, counts and transfer parameters are as before, wherever the request stands."""
    bad, index = ATOMIC[name]
    tokenizer, ids = vocabulary("a", b"\xe4\xbd", b"\xa0S", "STOP", "ST", "OP")
    options = TextDecodeOptions(stop="STOP")
    good = [EngineUpdate([i], cached_token_count=1) for i in (0, 1, 2, 0, 4, 1, 2, 4)]
    good += [EngineUpdate([5, 0], kv_transfer_params="ours")]
    wrong = EngineUpdate(bad, finish_reason=finish, cached_token_count=99, kv_transfer_params="theirs")
    plain = RequestDecoder(tokenizer, [ids[1]], options, intermediate=intermediate)
    tried = RequestDecoder(tokenizer, [ids[1]], options, intermediate=intermediate)
    for update in good:
        with pytest.raises(detok.UnknownTokenError) as caught:
            tried.push(wrong)
        assert (caught.value.token_id, caught.value.index) == (bad[index], index)
        assert not tried.is_finished
        assert tried.push(update) == plain.push(update)
    assert tried.is_finished


def test_an_object_whose_decode_raises():
    """Its own exception comes out, and the request is as before."""

    class Failing(CountingDecoder):
        fails = False

        def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
            if self.fails:
                raise ZeroDivisionError("not today")
            return super().decode(token_ids, skip_special_tokens)

    decoder = Failing([b"a", b"ST", b"OP"])
    request = RequestDecoder(detok.Tokenizer.load(decoder), [], TextDecodeOptions(stop="STOP"))
    request.push(EngineUpdate([0, 1]))
    decoder.fails = True
    with pytest.raises(ZeroDivisionError, match="not today"):
        request.push(EngineUpdate([0, 2]))
    decoder.fails = False
    (delta,) = request.push(EngineUpdate([2]))
    assert delta.finished.stop_match == StopMatch("STOP", 1, 2, True)
    assert delta.finished.usage.output_token_count == 3


def test_an_object_that_reenters_the_request():
    """RuntimeError out of the inner call, never a deadlock; then the request goes on."""

    class Reentering(CountingDecoder):
        call: Callable[[], Any] | None = None

        def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
            if self.call is not None:
                self.call()
            return super().decode(token_ids, skip_special_tokens)

    decoder = Reentering([b"a", b"b"])
    request = RequestDecoder(detok.Tokenizer.load(decoder), [])
    request.push(EngineUpdate([0]))
    for call in [
        lambda: request.push(EngineUpdate([0])),
        lambda: request.close(),
        lambda: request.is_finished,
        lambda: request.abort_cause,
    ]:
        decoder.call = call
        with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError):
            pool.submit(request.push, EngineUpdate([1])).result(TIMEOUT)
    decoder.call = None
    (delta,) = request.push(EngineUpdate([1], finish_reason="length"))
    assert (delta.decoded.text, delta.finished.usage.output_token_count) == ("b", 2)


def test_many_threads_one_request():
    """No id is lost or counted twice."""
    tokenizer, ids = vocabulary(*(f"{i};" for i in range(4)))
    request = RequestDecoder(tokenizer, [])

    def work(i: int) -> list[detok.TextDelta]:
        events = [event for _ in range(500) for event in request.push(EngineUpdate([ids[i]]))]
        return [event for event in events if isinstance(event, TextDelta)]

    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(work, range(4), timeout=TIMEOUT))
    for i, deltas in enumerate(got):
        assert [delta.decoded.text for delta in deltas] == [f"{i};"] * 500
    (last,) = request.push(EngineUpdate(finish_reason="length"))
    assert last.finished.usage.output_token_count == 2000

"""What stands between an engine and a protocol: events of a choice, who tells the engine to abort, and when."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from math import exp, log
from typing import Any

import pytest
from detok import EngineUpdate, RequestError, Start, TextDecodeOptions, TextDelta, UnknownTokenError
from detok.data import demo_chat, demo_logprobs, demo_streams, demo_tokenizer
from detok.serve import replay
from detok.serve.engine import SamplingParams, UpdateQueue
from detok.serve.generation import generate_events
from detok.serve.prompt import LONG, Chat, encoded
from detok.serve.replay import ReplayEngine
from detok.serve.service import Service
from serving import WAIT, ScriptedEngine

HELLO, WORLD = 19556, 905
PARAMS = SamplingParams(request_id="r", max_tokens=100)
STREAMS = demo_streams()
TOKENIZER = demo_tokenizer()


def running(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that has a loop."""

    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    run.__name__ = test.__name__
    return run


def hello(**last: Any) -> tuple[EngineUpdate, EngineUpdate]:
    return EngineUpdate([HELLO]), EngineUpdate([WORLD], **last)


async def texts(engine: ScriptedEngine, options: TextDecodeOptions | None = None) -> list[str]:
    events = [event async for event in generate_events(engine, [1], PARAMS, options)]
    assert isinstance(events[0], Start)
    assert events[0].prompt_token_ids == [1]
    return [event.decoded.text for event in events[1:] if isinstance(event, TextDelta)]


# ---------------------------------------------------------------- events


@running
async def test_a_choice_that_ends_by_itself_is_not_aborted():
    engine = ScriptedEngine(*hello(finish_reason="length"))
    assert await texts(engine) == ["Hello", " world"]
    assert (engine.aborted, engine.generating) == ([], 0)
    assert engine.asked == [([1], PARAMS)]


@running
async def test_a_stop_is_told_to_the_engine_before_its_event_is_read():
    for options, cause in (
        (TextDecodeOptions(stop="wor"), "stop_string"),
        (TextDecodeOptions(stop_token_ids=[WORLD]), "stop_token_id"),
    ):
        engine = ScriptedEngine(*hello(), WAIT)
        async with aclosing(generate_events(engine, [1], PARAMS, options)) as events:
            async for event in events:
                if isinstance(event, TextDelta) and event.finished is not None:
                    assert engine.aborted == [("r", cause)]
                    break
        # That its reader did not wait for the end of the events is no other cause.
        assert engine.aborted == [("r", cause)]
        assert engine.generating == 0


@running
async def test_a_reader_that_leaves_is_told_to_the_engine():
    for why, cause in (({}, "client_gone"), ({"why_early": lambda: "server_stopping"}, "server_stopping")):
        engine = ScriptedEngine(*hello(), WAIT)
        async with aclosing(generate_events(engine, [1], PARAMS, **why)) as events:
            async for _ in events:
                assert engine.generating == 1
                break
        assert (engine.aborted, engine.generating) == ([("r", cause)], 0)


@running
async def test_a_reader_that_is_cancelled_is_told_to_the_engine():
    engine = ScriptedEngine(*hello(), WAIT)
    got = []

    async def read() -> None:
        async with aclosing(generate_events(engine, [1], PARAMS)) as events:
            got.extend([event async for event in events])

    reader = asyncio.create_task(read())
    while not engine.generating:
        await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert (engine.aborted, engine.generating, got) == ([("r", "client_gone")], 0, [])


@running
async def test_events_that_nobody_began_to_read_ask_the_engine_for_nothing():
    engine = ScriptedEngine(*hello())
    await generate_events(engine, [1], PARAMS).aclose()
    assert (engine.asked, engine.aborted) == ([], [])


@running
async def test_what_fails_is_told_to_the_engine_and_to_the_reader():
    failure = ValueError("no memory")
    for script, kind, words in (
        ((EngineUpdate([HELLO]), failure), RequestError, "the engine failed: ValueError: no memory"),
        ((EngineUpdate([HELLO]),), RequestError, 'request "r" has no end'),
        ((EngineUpdate([HELLO], finish_reason="error"),), RequestError, 'request "r"'),
        ((EngineUpdate([10**6]), WAIT), UnknownTokenError, "1000000"),
    ):
        engine = ScriptedEngine(*script)
        with pytest.raises(kind, match=words) as raised:
            await texts(engine)
        assert (raised.value.__cause__ is failure) is (failure in script)
        assert (engine.aborted, engine.generating) == ([("r", "error")], 0)


# ---------------------------------------------------------------- prompts


@running
async def test_a_long_chat_is_encoded_beside_the_loop():
    loop_thread = threading.current_thread()
    threads = []

    class Watched(ScriptedEngine):
        def render_chat(self, messages: Any) -> list[int]:
            threads.append(threading.current_thread())
            return super().render_chat(messages)

    for count, content in ((1, "Hi"), (1, "Hi" * LONG), (LONG, "")):
        messages = [{"role": "user", "content": content}] * count
        assert await encoded(Service(Watched()), Chat(messages), "messages") == ScriptedEngine().render_chat(messages)
    assert [thread is loop_thread for thread in threads] == [True, False, False]


# ---------------------------------------------------------------- the queue of an engine


@running
async def test_what_waits_in_a_queue_is_one_update():
    queue = UpdateQueue()
    queue.put([1], [{1: -1.0}])
    assert await anext(queue) == EngineUpdate([1], logprobs=[{1: -1.0}])
    queue.put([2], [{2: -2.0}])
    queue.put([3, 4], [{3: -3.0}, {4: -4.0}])
    queue.put([5], [{5: -5.0}], finish_reason="stop", stop_token_id=5)
    logprobs = [{token_id: -float(token_id)} for token_id in (2, 3, 4, 5)]
    assert await anext(queue) == EngineUpdate([2, 3, 4, 5], logprobs=logprobs, finish_reason="stop", stop_token_id=5)
    assert [update async for update in queue] == []
    with pytest.raises(ValueError, match="behind the last"):
        queue.put([6])


@running
async def test_a_reader_of_an_empty_queue_is_woken():
    queue = UpdateQueue()
    reader = asyncio.ensure_future(anext(queue))
    await asyncio.sleep(0)
    queue.put([])
    await asyncio.sleep(0)
    assert not reader.done()
    queue.put([7])
    queue.put([8])
    assert await reader == EngineUpdate([7, 8])
    # One that was cancelled takes nothing with it.
    reader = asyncio.ensure_future(anext(queue))
    await asyncio.sleep(0)
    reader.cancel()
    queue.put([9])
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await anext(queue) == EngineUpdate([9])


@running
async def test_an_error_comes_behind_what_was_sampled_before_it():
    queue = UpdateQueue()
    queue.put([1])
    queue.fail(MemoryError("no room"))
    assert await anext(queue) == EngineUpdate([1])
    with pytest.raises(MemoryError, match="no room"):
        await anext(queue)
    assert [update async for update in queue] == []


# ---------------------------------------------------------------- replay


async def played(engine: ReplayEngine, prompt: Any, **params: Any) -> tuple[list[int], str, list[EngineUpdate]]:
    given = SamplingParams(request_id="r", **{"max_tokens": 1000, **params})
    updates = [update async for update in engine.generate(prompt, given)]
    assert [update.finish_reason is None for update in updates] == [True] * (len(updates) - 1) + [False]
    return [token_id for update in updates for token_id in update.token_ids], updates[-1].finish_reason, updates


@running
async def test_a_prompt_that_was_recorded_has_its_recording():
    engine = ReplayEngine()
    for recorded in STREAMS.values():
        for _ in range(2):
            ids, reason, _ = await played(engine, list(recorded.prompt_ids))
            assert (tuple(ids), reason) == (recorded.ids, recorded.finish)


@running
async def test_other_prompts_have_the_recordings_in_turn():
    engine = ReplayEngine()
    for _ in range(2):
        for recorded in STREAMS.values():
            ids, *_ = await played(engine, [7, 8])
            assert tuple(ids) == recorded.ids


@running
async def test_recordings_are_as_long_as_they_are_wanted():
    engine = ReplayEngine()
    stream = STREAMS["sql"]
    prompt, ids = stream.prompt_ids, list(stream.ids)
    whole = len(ids)
    for params, expected, why in (
        ({"max_tokens": 5}, ids[:5], "length"),
        ({"max_tokens": whole}, ids, "stop"),
        ({"max_tokens": 2 * whole + 3, "ignore_eos": True}, ids + ids + ids[:3], "length"),
        ({"max_tokens": whole, "ignore_eos": True}, ids, "length"),
        ({"min_tokens": whole + 1}, ids + ids, "stop"),
        ({"min_tokens": whole + 1, "max_tokens": whole + 2}, ids + ids[:2], "length"),
    ):
        assert (await played(engine, prompt, **params))[:2] == (expected, why)


@running
async def test_recordings_have_the_logprobs_of_their_model():
    engine = ReplayEngine()
    for name, stream in STREAMS.items():
        positions = demo_logprobs()[name]
        prompt, answer = positions[: len(stream.prompt_ids)], positions[len(stream.prompt_ids) :]
        *_, updates = await played(engine, stream.prompt_ids, logprobs=5, prompt_logprobs=5)
        assert updates[0].prompt_logprobs == prompt
        assert [position for update in updates for position in update.logprobs] == answer
        assert [position.sampled.token_id for position in answer] == list(stream.ids)
        assert prompt[0] is None
        for position in [*prompt[1:], *answer]:
            tops = [entry.logprob for entry in position.top]
            assert len(tops) == 5
            assert tops == sorted(tops, reverse=True)
            own = position.sampled
            assert 0 >= own.logprob >= -30
            # Among the five if, and only if, its rank says so.
            assert (own.rank <= 5) is (own in position.top)
            assert sum(exp(logprob) for logprob in tops) < 1.003


@running
async def test_alternatives_are_as_many_as_are_wanted():
    engine = ReplayEngine()
    stream = STREAMS["sql"]
    whole = len(stream.ids)
    for alternatives in (0, 3):
        *_, updates = await played(
            engine, stream.prompt_ids, logprobs=alternatives, max_tokens=whole + 3, ignore_eos=True
        )
        positions = [position for update in updates for position in update.logprobs]
        assert {len(position.top) for position in positions} == {alternatives}
        # A recording that starts anew has its logprobs anew.
        assert positions[whole:] == positions[:3]
        assert all(update.prompt_logprobs is None for update in updates)


@running
async def test_a_prompt_that_was_not_recorded_has_made_up_logprobs():
    for alternatives in (0, 2, 5):
        *_, updates = await played(ReplayEngine(), [3, 7, 9999], prompt_logprobs=alternatives, max_tokens=2)
        first, *asked = updates[0].prompt_logprobs
        assert first is None
        assert [position.sampled.token_id for position in asked] == [7, 9999]
        assert {position.sampled.logprob for position in asked} == {-log(TOKENIZER.vocab_size)}
        for position in asked:
            named = [entry.token_id for entry in position.top]
            assert len(set(named)) == len(named) == alternatives
            assert named[:1] == [position.sampled.token_id][:alternatives]


def test_a_pace_joins_what_a_slow_reader_has_missed(monkeypatch):
    now = 100.0
    monkeypatch.setattr(replay, "monotonic", lambda: now)

    async def read() -> list[int]:
        nonlocal now
        counts = []
        params = SamplingParams(request_id="r", max_tokens=20)
        async for update in ReplayEngine(pace=10).generate(STREAMS["greek"].prompt_ids, params):
            counts.append(len(update.token_ids))
            now += 0.1 if len(counts) < 4 else 0.75
        return counts

    now = 100.1
    counts = asyncio.run(read())
    assert counts[:4] == [1, 1, 1, 1]
    # What would have come in 0.75 s, and by then was not read.
    assert set(counts[4:-1]) <= {6, 7, 8}
    assert sum(counts) == 20
    for wrong in (-1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="pace"):
            ReplayEngine(pace=wrong)


def test_a_chat_is_what_the_model_was_trained_on():
    engine = ReplayEngine()
    for recorded in (STREAMS["chat"], STREAMS["sql"]):
        question = recorded.prompt.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        assert engine.render_chat([{"role": "user", "content": question}]) == list(recorded.prompt_ids)
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert demo_chat(turns).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>")
    assert TOKENIZER.decode(engine.render_chat(turns), skip_special_tokens=False) == demo_chat(turns)

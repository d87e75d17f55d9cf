"""Streams of events over iterables and async iterables: order, ends, errors, and what is left behind (nothing)."""

import asyncio
import gc
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import aclosing, closing, suppress
from typing import Any

import detok
import pytest
from detok import EngineUpdate, RequestDecoder, Start, TextDecodeOptions, TextDelta, adecode_events, decode_events
from engine import collect, serve, vocabulary

TIMEOUT = 60
TOKENIZER, (A, HALF, REST, ST, OP, END) = vocabulary("a", b"\xe4\xbd", b"\xa0", "ST", "OP", "<|end|>")
STOP = TextDecodeOptions(stop="STOP")


class Watched:
    """An engine's updates: what was asked for, and how often it was closed."""

    def __init__(
        self,
        updates: Iterable[EngineUpdate],
        error: BaseException | None = None,
        closing: BaseException | None = None,
    ) -> None:
        self.updates, self.error, self.closing = list(updates), error, closing
        self.asked = 0
        self.closed = 0

    def take(self) -> EngineUpdate | None:
        assert not self.closed
        self.asked += 1
        if self.asked <= len(self.updates):
            return self.updates[self.asked - 1]
        if self.error is not None:
            raise self.error
        return None

    def closes(self) -> None:
        self.closed += 1
        if self.closing is not None:
            raise self.closing


class Source(Watched):
    def __iter__(self) -> Iterator[EngineUpdate]:
        return self

    def __next__(self) -> EngineUpdate:
        update = self.take()
        if update is None:
            raise StopIteration
        return update

    def close(self) -> None:
        self.closes()


class AsyncSource(Watched):
    """Every update, and the closing, passes the loop once."""

    def __aiter__(self) -> AsyncIterator[EngineUpdate]:
        return self

    async def __anext__(self) -> EngineUpdate:
        await asyncio.sleep(0)
        update = self.take()
        if update is None:
            raise StopAsyncIteration
        return update

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.closes()


class TwoParts(Watched):
    """An iterable that is not its own iterator, plain or asynchronous; both can be closed."""

    def __init__(self, part: Watched, closing: BaseException | None = None) -> None:
        super().__init__([], closing=closing)
        self.part = part

    def __iter__(self) -> Watched:
        return self.part

    __aiter__ = __iter__

    def close(self) -> None:
        self.closes()

    async def aclose(self) -> None:
        self.closes()


def updates(*groups: list[int], finish: str | None = "length") -> list[EngineUpdate]:
    """One update a group; the last one is the end."""
    return [
        EngineUpdate(group, finish_reason=finish if n == len(groups) else None, prompt_token_ids=[A])
        for n, group in enumerate(groups, 1)
    ]


LINES = {
    "plain": (updates([A], [HALF], [REST, A]), None, "a你a"),
    "one update": (updates([A, A]), None, "aa"),
    "ended by a stop": (updates([A], [ST], [OP, A], [A]), STOP, "a"),
    "ended by a stop at once": (updates([ST, OP], [A]), STOP, ""),
    "ended by a stop id": (updates([A], [END], [A]), TextDecodeOptions(stop_token_ids=[END]), "a"),
    "ended by the engine's token": (updates([A], [END], finish="stop"), None, "a"),
}


def run(work: Callable[[], Any]) -> Any:
    """Runs a coroutine on a loop of its own; nothing may be pending when it is over, and nothing is reported."""
    reports = []

    async def watched() -> Any:
        loop = asyncio.get_running_loop()
        loop.set_debug(True)
        loop.slow_callback_duration = 1e9
        loop.set_exception_handler(lambda _, context: reports.append(context))
        result = await asyncio.wait_for(work(), TIMEOUT)
        gc.collect()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = asyncio.run(watched())
        gc.collect()
    assert reports == []
    return result


def taken_before_error(events: Iterator[Any], error: type[BaseException], **match: Any) -> tuple[list[Any], Any]:
    """The events that came, and the error that came then."""
    seen = []

    def take() -> None:
        for event in events:
            seen.append(event)

    with pytest.raises(error, **match) as caught:
        take()
    return seen, caught.value


async def gathered(source: Any, *args: Any, **kwargs: Any) -> list[Any]:
    return [event async for event in adecode_events(source, *args, **kwargs)]


# ------------------------------------------------------------------ both ways


@pytest.mark.parametrize("intermediate", [True, False])
@pytest.mark.parametrize("name", LINES)
def test_events_are_those_of_the_decoder(name, intermediate):
    lines, options, text = LINES[name]
    expect = serve(TOKENIZER, lines, options, None, intermediate=intermediate)
    source, later = Source(lines), AsyncSource(lines)
    events = list(decode_events(source, TOKENIZER, options, intermediate=intermediate))
    assert collect(events).text == expect.text == text
    assert collect(events).finished == expect.finished
    assert run(lambda: gathered(later, TOKENIZER, options, intermediate=intermediate)) == events
    # Nothing is asked for behind the end, and the source is closed: the engine may stop there.
    for each in (source, later):
        assert each.asked == len(serve(TOKENIZER, lines, options, None).shown)
        assert each.closed == 1


def test_events_come_as_updates_come():
    """No update is read ahead of the events that are taken."""
    source = Source(updates([A], [A], [A]))
    events = decode_events(source, TOKENIZER)
    assert source.asked == 0
    assert [type(next(events)), source.asked] == [Start, 1]
    assert [type(next(events)), source.asked] == [TextDelta, 1]
    assert [type(next(events)), source.asked] == [TextDelta, 2]

    async def work() -> None:
        later = AsyncSource(updates([A], [A], [A]))
        stream = adecode_events(later, TOKENIZER)
        assert later.asked == 0
        seen = [(type(event), later.asked) async for event in stream]
        assert seen == [(Start, 1), (TextDelta, 1), (TextDelta, 2), (TextDelta, 3)]

    run(work)
    events.close()


def test_any_iterable_is_a_source():
    """Lists, generators, iterators without a `close`."""
    lines = updates([A], [A])
    for source in (lines, tuple(lines), iter(lines), (line for line in lines)):
        assert collect(decode_events(source, TOKENIZER)).text == "aa"

    async def produced():
        for line in lines:
            yield line

    class Bare:
        """An async iterable whose iterator has no `aclose`."""

        def __aiter__(self):
            self.left = list(lines)
            return self

        async def __anext__(self):
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop(0)

    for source in (produced(), Bare()):
        assert collect(run(lambda s=source: gathered(s, TOKENIZER))).text == "aa"


def test_generators_are_generators():
    events = decode_events(updates([A], [A]), TOKENIZER)
    assert isinstance(events, Generator)
    assert iter(events) is events
    assert isinstance(events.send(None), Start)
    with pytest.raises(ZeroDivisionError):
        events.throw(ZeroDivisionError())
    with pytest.raises(StopIteration):
        next(events)

    async def work(taken: int, made: Any = None) -> None:
        source = AsyncSource(updates([A], [A]))
        stream = made or adecode_events(source, TOKENIZER)
        assert isinstance(stream, AsyncGenerator)
        assert aiter(stream) is stream
        for kind in (Start, TextDelta)[:taken]:
            assert isinstance(await stream.asend(None), kind)
        with pytest.raises(ZeroDivisionError):
            await stream.athrow(ZeroDivisionError())
        assert source.closed == (made is None)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    for taken in (0, 1, 2):
        run(lambda taken=taken: work(taken))
        # Made where no loop runs, used on one.
        source = AsyncSource(updates([A], [A]))
        made = adecode_events(source, TOKENIZER)
        run(lambda taken=taken, made=made: work(taken, made))
        assert source.closed == 1


@pytest.mark.parametrize(
    "source",
    [None, 5, EngineUpdate(), "updates", [EngineUpdate([A], prompt_token_ids=[]), "x"], [[A]], [None]],
    ids=repr,
)
def test_sources_that_are_none(source):
    """A mistake of the caller, when it is called or when an event is asked for; not an error of the engine."""
    with pytest.raises(TypeError):
        list(decode_events(source, TOKENIZER))


# ------------------------------------------------------------------ ends and errors


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_closing_closes_the_source(taken):
    source = Source(updates([A], [A], [A]))
    events = decode_events(source, TOKENIZER)
    for _ in range(taken):
        next(events)
    for _ in range(2):
        events.close()
        assert (source.asked, source.closed) == (min(taken, 1), 1)
        assert list(events) == []

    async def work(later: AsyncSource, stream: Any) -> None:
        for _ in range(taken):
            await anext(stream)
        for _ in range(2):
            await stream.aclose()
            assert (later.asked, later.closed) == (min(taken, 1), 1)
            assert [event async for event in stream] == []

    async def made_and_closed(later: AsyncSource) -> None:
        await work(later, adecode_events(later, TOKENIZER))

    run(lambda: made_and_closed(AsyncSource(updates([A], [A], [A]))))
    later = AsyncSource(updates([A], [A], [A]))
    made = adecode_events(later, TOKENIZER)
    run(lambda: work(later, made))


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_events_that_nobody_holds_any_more_close_the_source(taken):
    """They end by themselves; asynchronous ones on their loop."""
    source = Source(updates([A], [A]))
    events = decode_events(source, TOKENIZER)
    for _ in range(taken):
        next(events)
    del events
    gc.collect()
    assert source.closed == 1

    async def work() -> None:
        later = AsyncSource(updates([A], [A]))
        stream = adecode_events(later, TOKENIZER)
        for _ in range(taken):
            await anext(stream)
        del stream
        gc.collect()
        while not later.closed:
            await asyncio.sleep(0)
        assert later.closed == 1

    run(work)


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_loop_that_ends_closes_the_source(taken):
    """`asyncio.run` leaves no generator open, and says nothing of it."""
    later, held = AsyncSource(updates([A], [A])), []

    async def work() -> None:
        held.append(adecode_events(later, TOKENIZER))
        for _ in range(taken):
            await anext(held[0])
        assert later.closed == 0

    run(work)
    assert later.closed == 1
    held.clear()
    gc.collect()
    assert later.closed == 1


def test_events_that_no_loop_ever_had_are_dropped_in_silence():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adecode_events(AsyncSource(updates([A])), TOKENIZER)
        gc.collect()


@pytest.mark.parametrize("taken", [0, 1])
def test_closing_runs_the_sources_cleanup(taken):
    """A generator's `finally` has run when `close` comes back."""
    trace = []

    def produced():
        try:
            yield from updates([A], [A], [A])
        finally:
            trace.append("closed")

    # A generator that was never started has nothing to clean up.
    with closing(decode_events(produced(), TOKENIZER)) as events:
        for _ in range(taken):
            next(events)
    assert trace == ["closed"] * taken

    async def aproduced():
        try:
            for line in updates([A], [A], [A]):
                yield line
        finally:
            await asyncio.sleep(0)
            trace.append("closed later")

    async def work() -> None:
        async with aclosing(adecode_events(aproduced(), TOKENIZER)) as stream:
            for _ in range(taken):
                await anext(stream)
        assert trace == ["closed", "closed later"] * taken

    run(work)


def test_a_source_without_an_end():
    """It names the request, after all that came."""
    lines = updates([A], [A], finish=None)
    for short in (lines, [], lines[:1]):
        source, later = Source(short), AsyncSource(short)
        events = decode_events(source, TOKENIZER, request_id="req-1")
        seen, caught = taken_before_error(events, detok.RequestError, match="req-1")
        assert caught.request_id == "req-1"
        assert len(seen) == len(short) + bool(short)
        with pytest.raises(detok.RequestError, match="req-1"):
            run(lambda s=later: gathered(s, TOKENIZER, request_id="req-1"))
        assert source.asked == later.asked == len(short) + 1


@pytest.mark.parametrize(
    "error", [ValueError("boiler"), KeyError("k"), TimeoutError(), detok.DetokError("x")], ids=repr
)
def test_a_source_that_raises(error):
    """The engine's error becomes the request's, which says which and why."""
    source, later = Source(updates([A], [A], finish=None), error), AsyncSource(updates([A], finish=None), error)
    events = decode_events(source, TOKENIZER, request_id="req-2")
    seen, caught = taken_before_error(events, detok.RequestError, match="req-2")
    assert (caught.request_id, caught.__cause__, len(seen)) == ("req-2", error, 3)
    assert source.closed == 1

    async def work() -> None:
        with pytest.raises(detok.RequestError) as caught:
            await gathered(later, TOKENIZER, request_id="req-2")
        assert (caught.value.request_id, caught.value.__cause__) == ("req-2", error)

    run(work)


class Hard(BaseException):
    """Not an Exception: like KeyboardInterrupt."""


@pytest.mark.parametrize("kind", [Hard, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_passes(kind):
    source = Source(updates([A], finish=None), kind("out"))
    with pytest.raises(kind):
        list(decode_events(source, TOKENIZER))
    # A loop would stop for some of them: driven by hand.
    step = adecode_events(AsyncSource([], kind("out")), TOKENIZER).__anext__()

    def drive() -> None:
        with suppress(StopIteration):
            while True:
                step.send(None)

    with pytest.raises(kind):
        drive()


def test_a_cancelled_source_passes():
    """CancelledError is the loop's, not the engine's."""
    source = AsyncSource(updates([A], finish=None), asyncio.CancelledError())

    async def work() -> None:
        with pytest.raises(asyncio.CancelledError):
            await gathered(source, TOKENIZER)

    run(work)
    assert source.closed == 1


def test_errors_of_decoding_pass():
    """They name a token, not a request that failed; the source is closed."""
    lines = [EngineUpdate([A], prompt_token_ids=[]), EngineUpdate([A, 99]), EngineUpdate([A], finish_reason="length")]
    source, later = Source(lines), AsyncSource(lines)
    seen, caught = taken_before_error(decode_events(source, TOKENIZER), detok.UnknownTokenError)
    assert (caught.token_id, caught.index, len(seen)) == (99, 1, 2)
    with pytest.raises(detok.UnknownTokenError):
        run(lambda: gathered(later, TOKENIZER))
    assert (source.closed, later.closed) == (1, 1)


@pytest.mark.parametrize("name", ["engine error", "no prompt"])
def test_errors_of_the_request(name):
    line = (
        EngineUpdate([A], finish_reason="error", prompt_token_ids=[]) if name == "engine error" else EngineUpdate([A])
    )
    source, later = Source([line, line]), AsyncSource([line, line])
    with pytest.raises(detok.RequestError, match="req-4") as caught:
        list(decode_events(source, TOKENIZER, request_id="req-4"))
    assert caught.value.request_id == "req-4"
    with pytest.raises(detok.RequestError, match="req-4"):
        run(lambda: gathered(later, TOKENIZER, request_id="req-4"))
    assert (source.asked, later.asked, source.closed, later.closed) == (1, 1, 1, 1)


def decoded_in_both_ways(make: Callable[[type[Source] | type[AsyncSource]], Any], taken: int | None = None) -> list:
    """Takes events (None: all) and closes; the error of each way, plain and asynchronous, that came out."""
    errors = []

    def plain() -> None:
        with closing(decode_events(make(Source), TOKENIZER, request_id="req-5")) as events:
            for _ in events if taken is None else range(taken):
                if taken is not None:
                    next(events)

    async def later() -> None:
        async with aclosing(adecode_events(make(AsyncSource), TOKENIZER, request_id="req-5")) as stream:
            if taken is None:
                async for _ in stream:
                    pass
            else:
                for _ in range(taken):
                    await anext(stream)

    for way in (plain, lambda: run(later)):
        try:
            way()
        except BaseException as error:
            errors.append(error)
        else:
            errors.append(None)
    return errors


@pytest.mark.parametrize("taken", [0, 1, 2, None])
def test_an_error_while_closing_is_not_lost(taken):
    """Nothing else is wrong: it is the error, and it is raised as it is."""
    made = []

    def make(kind: Any) -> Any:
        made.append(kind(updates([A], [A], [A]), closing=OSError("cannot close")))
        return made[-1]

    for error in decoded_in_both_ways(make, taken):
        assert (type(error), str(error)) == (OSError, "cannot close")
        assert not hasattr(error, "__notes__")
    assert [source.closed for source in made] == [1, 1]


NOTE = "and closing its source raised OSError: cannot close"


def test_an_error_while_closing_hides_no_other():
    """The engine's error is what the caller acts on; a cancellation too."""
    for error in decoded_in_both_ways(
        lambda kind: kind(updates([A], finish=None), ValueError("boiler"), OSError("cannot close"))
    ):
        assert isinstance(error, detok.RequestError)
        assert "boiler" in str(error)
        assert isinstance(error.__cause__, ValueError)
        assert error.__notes__ == [NOTE]
    bad_id = [EngineUpdate([99], prompt_token_ids=[])]
    for error in decoded_in_both_ways(lambda kind: kind(bad_id, closing=OSError("cannot close"))):
        assert isinstance(error, detok.UnknownTokenError)
        assert error.__notes__ == [NOTE]
    for error in decoded_in_both_ways(lambda kind: kind([], Hard("out"), OSError("cannot close"))):
        assert isinstance(error, Hard)
        assert error.__notes__ == [NOTE]


@pytest.mark.parametrize("taken", [0, 1, 2, None])
@pytest.mark.parametrize("first", [None, OSError])
@pytest.mark.parametrize("second", [None, OSError])
def test_an_iterable_and_its_iterator_are_both_closed(taken, first, second):
    made = []

    def make(kind: Any) -> Any:
        part = kind(updates([A], [A]), closing=first and first("cannot close the iterator"))
        made.append(TwoParts(part, second and second("cannot close")))
        return made[-1]

    for error in decoded_in_both_ways(make, taken):
        if first:
            assert str(error) == "cannot close the iterator"
            assert getattr(error, "__notes__", []) == [NOTE] * bool(second)
        else:
            assert str(error) == ("cannot close" if second else "None")
    assert [(source.part.closed, source.closed) for source in made] == [(1, 1)] * 2


def test_all_errors_of_a_request_come_together():
    """The source's, and one of each part that could not be closed."""

    def make(kind: Any) -> Any:
        return TwoParts(kind([], ValueError("boiler"), OSError("cannot close")), OSError("cannot close"))

    for error in decoded_in_both_ways(make):
        assert isinstance(error, detok.RequestError)
        assert error.__notes__ == [NOTE] * 2


def test_an_interrupt_while_closing_is_not_put_off():
    """An error of the engine may be caught, and the work go on; who interrupts does not want that."""
    for error in decoded_in_both_ways(lambda kind: TwoParts(kind([], ValueError("boiler"), Hard("out")))):
        assert isinstance(error, Hard)
        assert isinstance(error.__context__, detok.RequestError)


# ------------------------------------------------------------------ asyncio


def test_cancellation_leaves_nothing_behind():
    """Cancelled while it waits for the engine: the source is closed before the task is over."""
    for taken in (0, 1, 3):
        trace = []

        async def work(taken: int = taken, trace: list = trace) -> None:
            waits = asyncio.Event()

            async def produced():
                try:
                    for line in updates(*[[A]] * taken, finish=None) if taken else []:
                        yield line
                    waits.set()
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0)
                    trace.append("closed")

            seen = []

            async def consume() -> None:
                async with aclosing(adecode_events(produced(), TOKENIZER)) as stream:
                    async for event in stream:
                        seen.append(event)

            task = asyncio.create_task(consume())
            await waits.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert trace == ["closed"]
            assert len(seen) == taken + bool(taken)

        run(work)


@pytest.mark.parametrize("error", [None, ValueError("boiler"), asyncio.CancelledError()], ids=repr)
def test_cancellation_while_closing(error):
    """All parts are closed, and the task is cancelled, whatever the engine's error was."""

    class Slow(AsyncSource):
        async def aclose(self) -> None:
            self.closed += 1
            closes.set()
            await asyncio.Event().wait()

    async def work() -> None:
        task = asyncio.create_task(gathered(source, TOKENIZER))
        await closes.wait()
        assert (source.part.closed, source.closed) == (1, 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert (source.part.closed, source.closed) == (1, 1)

    closes = asyncio.Event()
    source = TwoParts(Slow(updates([A], finish="length" if error is None else None), error))
    run(work)


def test_a_timeout_while_closing_is_a_timeout():
    class Slow(AsyncSource):
        async def aclose(self) -> None:
            self.closed += 1
            await asyncio.Event().wait()

    source = Slow([], ValueError("boiler"))

    async def work() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await gathered(source, TOKENIZER)
        assert source.closed == 1

    run(work)


def test_cancellation_of_a_plain_loop_closes_the_source():
    """Without `aclosing`, too: the error passes through the generator, which closes its source."""
    trace = []

    async def work() -> None:
        waits = asyncio.Event()

        class Waiting(AsyncSource):
            async def __anext__(self):
                waits.set()
                await asyncio.Event().wait()

            async def aclose(self):
                await super().aclose()
                trace.append("closed")

        task = asyncio.create_task(gathered(Waiting([]), TOKENIZER))
        await waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert trace == ["closed"]

    run(work)


def test_a_consumer_that_raises():
    trace = []

    async def work() -> None:
        async def produced():
            try:
                for line in updates([A], [A]):
                    yield line
            finally:
                trace.append("closed")

        async def consume() -> None:
            async with aclosing(adecode_events(produced(), TOKENIZER)) as stream:
                async for _ in stream:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await consume()
        assert trace == ["closed"]

    run(work)


def test_a_timeout_of_one_event():
    """An event that does not come in time: the source is closed, the stream is over."""

    async def work() -> None:
        class Waiting(AsyncSource):
            async def __anext__(self):
                await asyncio.Event().wait()

        source = Waiting([])
        stream = adecode_events(source, TOKENIZER)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(stream)
        assert source.closed == 1
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    run(work)


class Speed:
    """How an engine runs beside its consumer: turns of the loop before each update, and how many lie ready at once."""

    def __init__(self, turns: int, burst: int) -> None:
        self.turns, self.burst = turns, burst

    async def queued(self, lines: list[EngineUpdate], queue: asyncio.Queue) -> None:
        for i, line in enumerate(lines):
            if i % self.burst == 0:
                for _ in range(self.turns):
                    await asyncio.sleep(0)
            await queue.put(line)
        await queue.put(None)


SPEEDS = {"slow": Speed(5, 1), "steady": Speed(1, 1), "in bursts": Speed(7, 4), "at once": Speed(0, 1000)}


async def drained(queue: asyncio.Queue) -> AsyncIterator[EngineUpdate]:
    while (line := await queue.get()) is not None:
        yield line


@pytest.mark.parametrize("consumer", [0, 1, 4])
def test_producers_of_different_speeds(consumer):
    """Many requests at once, each with its own engine: every one has the events it has alone, in its order."""
    plans = []
    for n, speed in enumerate(SPEEDS.values()):
        for count in (1, 2, 9, 40):
            ids = [[A, HALF, REST, END, ST][(n + i) % 5] for i in range(count)]
            plans.append((speed, updates(*([i] for i in ids)), TextDecodeOptions(stop="STOPS") if n % 2 else None))

    async def work() -> None:
        async def serve_one(speed: Speed, lines: list[EngineUpdate], options) -> list[Any]:
            queue: asyncio.Queue = asyncio.Queue(maxsize=3 if speed.burst < 1000 else 0)
            producer = asyncio.create_task(speed.queued(lines, queue))
            events = []
            async with aclosing(adecode_events(drained(queue), TOKENIZER, options)) as stream:
                async for event in stream:
                    events.append(event)
                    for _ in range(consumer):
                        await asyncio.sleep(0)
            producer.cancel()
            with suppress(asyncio.CancelledError):
                await producer
            return events

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(serve_one(*plan)) for plan in plans]
        for (_, lines, options), task in zip(plans, tasks, strict=True):
            assert task.result() == list(decode_events(lines, TOKENIZER, options))

    run(work)


def test_one_that_fails_leaves_the_others():
    async def work() -> None:
        bad = AsyncSource(updates([A], finish=None), ValueError("boiler"))
        good = [AsyncSource(updates(*[[A]] * 20)) for _ in range(5)]
        results = await asyncio.gather(
            *(gathered(source, TOKENIZER, request_id=str(i)) for i, source in enumerate([*good, bad])),
            return_exceptions=True,
        )
        assert [collect(events).text for events in results[:-1]] == ["a" * 20] * 5
        assert isinstance(results[-1], detok.RequestError)
        assert results[-1].request_id == "5"

    run(work)


def test_one_that_is_cancelled_leaves_the_others():
    async def work() -> None:
        waits = asyncio.Event()

        async def stuck():
            yield updates([A], finish=None)[0]
            waits.set()
            await asyncio.Event().wait()

        async def consume() -> list[Any]:
            async with aclosing(adecode_events(stuck(), TOKENIZER)) as stream:
                return [event async for event in stream]

        task = asyncio.create_task(consume())
        other = asyncio.create_task(gathered(AsyncSource(updates(*[[A]] * 20)), TOKENIZER))
        await waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert collect(await other).text == "a" * 20

    run(work)


def test_an_engine_hears_of_a_stop():
    """The source is closed at the match and not asked for more: it can stop sampling."""
    trace = []

    def produced():
        try:
            for line in updates([A], [ST], [OP], [A]):
                trace.append("sampled")
                yield line
        finally:
            trace.append("closed")

    events = list(decode_events(produced(), TOKENIZER, STOP))
    assert trace == ["sampled"] * 3 + ["closed"]
    assert events[-1].finished.stop_match.stop == "STOP"

    async def aproduced():
        try:
            for line in updates([A], [ST], [OP], [A]):
                trace.append("sampled")
                yield line
        finally:
            trace.append("closed")

    trace.clear()
    assert run(lambda: gathered(aproduced(), TOKENIZER, STOP)) == events
    assert trace == ["sampled"] * 3 + ["closed"]


def test_a_decoder_needs_no_loop():
    """`push` is the same wherever updates come from."""
    decoder = RequestDecoder(TOKENIZER)
    events = [event for line in updates([A], [HALF, REST]) for event in decoder.push(line)]
    assert events == list(decode_events(updates([A], [HALF, REST]), TOKENIZER))

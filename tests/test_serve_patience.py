"""A client that neither reads nor leaves does not hold its place for ever."""

import asyncio
import json
import selectors
import socket
from contextlib import suppress
from typing import Any

import pytest
from detok import EngineUpdate
from detok.adapters.openai import SseReader
from detok.data import demo_streams
from detok.serve.app import create_app
from detok.serve.limits import Limits
from detok.serve.patience import IdleClientError, patience
from detok.serve.stream import PIECE, EventStream
from serving import WAIT, ClockedEngine, ScriptedEngine, Served, served, until

MINUTE = 60


class ClockedLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes only when there is nothing else to do, and then at once."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = selectors.DefaultSelector()
        found = selector.select

        def select(timeout: float | None = None) -> Any:
            events = found(0)
            if not events:
                self.now += timeout or 0
            return events

        selector.select = select  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def end_of(seconds: float, *steps: tuple[str, float]) -> tuple[float, bool]:
    """When it ends, and whether it was ended: steps write or compute for so many seconds."""

    async def write(message: float) -> None:
        await asyncio.sleep(message)

    async def run() -> tuple[float, bool]:
        try:
            async with patience(seconds, write) as patient_write:
                for what, duration in steps:
                    await (patient_write if what == "write" else asyncio.sleep)(duration)
        except IdleClientError:
            return asyncio.get_running_loop().time(), True
        return asyncio.get_running_loop().time(), False

    with asyncio.Runner(loop_factory=ClockedLoop) as runner:
        return runner.run(run())


@pytest.mark.parametrize(
    ("seconds", "steps", "end"),
    [
        (MINUTE, [("write", 61)], (60, True)),
        (MINUTE, [("write", 59)] * 9, (531, False)),
        (MINUTE, [("write", 30), ("write", 59), ("write", 1000)], (149, True)),
        # The engine may take its time.
        (MINUTE, [("compute", 1000), ("write", 59), ("compute", 1000)], (2059, False)),
        (MINUTE, [("compute", 1000), ("write", 61)], (1060, True)),
        (0, [("write", 10_000)], (10_000, False)),
    ],
)
def test_a_write_that_waits_too_long_ends_it(seconds, steps, end):
    assert end_of(seconds, *steps) == end


def test_other_ends_are_what_they_are():
    async def write(message: object) -> None:
        await asyncio.sleep(0)

    async def fail(error: BaseException) -> None:
        async with patience(MINUTE, write) as patient_write:
            await patient_write(None)
            raise error

    async def cancelled() -> bool:
        task = asyncio.create_task(fail_never())
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return task.cancelled()

    async def fail_never() -> None:
        async with patience(MINUTE, write):
            await asyncio.Event().wait()

    for error in (TimeoutError("another"), ConnectionError("gone"), ValueError("wrong")):
        with pytest.raises(type(error), match=str(error)) as raised:
            asyncio.run(fail(error))
        assert raised.value is error
    assert asyncio.run(cancelled())


def test_a_long_chunk_is_written_in_pieces():
    """So a reader that takes its time for it is seen to read."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def write() -> None:
        stream = EventStream(send)
        await stream.write(b"a")
        await stream.write(b"b" * (2 * PIECE + 1), is_last=True)

    asyncio.run(write())
    assert sent.pop(0)["type"] == "http.response.start"
    assert [(len(message["body"]), message["more_body"]) for message in sent] == [
        (1, True),
        (PIECE, True),
        (PIECE, True),
        (1, False),
    ]


# ---------------------------------------------------------------- the application


def answered(app: Any, body: dict[str, Any], send: Any, *, pause: float | None = None) -> float:
    """Asks for a completion, and has when the application was done with it; `pause` comes before each byte."""
    sent = json.dumps(body).encode()
    messages = [{"type": "http.request", "body": sent[at : at + 1], "more_body": True} for at in range(len(sent))]
    if pause is None:
        messages = [{"type": "http.request", "body": sent, "more_body": False}]

    async def receive() -> Any:
        if not messages:
            await asyncio.Event().wait()
        await asyncio.sleep(pause or 0)
        return messages.pop(0)

    async def run() -> float:
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": headers}
        await app(scope, receive, send)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=ClockedLoop) as runner:
        return runner.run(run())


@pytest.mark.parametrize(("stream", "end"), [(True, 7), (False, 6)])
def test_a_client_that_does_not_read_holds_up_no_server_that_stops(stream, end):
    engine = ScriptedEngine(*[EngineUpdate([19556])] * 3, EngineUpdate([905], finish_reason="length"))
    app = create_app(engine)
    service = app.state.service
    sent: list[Any] = []

    async def send(message: Any) -> None:
        if sent:
            await asyncio.Event().wait()
        sent.append(message)

    async def stopped(*call: Any) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(app(*call))
        loop.call_later(1, service.stop, 5)
        # What a server does at last.
        loop.call_later(7, task.cancel)
        await task

    assert answered(stopped, {"prompt": "x", "stream": stream}, send) == end
    assert len(sent) == 1
    assert [cause for _, cause in engine.aborted] == ["server_stopping"] * stream
    assert service.open_requests.count == 0
    assert service.metrics.requests.values == {("completions", "503"): 1}


def test_a_body_that_drips_is_refused_at_its_deadline():
    app = create_app(ScriptedEngine(), Limits(idle_seconds=MINUTE))
    told: list[Any] = []

    async def send(message: Any) -> None:
        told.append(message)

    assert answered(app, {"prompt": "x" * 100}, send, pause=59) == MINUTE
    assert told[0]["status"] == 408
    assert "was not there after 60 seconds" in json.loads(told[1]["body"])["error"]["message"]
    assert app.state.service.open_requests.count == 0


@pytest.mark.parametrize(("pause", "is_read"), [(59, True), (61, False)])
def test_an_answer_that_is_no_stream_waits_for_its_reader_too(pause, is_read):
    token_ids = demo_streams()["greek"].ids * 400
    engine = ScriptedEngine(EngineUpdate(token_ids, finish_reason="length"))
    app = create_app(engine, Limits(idle_seconds=MINUTE))
    status, parts, waited = 0, [], 0

    async def send(message: Any) -> None:
        nonlocal status, waited
        # Its place is held for as long as it is on its way.
        assert app.state.service.open_requests.count == 1
        if message["type"] == "http.response.start":
            status = message["status"]
            return
        await asyncio.sleep(pause)
        waited += 1
        parts.append(message["body"])

    end = answered(app, {"prompt": "x", "return_token_ids": True}, send)
    assert app.state.service.open_requests.count == 0
    counted = app.state.service.metrics.requests.values
    if is_read:
        assert waited > 1
        assert all(len(part) <= PIECE for part in parts)
        assert json.loads(b"".join(parts))["choices"][0]["token_ids"] == list(token_ids)
        assert (status, counted) == (200, {("completions", "200"): 1})
    else:
        assert (end, waited, counted) == (MINUTE, 0, {("completions", "499"): 1})


class OneFailsLate(ScriptedEngine):
    """The first choice says something long, and the second fails when it is told to."""

    async def generate(self, prompt_token_ids: Any, params: Any) -> Any:
        if params.request_id.endswith("-1"):
            await self.may_fail.wait()
            raise ValueError("out of memory")
        async for update in super().generate(prompt_token_ids, params):
            yield update

    def __init__(self, *script: Any) -> None:
        super().__init__(*script)
        self.may_fail = asyncio.Event()


@pytest.mark.parametrize("count", [1, 400])
def test_an_error_does_not_tear_an_event(count, caplog):
    """Where one is broken off within, nothing follows; between two, the error does."""
    engine = OneFailsLate(EngineUpdate(demo_streams()["greek"].ids * count), WAIT)
    data, ends = b"", []

    async def send(message: Any) -> None:
        nonlocal data
        if engine.may_fail.is_set() and not caplog.records:
            # The socket is full.
            await asyncio.Event().wait()
        if message["type"] == "http.response.body":
            data += message["body"]
            ends.append(not message["more_body"])
            if len(ends) == 2:
                # The prompt, and of what is said the first piece.
                engine.may_fail.set()

    app = create_app(engine)
    answered(app, {"prompt": "x", "stream": True, "n": 2, "return_token_ids": True}, send)
    assert "a request failed" in caplog.text
    assert app.state.service.metrics.requests.values == {("completions", "500"): 1}
    if count == 1:
        *_, error = SseReader().push(data)
        assert error["error"]["code"] == "engine_error"
        assert ends[-1]
    else:
        assert len(data.partition(b"\n\n")[2]) == PIECE
        assert ends == [False, False]


# ---------------------------------------------------------------- the server


def ask(server: Served, client: socket.socket, body: bytes, size: int) -> None:
    """Sends a request for a stream, and of its body what is given."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.port))
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    client.sendall(f"{head}content-length: {size}\r\n\r\n".encode() + body)


@pytest.mark.parametrize("n", [1, 2])
def test_a_client_that_does_not_read_is_gone(n):
    engine = ClockedEngine(demo_streams()["greek"].ids * 40)
    body = json.dumps({"prompt": "x", "stream": True, "n": n}).encode()
    with served(engine, Limits(idle_seconds=0.5), send_buffer=4096) as server, socket.socket() as client:
        ask(server, client, body, len(body))
        until(lambda: len(engine.asked) == n)
        until(lambda: server.service.open_requests.count == 0)
        assert [cause for _, cause in engine.aborted] == ["client_gone"] * n
        assert server.metrics()['detok_requests_total{endpoint="completions",status="499"}'] == 1
        data = b""
        while received := client.recv(1 << 16):
            data += received
    # It cannot take what it has for all: neither the answer nor its last piece is there.
    assert data.startswith(b"HTTP/1.1 200")
    assert b"[DONE]" not in data
    assert not data.endswith(b"0\r\n\r\n")


def test_a_client_that_does_not_send_is_refused():
    engine = ScriptedEngine()
    with served(engine, Limits(idle_seconds=0.1)) as server, socket.socket() as client:
        ask(server, client, b'{"prompt": ', 100)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 408")
        until(lambda: server.service.open_requests.count == 0)
    assert engine.asked == []

"""A server on loopback for the tests of `detok serve`, and engines that do as they are told."""

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import httpx
import openai
from detok import EngineUpdate, Marker, Tokenizer
from detok.adapters.openai.chat import Splitter
from detok.data import demo_tokenizer
from detok.serve.app import create_app
from detok.serve.engine import Engine, Message, SamplingParams, UpdateQueue
from detok.serve.limits import Limits
from detok.serve.replay import ReplayEngine
from detok.serve.server import Server
from detok.serve.service import Service

# A wait that lasts longer is a fault, and shows as one.
PATIENCE = 60


class Served:
    """A server that runs in a thread of its own."""

    def __init__(self, engine: Engine, server: Server, service: Service, port: int) -> None:
        self.engine, self.server, self.service, self.port = engine, server, service, port
        self.url = f"http://127.0.0.1:{port}"

    @cached_property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)

    def aclient(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)

    def post(self, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=fields, timeout=PATIENCE)

    def metrics(self) -> dict[str, float]:
        """Numbers by name and labels."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


@contextmanager
def served(
    engine: Engine | None = None,
    limits: Limits | None = None,
    reasoning: Sequence[Marker] = (),
    *,
    splitter: Callable[[Sequence[int]], Splitter] | None = None,
    grace: int = 0,
    send_buffer: int | None = None,
) -> Iterator[Served]:
    """A server, until the end of the `with`; `send_buffer` is how much a socket holds for a reader that lags."""
    engine = engine or ReplayEngine()
    app = create_app(engine, limits, reasoning=reasoning, splitter=splitter)
    server = Server(app, grace=grace)
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        if send_buffer is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        # Signals are the main thread's, where the tests run.
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        serving = Served(engine, server, app.state.service, listening.getsockname()[1])
        try:
            until(lambda: server.started or not thread.is_alive())
            assert server.started
            yield serving
        finally:
            serving.client.close()
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()


class ScriptedEngine:
    """Samples the same for every request: updates, errors to raise, and `WAIT`, at which it waits for ever."""

    model = "scripted"
    max_context = 100_000
    max_logprobs = 20

    def __init__(self, *script: EngineUpdate | Exception | object, tokenizer: Tokenizer | None = None) -> None:
        self.script = script
        self.tokenizer = tokenizer or demo_tokenizer()
        self.asked: list[tuple[list[int], SamplingParams]] = []
        self.aborted: list[tuple[str, str]] = []
        self.generating = 0
        self.is_closed = False

    async def generate(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> AsyncGenerator[EngineUpdate]:
        self.asked.append((list(prompt_token_ids), params))
        self.generating += 1
        try:
            for step in self.script:
                if isinstance(step, Exception):
                    raise step
                if step is WAIT:
                    await asyncio.Event().wait()
                await asyncio.sleep(0)
                yield step
        finally:
            self.generating -= 1

    async def abort(self, request_id: str, cause: str) -> None:
        self.aborted.append((request_id, cause))

    def render_chat(self, messages: Sequence[Message]) -> list[int]:
        return self.tokenizer.encode("".join(f"{message['role']}: {message['content']}\n" for message in messages))

    async def close(self) -> None:
        self.is_closed = True


WAIT = object()


class ClockedEngine(ScriptedEngine):
    """Samples an id of each of its requests at each tick of a clock of its own, whoever reads them or not."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        super().__init__()
        self.token_ids = list(token_ids)
        self.queues: dict[str, UpdateQueue] = {}
        self.sampled: dict[str, int] = {}

    def generate(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> UpdateQueue:
        self.asked.append((list(prompt_token_ids), params))
        queue = self.queues[params.request_id] = UpdateQueue()
        self.sampled[params.request_id] = 0
        if len(self.queues) == 1:
            self._clock = asyncio.get_running_loop().create_task(self._tick())
        return queue

    async def _tick(self) -> None:
        while self.queues:
            for request_id, queue in list(self.queues.items()):
                at = self.sampled[request_id]
                self.sampled[request_id] = at + 1
                if at + 1 < len(self.token_ids):
                    queue.put(self.token_ids[at : at + 1])
                else:
                    queue.put(self.token_ids[at:], finish_reason="length")
                    del self.queues[request_id]
            await asyncio.sleep(0)

    async def abort(self, request_id: str, cause: str) -> None:
        await super().abort(request_id, cause)
        self.queues.pop(request_id, None)


def until(holds: Callable[[], bool]) -> None:
    """Waits for another thread."""
    tick = threading.Event()
    for _ in range(PATIENCE * 100):
        if holds():
            return
        tick.wait(0.01)
    raise AssertionError("what was waited for did not come")

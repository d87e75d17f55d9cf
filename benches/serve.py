"""The whole server: event streams over loopback, in microseconds a token, against a server that has nothing to say.

    pip install --group bench
    python benches/serve.py [--streams 64] [--tokens 400] [--turns 7]

Each server is a process of its own, and this one reads all streams with bare sockets. `detok` is `detok serve` with the
replay engine as fast as it goes, a token of each stream in turn; `empty` is Starlette and uvicorn with a response that
yields ready bytes of the same size, once a token. Servers take turns (A B A B ...); a cell is the median over the
turns, `wall` the time until all streams are read, `cpu` what the server's process took of it.
"""

import argparse
import asyncio
import json
import multiprocessing
import selectors
import socket
import statistics
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from typing import Any, cast

import uvicorn
from detok.data import demo_streams
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

# Its recording is English: nearly every token is a chunk.
PROMPT = list(demo_streams()["sql"].prompt_ids)
FORMS: dict[str, dict[str, Any]] = {
    "text": {},
    "text, stop strings": {"stop": ["\n\n\n\n", "<|never|>"]},
    "text, usage in each chunk": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "logprobs, 2 alternatives": {"logprobs": 2},
}
END = b"0\r\n\r\n"


def empty_app() -> Starlette:
    """Yields the bytes of a chunk of text, and does nothing for them."""
    chunk = {"index": 0, "text": " word", "logprobs": None, "finish_reason": None}
    head = {"id": "cmpl-" + "0" * 32, "object": "text_completion", "created": 1, "model": "smollm2-replay"}
    event = b"data: " + json.dumps({**head, "choices": [chunk]}, separators=(",", ":")).encode() + b"\n\n"

    async def completions(request: Request) -> Response:
        tokens = (await request.json())["max_tokens"]

        async def events() -> AsyncIterator[bytes]:
            for _ in range(tokens):
                await asyncio.sleep(0)
                yield event

        return StreamingResponse(events(), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/completions", completions, methods=["POST"])])


def detok_app() -> Starlette:
    from detok.serve.app import create_app
    from detok.serve.replay import ReplayEngine

    return create_app(ReplayEngine())


def run_server(name: str, told: Connection) -> None:
    """The process of a server: tells its port, and whenever asked the seconds that it has computed."""
    app = {"detok": detok_app, "empty": empty_app}[name]()

    async def cpu(request: Request) -> Response:
        return JSONResponse(time.process_time())

    app.routes.append(Route("/cpu", cpu))
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    told.send(listening.getsockname()[1])
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run([listening])


class Server:
    """One of the servers, from outside."""

    def __init__(self, name: str) -> None:
        told, ours = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=run_server, args=(name, ours), daemon=True)
        self.process.start()
        self.port = told.recv()
        self.cpu()

    def cpu(self) -> float:
        """Seconds that the server's process has computed."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/cpu") as answer:
            return float(answer.read())

    def ask(self, fields: dict[str, Any]) -> socket.socket:
        body = json.dumps(fields).encode()
        lines = (
            "POST /v1/completions HTTP/1.1",
            "host: bench",
            "content-type: application/json",
            f"content-length: {len(body)}",
        )
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return connection

    def measure(self, streams: int, tokens: int, form: dict[str, Any]) -> tuple[float, float]:
        """Microseconds a token: until all is read, and of the server's processor."""
        fields = {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "stream": True, **form}
        cpu, wall = self.cpu(), time.perf_counter()
        with selectors.DefaultSelector() as selector:
            for _ in range(streams):
                selector.register(self.ask(fields), selectors.EVENT_READ, bytearray())
            while selector.get_map():
                for key, _ in selector.select():
                    read_some(selector, key)
        wall = time.perf_counter() - wall
        scale = 1e6 / (streams * tokens)
        return wall * scale, (self.cpu() - cpu) * scale


def read_some(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """Reads what has come of a stream, of which only the end is kept, and closes it if it is over."""
    connection, tail = cast(socket.socket, key.fileobj), key.data
    received = connection.recv(1 << 16)
    if not tail and not received.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"the server answered {received!r}")
    tail += received
    if tail.endswith(END):
        selector.unregister(connection)
        connection.close()
    del tail[: -len(END)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()

    empty, detok = Server("empty"), Server("detok")
    cases = [("empty", empty, {})] + [(f"detok: {name}", detok, form) for name, form in FORMS.items()]
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name, *_ in cases}
    for turn in range(args.turns + 1):
        for name, server, form in cases:
            sample = server.measure(args.streams, args.tokens, form)
            # The first turn warms both up.
            if turn:
                taken[name].append(sample)
        print(f"turn {turn} of {args.turns}", end="\r", file=sys.stderr)
    print(file=sys.stderr)
    print(f"{args.streams} streams of {args.tokens} tokens, µs a token\n")
    print("| | wall | cpu | cpu / empty |\n| --- | --: | --: | --: |")
    for name, samples in taken.items():
        walls, cpus = zip(*samples, strict=True)
        ratio = statistics.median(cpu / base for (_, cpu), (_, base) in zip(samples, taken["empty"], strict=True))
        print(f"| {name} | {statistics.median(walls):.1f} | {statistics.median(cpus):.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()

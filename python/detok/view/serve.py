"""The demo with an engine: requests in one batch, their ids through one `BatchDecoder`, their text as it comes."""

from collections import deque
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol, TextIO

from detok import BatchDecoder, TextDecodeOptions, Tokenizer
from detok.data import demo_chat
from detok.view.cells import count
from detok.view.rows import Rows

__all__ = ["PROMPTS", "Engine", "chat", "serve"]

# Instructions that a very small model follows after a fashion, some of them into scripts that split characters.
PROMPTS = (
    "Tell me about the sea.",
    "Count from one to ten.",
    "Write a haiku about rain.",
    "Say hello in Japanese.",
    "What is a token?",
    "Name three birds.",
    "Give me a row of emoji.",
    "Translate to Korean: good morning.",
)


def chat(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids of a chat with SmolLM2 that begins with this prompt, up to where the answer begins."""
    return tokenizer.encode(demo_chat([{"role": "user", "content": prompt}]))


class Engine(Protocol):
    """What is asked of an engine here."""

    @property
    def sequences(self) -> int: ...
    @property
    def end_token_ids(self) -> list[int]: ...
    def add(self, sequence: int, prompt_ids: list[int], *, seed: int) -> None: ...
    def step(self) -> tuple[list[int], list[int]]: ...
    def remove(self, sequence: int) -> None: ...


@dataclass
class Request:
    row: int
    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    text: str = ""


def serve(engine: Engine, tokenizer: Tokenizer, out: TextIO, *, max_tokens: int, live: bool) -> bool:
    """Answers all prompts; says whether every streamed text was the one-shot decode of its ids."""
    requests = [Request(row, chat(tokenizer, prompt)) for row, prompt in enumerate(PROMPTS)]
    decoder = BatchDecoder(tokenizer, TextDecodeOptions(stop_token_ids=engine.end_token_ids))
    rows = Rows(out, PROMPTS, live=live)
    waiting, running = deque(requests), dict[int, Request]()
    steps, engine_time, decoder_time = 0, 0.0, 0.0
    rows.paint()
    while waiting or running:
        while waiting and len(running) < engine.sequences:
            request = waiting.popleft()
            slot = decoder.add(request.prompt_ids)
            engine.add(slot, request.prompt_ids, seed=request.row)
            running[slot] = request
        started = perf_counter()
        slots, token_ids = engine.step()
        sampled = perf_counter()
        output = decoder.step(slots, token_ids)
        decoder_time += perf_counter() - sampled
        engine_time += sampled - started
        steps += 1
        full = []
        for slot, token_id, text in zip(slots, token_ids, output.texts, strict=True):
            request = running[slot]
            request.token_ids.append(token_id)
            request.text += text
            rows.add(request.row, text)
            if slot not in output.stopped and len(request.token_ids) >= max_tokens:
                full.append(slot)
        # What is pending in them can only be flushed: the model will not go on.
        for slot, text in zip(full, decoder.finish(full).texts, strict=True):
            running[slot].text += text
            rows.add(running[slot].row, text)
        ended = [*output.stopped, *full]
        for slot in ended:
            request = running.pop(slot)
            engine.remove(slot)
            rows.complete(request.row, f"{'length' if slot in full else 'stop'}, {len(request.token_ids)} tokens")
        decoder.remove(ended)
        rows.paint()
    return _verdict(tokenizer, requests, steps, engine_time, decoder_time, out)


def _verdict(
    tokenizer: Tokenizer,
    requests: list[Request],
    steps: int,
    engine_time: float,
    decoder_time: float,
    out: TextIO,
) -> bool:
    right = all(
        request.text
        == tokenizer.decode(request.prompt_ids + request.token_ids).removeprefix(tokenizer.decode(request.prompt_ids))
        for request in requests
    )
    tokens = sum(len(request.token_ids) for request in requests)
    out.write(
        f"\n{count(len(requests), 'request')}, {count(steps, 'step')}, {count(tokens, 'token')}\n"
        f"engine   {engine_time:7.2f} s, {tokens / engine_time:.0f} tokens a second\n"
        f"decoder  {decoder_time:7.4f} s, {1e6 * decoder_time / steps:.0f} µs a step\n"
        f"streamed texts equal the one-shot decode: {'yes' if right else 'NO'}\n"
    )
    out.flush()
    return right

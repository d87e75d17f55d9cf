"""An engine that plays recorded streams: no model, no download, the same answer every time."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import islice
from math import log
from time import monotonic

from detok import EngineUpdate, PositionLogprobs, Tokenizer, TokenLogprob
from detok.data import RecordedStream, demo_chat, demo_logprobs, demo_streams, demo_tokenizer
from detok.serve.engine import AbortCause, Message, SamplingParams

__all__ = ["ReplayEngine"]


class ReplayEngine:
    """Answers a prompt that was recorded with its recording, and others with all recordings in turn.

    A recording that was cut ends with the reason `length`, if `max_tokens` does not come before. Under `ignore_eos`,
    or before `min_tokens`, a recording that is over starts anew, its end of sequence included.

    Logprobs are those that the model had for the recorded ids. A prompt that was not recorded has made-up ones: every
    token as likely as any other, the lowest ids beside its own.

    Args:
        pace: Tokens a second of each choice; 0: as fast as they are read.
    """

    model = "smollm2-replay"
    max_context = 8192
    max_logprobs = 5

    def __init__(self, *, pace: float = 0.0) -> None:
        if not 0 <= pace < float("inf"):
            raise ValueError(f"pace must be a number of tokens a second, 0 for no pause, not {pace}")
        self.pace = pace
        self.tokenizer: Tokenizer = demo_tokenizer()
        self._streams = list(demo_streams().values())
        self._by_prompt = {stream.prompt_ids: stream for stream in self._streams}
        self._next = 0
        self._uniform = -log(self.tokenizer.vocab_size)

    async def generate(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> AsyncGenerator[EngineUpdate]:
        prompt = tuple(prompt_token_ids)
        stream = self._stream(prompt)
        token_ids, reason = _answer(stream, params)
        logprobs, prompt_logprobs = None, None
        if params.logprobs is not None:
            recorded = demo_logprobs()[stream.name][len(stream.prompt_ids) :]
            logprobs = [_first(position, params.logprobs) for position in recorded if position is not None]
        if params.prompt_logprobs is not None:
            known = demo_logprobs()[stream.name] if prompt == stream.prompt_ids else map(self._made_up, prompt)
            shown = (position and _first(position, params.prompt_logprobs) for position in islice(known, len(prompt)))
            prompt_logprobs = [None, *islice(shown, 1, None)]
        started, sent = monotonic(), 0
        while sent < len(token_ids):
            due = await self._due(started, sent)
            ids = token_ids[sent:due]
            sent += len(ids)
            yield EngineUpdate(
                ids,
                # A recording that starts anew has its logprobs anew.
                logprobs=logprobs and [logprobs[place % len(logprobs)] for place in range(sent - len(ids), sent)],
                finish_reason=reason if sent == len(token_ids) else None,
                prompt_logprobs=prompt_logprobs,
            )
            prompt_logprobs = None

    def _stream(self, prompt_token_ids: tuple[int, ...]) -> RecordedStream:
        if (stream := self._by_prompt.get(prompt_token_ids)) is not None:
            return stream
        self._next += 1
        return self._streams[(self._next - 1) % len(self._streams)]

    async def _due(self, started: float, sent: int) -> int:
        """Waits for the next token; how many have come since the start, more than one if the reader is slow."""
        if not self.pace:
            await asyncio.sleep(0)
            return sent + 1
        await asyncio.sleep(started + (sent + 1) / self.pace - monotonic())
        return max(sent + 1, int((monotonic() - started) * self.pace))

    def _made_up(self, token_id: int) -> PositionLogprobs:
        others = [other for other in range(self.max_logprobs) if other != token_id]
        named = [TokenLogprob(one, self._uniform) for one in (token_id, *others)]
        return PositionLogprobs(named[0], named[: self.max_logprobs])

    async def abort(self, request_id: str, cause: AbortCause) -> None:
        """Nothing runs that could be ended: a choice is played by whoever reads it."""

    def render_chat(self, messages: Sequence[Message]) -> list[int]:
        return self.tokenizer.encode(demo_chat(messages))

    async def close(self) -> None:
        """Nothing is held."""


def _answer(stream: RecordedStream, params: SamplingParams) -> tuple[list[int], str]:
    """The ids of a choice, and why they end."""
    token_ids = list(stream.ids)
    wanted = params.max_tokens if params.ignore_eos else params.min_tokens
    while len(token_ids) < wanted:
        token_ids += stream.ids
    if len(token_ids) > params.max_tokens or params.ignore_eos:
        return token_ids[: params.max_tokens], "length"
    return token_ids, stream.finish


def _first(position: PositionLogprobs, alternatives: int) -> PositionLogprobs:
    """As many of the alternatives as are wanted."""
    return PositionLogprobs(position.sampled, position.top[:alternatives])

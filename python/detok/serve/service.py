"""What all ways into a server share: one engine, its limits, what is open and what was counted."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from detok import DecodedTextEvent, EngineUpdate, TextDecodeOptions, Tokenizer
from detok.serve.engine import AbortCause, Engine, Message, SamplingParams
from detok.serve.error import ApiError
from detok.serve.generation import generate_events
from detok.serve.limits import Limits, OpenRequests
from detok.serve.metrics import Metrics, Tally

__all__ = ["Choice", "Service"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to one prompt."""

    prompt_token_ids: Sequence[int]
    params: SamplingParams


class Service:
    """An engine that is served.

    Attributes:
        is_stopping: Nothing new is taken, and what is open is about to be ended.
    """

    def __init__(self, engine: Engine, limits: Limits | None = None) -> None:
        self.metrics = Metrics()
        self.limits = limits or Limits()
        self.engine: Engine = _CountedAborts(engine, self.metrics)
        self.open_requests = OpenRequests(self.limits.open_requests)
        self.is_stopping = False
        self._open: set[asyncio.Timeout] = set()
        self._end: float | None = None

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Counts a request for as long as it is open, and cancels what is within when the service ends.

        Raises:
            ApiError: Too many are open, or the server is stopping: at the start, or at the end when it was cancelled.
        """
        if self.is_stopping:
            raise _stopping()
        with self.open_requests.admit():
            try:
                async with asyncio.timeout(None) as limit:
                    self._open.add(limit)
                    try:
                        yield
                    finally:
                        self._open.remove(limit)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise _stopping() from None

    def stop(self, grace: float) -> float:
        """Takes nothing new from here on, and ends what is still open after so many seconds.

        Whoever stops the service first decides when that is.

        Returns:
            The seconds that are left until then.
        """
        self.is_stopping = True
        now = asyncio.get_running_loop().time()
        if self._end is None:
            self._end = now + grace
            for limit in self._open:
                limit.reschedule(self._end)
        return max(0.0, self._end - now)

    @cached_property
    def prompt_bytes(self) -> int:
        """Most bytes of a prompt's text: what its tokens have room for if each is the longest one."""
        tokens = min(self.limits.prompt_tokens, self.engine.max_context)
        return tokens * _longest_token(self.engine.tokenizer)

    def check_model(self, name: str | None) -> None:
        """Refuses a request for another model; None asks for any.

        Raises:
            ApiError: Names the one that is served.
        """
        if name not in (None, self.engine.model):
            message = f"there is no model {name!r} here: ask for {self.engine.model!r}"
            raise ApiError(message, status=404, param="model", code="model_not_found")

    async def generate(
        self,
        choices: Sequence[Choice],
        options: TextDecodeOptions,
        take: Callable[[int, DecodedTextEvent], Coroutine[Any, Any, None]],
    ) -> None:
        """Generates choices that are within the limits, all at once, and counts their tokens.

        Args:
            choices: At least one.
            options: What is shown of each, and where it ends.
            take: Given the events as they come, each with the place of its choice. A choice waits for it.

        Raises:
            Exception: The first error of a choice or of `take`. It ends the other choices: an answer has room for one.
        """
        is_failed = False

        def why_early() -> AbortCause:
            return "error" if is_failed else self._why_early()

        async def run(index: int, choice: Choice) -> None:
            nonlocal is_failed
            prompt, params = choice.prompt_token_ids, choice.params
            tally = Tally(self.metrics, len(prompt))
            events = generate_events(self.engine, prompt, params, options, why_early=why_early, tally=tally)
            async with aclosing(events):
                try:
                    async for event in events:
                        await take(index, event)
                except Exception as error:
                    # Known before this choice is closed and the others are cancelled: their clients did not leave.
                    is_failed = is_failed or not isinstance(error, ConnectionError)
                    raise

        if len(choices) == 1:
            await run(0, choices[0])
            return
        try:
            async with asyncio.TaskGroup() as group:
                for index, choice in enumerate(choices):
                    group.create_task(run(index, choice))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    def _why_early(self) -> AbortCause:
        return "server_stopping" if self.is_stopping else "client_gone"


def _longest_token(tokenizer: Tokenizer) -> int:
    """The bytes of text that a token may stand for, at most."""

    def size(token_id: int) -> int:
        # A special token stands for its name, whatever it gives in an answer.
        name = (tokenizer.id_to_token(token_id) or "") if tokenizer.is_special(token_id) else ""
        return max(len(name.encode()), len(tokenizer.token_bytes(token_id) or b""))

    return max(map(size, range(tokenizer.vocab_size)), default=0)


def _stopping() -> ApiError:
    return ApiError("the server is stopping: ask another one", status=503, code="server_stopping")


class _CountedAborts:
    """An engine whose aborts are counted."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._engine, self._aborts = engine, metrics.aborts
        self.model, self.tokenizer = engine.model, engine.tokenizer
        self.max_context, self.max_logprobs = engine.max_context, engine.max_logprobs

    def generate(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> AsyncIterator[EngineUpdate]:
        return self._engine.generate(prompt_token_ids, params)

    async def abort(self, request_id: str, cause: AbortCause) -> None:
        self._aborts.add(cause)
        await self._engine.abort(request_id, cause)

    def render_chat(self, messages: Sequence[Message]) -> list[int]:
        return self._engine.render_chat(messages)

    async def close(self) -> None:
        await self._engine.close()

"""What all ways into a server share: one engine, its limits, what is open and what was counted."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from detok import DecodedTextEvent, EngineUpdate, TextDecodeOptions
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

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Counts a request for as long as it is open.

        Raises:
            ApiError: Too many are, or the server is stopping.
        """
        if self.is_stopping:
            raise ApiError("the server is stopping: ask another one", status=503, code="server_stopping")
        with self.open_requests.admit():
            yield

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

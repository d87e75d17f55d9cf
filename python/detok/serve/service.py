"""What all ways into a server share: one engine, its limits, what is open and what was counted."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from detok import DecodedTextEvent, EngineUpdate, TextDecodeOptions
from detok.serve.engine import AbortCause, Engine, Message, SamplingParams
from detok.serve.error import ApiError
from detok.serve.generation import generate_events
from detok.serve.limits import Limits, OpenRequests
from detok.serve.metrics import Metrics, Tally

__all__ = ["Service"]


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

    def events(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, options: TextDecodeOptions
    ) -> AsyncGenerator[DecodedTextEvent]:
        """`generate_events` of a choice that is within the limits, counted."""
        tally = Tally(self.metrics, len(prompt_token_ids))
        return generate_events(self.engine, prompt_token_ids, params, options, why_early=self._why_early, tally=tally)

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

"""What a server asks of an engine, and the queue between an engine's loop and the readers of its requests."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from detok import EngineUpdate, Tokenizer

__all__ = ["AbortCause", "Engine", "Message", "SamplingParams", "UpdateQueue"]

AbortCause: TypeAlias = Literal["stop_string", "stop_token_id", "client_gone", "server_stopping", "error"]
Message: TypeAlias = Mapping[str, str]
"""One turn of a chat: its `role` and its `content`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one choice is sampled. Where the text ends, and what of it is shown, is in `TextDecodeOptions`."""

    request_id: str
    """Of this choice: no two that run at once have the same."""
    max_tokens: int
    min_tokens: int = 0
    """No end of sequence among so many first tokens."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: no limit."""
    seed: int | None = None
    logprobs: int | None = None
    """How many alternatives are reported beside each sampled token; `None`: no logprobs at all."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt, in the first update."""
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    """An engine may end the request at them itself. It need not: the decoder does."""


class Engine(Protocol):
    """A model that generates. All of it is called on one event loop."""

    @property
    def model(self) -> str:
        """The name by which clients ask for it."""

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def max_context(self) -> int:
        """Tokens that a prompt and its answer have room for together."""

    @property
    def max_logprobs(self) -> int:
        """Alternatives that it can report for a token."""

    def generate(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> AsyncIterator[EngineUpdate]:
        """The updates of one choice, the last with a finish reason. It has had its prompt from the caller.

        The engine's loop never waits for the reader of an update. What a slow reader has not fetched is joined to one
        update, as `UpdateQueue` does. Closing the iterator early, if it has `aclose`, frees the request too.
        """

    async def abort(self, request_id: str, cause: AbortCause) -> None:
        """Ends a choice that nobody reads any further, and says why. One that has ended, or never was, is passed
        over."""

    def render_chat(self, messages: Sequence[Message]) -> list[int]:
        """The prompt of a chat, up to where the answer begins. `ValueError` for messages that the model's template
        refuses."""

    async def close(self) -> None:
        """Ends what still runs, and frees what the engine holds."""


class UpdateQueue(AsyncIterator[EngineUpdate]):
    """Updates of one choice, put in by an engine and read by one reader, on one event loop.

    What the reader has not fetched waits as one update, so that a slow reader gets few large ones. Putting never waits:
    what can wait is bounded by the `max_tokens` of the choice.
    """

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._logprobs: list[Any] = []
        self._last: dict[str, Any] = {}
        self._error: Exception | None = None
        self._is_complete = False
        self._reader: asyncio.Future[None] | None = None

    def put(self, token_ids: Sequence[int], logprobs: Sequence[Any] | None = None, **named: Any) -> None:
        """Adds what a step sampled. Further arguments are `EngineUpdate`'s; nothing follows a `finish_reason`."""
        if self._is_complete:
            raise ValueError("an update behind the last one")
        self._token_ids += token_ids
        self._logprobs += logprobs or ()
        self._last |= named
        self._is_complete = "finish_reason" in named
        self._wake()

    def fail(self, error: Exception) -> None:
        """Ends the updates with an error, behind those that wait."""
        self._error, self._is_complete = error, True
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def __anext__(self) -> EngineUpdate:
        while not (self._token_ids or self._last or self._is_complete):
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if not (self._token_ids or self._last):
            # An error is told once.
            error, self._error = self._error, None
            raise error or StopAsyncIteration
        token_ids, self._token_ids = self._token_ids, []
        logprobs, self._logprobs = self._logprobs, []
        last, self._last = self._last, {}
        return EngineUpdate(token_ids, logprobs=logprobs or None, **last)

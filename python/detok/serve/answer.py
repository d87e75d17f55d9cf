"""A request on its way to an answer: its prompts as ids, its choices, and those as a stream or as one body."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from time import time
from typing import Any, TypeAlias
from uuid import uuid4

from detok import DecodedTextEvent, Marker, TextDecodeOptions, Tokenizer
from detok.adapters.openai import ChatCompletionBuilder, CompletionBuilder, join_bodies, sse, usage_chunk
from detok.adapters.openai.chat import Splitter
from detok.serve.error import ApiError
from detok.serve.prompt import Chat, Prompt, encoded, unknown_place
from detok.serve.request import Request
from detok.serve.service import Choice, Service
from detok.serve.stream import EventStream

__all__ = ["Answer", "prepare"]

Builder: TypeAlias = CompletionBuilder | ChatCompletionBuilder

NAMES = {"prompt_name": "prompt", "logprobs_name": "logprobs"}
CHAT_NAMES = {"prompt_name": "messages", "logprobs_name": "top_logprobs"}


class Answer:
    """The answer to a request that is within all limits.

    Its choices are numbered prompt by prompt, and generated at once.
    """

    def __init__(
        self,
        service: Service,
        request: Request,
        options: TextDecodeOptions,
        choices: Sequence[Choice],
        builders: Sequence[Builder],
    ) -> None:
        self._service, self._request, self._options = service, request, options
        self._choices, self._builders = choices, builders

    async def stream(self, events: EventStream) -> None:
        """Sends the answer as it comes."""
        write = events.write if len(self._choices) == 1 else _by_turns(events.write)

        async def send(index: int, event: DecodedTextEvent) -> None:
            if frames := self._builders[index].push_sse(event):
                await write(frames)

        await self._service.generate(self._choices, self._options, send)
        last = sse(None)
        if self._request.include_usage and len(self._choices) > 1:
            last = sse(usage_chunk(self._builders, prompts=len(self._request.prompts))) + last
        await events.write(last, is_last=True)

    async def body(self) -> dict[str, Any]:
        """The whole answer."""

        async def keep(index: int, event: DecodedTextEvent) -> None:
            self._builders[index].push(event)

        await self._service.generate(self._choices, self._options, keep)
        return join_bodies([builder.body() for builder in self._builders], prompts=len(self._request.prompts))


def _by_turns(write: Callable[[bytes], Coroutine[Any, Any, None]]) -> Callable[[bytes], Coroutine[Any, Any, None]]:
    """`write` for several tasks, of which one writes at a time."""
    turn = asyncio.Lock()

    async def write_in_turn(events: bytes) -> None:
        async with turn:
            await write(events)

    return write_in_turn


async def prepare(
    service: Service,
    request: Request,
    *,
    reasoning: Sequence[Marker] = (),
    splitter: Callable[[Sequence[int]], Splitter] | None = None,
) -> Answer:
    """Encodes the prompts and checks every choice, before the first is begun.

    Args:
        service: Whose engine and limits.
        request: What is wanted.
        reasoning: See `create_app`.
        splitter: See `create_app`.

    Raises:
        ApiError: The request passes a limit, asks for another model, or has a prompt that cannot be encoded.
    """
    engine, limits = service.engine, service.limits
    service.check_model(request.model)
    limits.check_choices(len(request.prompts), request.n)
    limits.check_stops(request.stop, request.stop_token_ids)
    options = request.options(reasoning)
    answer_id = f"{'chatcmpl' if isinstance(request.prompts[0], Chat) else 'cmpl'}-{uuid4().hex}"
    created = int(time())
    choices: list[Choice] = []
    builders: list[Builder] = []
    for prompt in request.prompts:
        names = CHAT_NAMES if isinstance(prompt, Chat) else NAMES
        token_ids = await _ids(service, prompt, names["prompt_name"])
        max_tokens = limits.room(engine, token_ids) if request.max_tokens is None else request.max_tokens
        for _ in range(request.n):
            index = len(choices)
            params = request.params(f"{answer_id}-{index}", index, max_tokens)
            limits.check(engine, token_ids, params, **names)
            choices.append(Choice(token_ids, params))
            shape: dict[str, Any] = {
                "id": answer_id,
                "model": engine.model,
                "created": created,
                "index": index,
                "n": request.n * len(request.prompts),
                "include_usage": request.include_usage,
                "continuous_usage": request.continuous_usage,
                "return_token_ids": request.return_token_ids,
                "attribution": request.attribution,
                "keep_output": not request.stream,
            }
            if isinstance(prompt, Chat):
                chat = ChatCompletionBuilder(
                    engine.tokenizer,
                    reasoning=() if splitter else reasoning,
                    splitter=splitter,
                    logprobs=request.logprobs is not None,
                    top_logprobs=request.logprobs or 0,
                    **shape,
                )
                builders.append(chat)
            else:
                completion = CompletionBuilder(
                    engine.tokenizer,
                    echo_text=_text(engine.tokenizer, prompt, request) if request.echo else None,
                    logprobs=request.logprobs,
                    **shape,
                )
                builders.append(completion)
    return Answer(service, request, options, choices, builders)


async def _ids(service: Service, prompt: Prompt, name: str) -> Sequence[int]:
    engine = service.engine
    if isinstance(prompt, str | Chat):
        return await encoded(service, prompt, name)
    if (place := unknown_place(engine, prompt)) is not None:
        known = f"this model's are below {engine.tokenizer.vocab_size}"
        raise ApiError(f"{name} has the id {prompt[place]} at {place}: {known}", param=name)
    return prompt


def _text(tokenizer: Tokenizer, prompt: str | Sequence[int], request: Request) -> str:
    """A prompt as it is echoed."""
    if isinstance(prompt, str):
        return prompt
    return tokenizer.decode(prompt, skip_special_tokens=request.skip_special_tokens, unknown_ids="skip")

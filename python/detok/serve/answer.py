"""A request on its way to an answer: its prompts as ids, its choices, and those as a stream or as one body."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from time import time
from typing import Any, TypeAlias
from uuid import uuid4

from detok import DecodedTextEvent, DetokError, Marker, TextDecodeOptions, Tokenizer
from detok.adapters.openai import ChatCompletionBuilder, CompletionBuilder, join_bodies, sse, usage_chunk
from detok.serve.engine import SamplingParams
from detok.serve.error import ApiError
from detok.serve.request import Chat, Prompt, Request
from detok.serve.service import Service
from detok.serve.stream import EventStream

__all__ = ["Answer", "prepare"]

Builder: TypeAlias = CompletionBuilder | ChatCompletionBuilder

CHAT_NAMES = {"prompt_name": "messages", "logprobs_name": "top_logprobs"}
# Encoding so many characters takes longer than handing them to a thread.
LONG = 4096


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to one prompt."""

    prompt_token_ids: Sequence[int]
    params: SamplingParams
    builder: Builder


class Answer:
    """The answer to a request that is within all limits.

    Its choices are numbered prompt by prompt, and generated at once.
    """

    def __init__(
        self, service: Service, request: Request, options: TextDecodeOptions, choices: Sequence[Choice]
    ) -> None:
        self._service, self._request, self._options, self._choices = service, request, options, choices

    async def stream(self, events: EventStream) -> None:
        """Sends the answer as it comes."""
        write = events.write if len(self._choices) == 1 else _by_turns(events.write)

        async def run(choice: Choice) -> None:
            async with aclosing(self._events(choice)) as source:
                async for event in source:
                    if frames := choice.builder.push_sse(event):
                        await write(frames)

        await self._run_all(run)
        last = sse(None)
        if self._request.include_usage and len(self._choices) > 1:
            last = sse(usage_chunk(self._builders, prompts=len(self._request.prompts))) + last
        await events.write(last, is_last=True)

    async def body(self) -> dict[str, Any]:
        """The whole answer."""

        async def run(choice: Choice) -> None:
            async with aclosing(self._events(choice)) as source:
                async for event in source:
                    choice.builder.push(event)

        await self._run_all(run)
        bodies = [builder.body() for builder in self._builders]
        return join_bodies(bodies, prompts=len(self._request.prompts))

    @property
    def _builders(self) -> list[Builder]:
        return [choice.builder for choice in self._choices]

    def _events(self, choice: Choice) -> AsyncGenerator[DecodedTextEvent]:
        return self._service.events(choice.prompt_token_ids, choice.params, self._options)

    async def _run_all(self, run: Callable[[Choice], Coroutine[Any, Any, None]]) -> None:
        if len(self._choices) == 1:
            await run(self._choices[0])
            return
        try:
            async with asyncio.TaskGroup() as group:
                for choice in self._choices:
                    group.create_task(run(choice))
        except ExceptionGroup as failed:
            # One error is all that an answer has room for; it ended the other choices.
            raise failed.exceptions[0] from None


def _by_turns(write: Callable[[bytes], Coroutine[Any, Any, None]]) -> Callable[[bytes], Coroutine[Any, Any, None]]:
    """`write` for several tasks, of which one writes at a time."""
    turn = asyncio.Lock()

    async def write_in_turn(events: bytes) -> None:
        async with turn:
            await write(events)

    return write_in_turn


async def prepare(service: Service, request: Request, reasoning: Sequence[Marker] = ()) -> Answer:
    """Encodes the prompts and checks every choice, before the first is begun.

    Args:
        service: Whose engine and limits.
        request: What is wanted.
        reasoning: Markers of the sections of an answer.

    Raises:
        ApiError: The request passes a limit, asks for another model, or has a prompt that cannot be encoded.
    """
    engine, limits = service.engine, service.limits
    if request.model not in (None, engine.model):
        raise ApiError(
            f"there is no model {request.model!r} here: ask for {engine.model!r}",
            status=404,
            param="model",
            code="model_not_found",
        )
    limits.check_choices(len(request.prompts), request.n)
    limits.check_stops(request.stop, request.stop_token_ids)
    options = request.options(reasoning)
    answer_id = f"{'chatcmpl' if isinstance(request.prompts[0], Chat) else 'cmpl'}-{uuid4().hex}"
    created = int(time())
    choices: list[Choice] = []
    for prompt in request.prompts:
        token_ids = await _encode(service, prompt)
        max_tokens = request.max_tokens
        if max_tokens is None:
            # What there is room for. Where there is none, the check says so.
            max_tokens = max(1, min(limits.max_tokens, engine.max_context - len(token_ids)))
        for _ in range(request.n):
            index = len(choices)
            params = request.params(f"{answer_id}-{index}", index, max_tokens)
            limits.check(engine, token_ids, params, **(CHAT_NAMES if isinstance(prompt, Chat) else {}))
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
            builder: Builder
            if isinstance(prompt, Chat):
                builder = ChatCompletionBuilder(
                    engine.tokenizer,
                    reasoning=reasoning,
                    logprobs=request.logprobs is not None,
                    top_logprobs=request.logprobs or 0,
                    **shape,
                )
            else:
                builder = CompletionBuilder(
                    engine.tokenizer,
                    echo_text=_text(engine.tokenizer, prompt, request) if request.echo else None,
                    logprobs=request.logprobs,
                    **shape,
                )
            choices.append(Choice(token_ids, params, builder))
    return Answer(service, request, options, choices)


async def _encode(service: Service, prompt: Prompt) -> Sequence[int]:
    """The ids of a prompt; `ApiError` if it has none."""
    engine = service.engine
    if isinstance(prompt, Chat):
        param, length = "messages", sum(len(message["content"]) for message in prompt.messages)
        encode = partial(engine.render_chat, prompt.messages)
    elif isinstance(prompt, str):
        param, length = "prompt", len(prompt)
        encode = partial(engine.tokenizer.encode, prompt, add_special_tokens=True)
    else:
        _check_ids(engine.tokenizer, prompt)
        return prompt
    try:
        # An interpreter that others want too is given up meanwhile.
        return await asyncio.to_thread(encode) if length > LONG else encode()
    except (DetokError, ValueError) as error:
        raise ApiError(f"{param}: {error}", param=param) from error


def _check_ids(tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
    # An engine looks them up without asking.
    if (highest := max(prompt, default=0)) >= tokenizer.vocab_size:
        raise ApiError(
            f"prompt has the id {highest} at {prompt.index(highest)}: this model's are below {tokenizer.vocab_size}",
            param="prompt",
        )


def _text(tokenizer: Tokenizer, prompt: str | Sequence[int], request: Request) -> str:
    """A prompt as it is echoed."""
    if isinstance(prompt, str):
        return prompt
    return tokenizer.decode(prompt, skip_special_tokens=request.skip_special_tokens, unknown_ids="skip")

"""What tests of OpenAI's shapes share: builders, the events of requests, the client's own types, and joining chunks."""

from collections.abc import Iterable, Sequence
from typing import Any

import detok
from detok.adapters.openai import ChatCompletionBuilder, CompletionBuilder
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

HEAD: dict[str, Any] = {"id": "cmpl-1", "model": "small", "created": 7}
FORMS = {"text_completion": CompletionBuilder, "chat.completion.chunk": ChatCompletionBuilder}
FIELDS = ("content", "reasoning_content")  # of a chat's delta


def events_of(
    tokenizer: detok.Tokenizer,
    groups: Iterable[Sequence[int]],
    options: detok.TextDecodeOptions | None = None,
    *,
    prompt: Sequence[int] = (),
    alternatives: dict[int, float] | None = None,
    finish: str = "length",
    **last: Any,
) -> list[Any]:
    """A request whose engine ends it with an update of its own; each id has the logprob -0.5 if others have some."""
    decoder = detok.RequestDecoder(tokenizer, prompt, options)
    with_logprobs = alternatives is not None
    scored = [[{**(alternatives or {}), i: -0.5} for i in group] if with_logprobs else None for group in groups]
    updates = [detok.EngineUpdate(group, logprobs=given) for group, given in zip(groups, scored, strict=True)]
    events: list[Any] = []
    for update in [*updates, detok.EngineUpdate(finish_reason=finish, **last)]:
        events += decoder.push(update)
        if decoder.is_finished:
            break
    return events


def chunks_of(builder: Any, events: Iterable[Any]) -> list[dict[str, Any]]:
    """All chunks, each as the client's type takes it."""
    return [validated(chunk) for event in events for chunk in builder.push(event)]


def body_of(builder: Any, events: Iterable[Any]) -> dict[str, Any]:
    chunks_of(builder, events)
    body = builder.body()
    if body["object"] == "chat.completion":
        ChatCompletion.model_validate(body, strict=True)
    else:
        validated(body)
    return body


def validated(chunk: dict[str, Any]) -> dict[str, Any]:
    """The chunk, if the client's types take it.

    For streamed completions they have no null as finish reason, and for no token one as logprobs; the API sends both.
    """
    if chunk["object"] == "chat.completion.chunk":
        ChatCompletionChunk.model_validate(chunk, strict=True)
        return chunk
    choices = [choice | {"finish_reason": choice["finish_reason"] or "stop"} for choice in chunk["choices"]]
    for choice in choices:
        if choice["logprobs"] is not None:
            without = {"token_logprobs": 0.0, "top_logprobs": {}}
            choice["logprobs"] = choice["logprobs"] | {
                key: [none if one is None else one for one in choice["logprobs"][key]] for key, none in without.items()
            }
    Completion.model_validate(chunk | {"choices": choices}, strict=True)
    return chunk


def text_of(chunk: dict[str, Any]) -> str:
    """The text of a chunk, of whatever field."""
    deltas = [choice.get("delta", choice) for choice in chunk["choices"]]
    return "".join(delta.get(field, "") for delta in deltas for field in ("text", *FIELDS))


def choices_of(chunks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices of chunks that have one."""
    return [choice for chunk in chunks for choice in chunk["choices"]]


def joined(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The choice of a body, put together by a client out of the choices of a stream."""
    whole: dict[str, Any] = {}
    for choice in choices_of(chunks):
        for key, value in choice.items():
            if key in ("text", "token_ids"):
                whole[key] = whole[key] + value if key in whole else value
            elif key == "delta":
                message = whole.setdefault("message", {"content": ""})
                message |= {field: message.get(field, "") + text for field, text in value.items()}
            elif key == "logprobs" and value and whole.get(key):
                before = whole[key]
                whole[key] = {name: before[name] and before[name] + value[name] for name in value}
            elif key == "logprobs":
                whole[key] = value or whole.get(key)
            elif key != "attribution":
                whole[key] = value
    return whole

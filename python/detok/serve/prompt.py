"""Prompts, and their ids."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from detok import DetokError
from detok.serve.engine import Engine, Message
from detok.serve.error import ApiError
from detok.serve.service import Service

__all__ = ["Chat", "Prompt", "encoded", "unknown_place"]

# Encoding so many characters takes longer than handing them to a thread.
LONG = 4096
# What a message costs beside its content, in characters.
MESSAGE = 16


@dataclass(frozen=True, slots=True)
class Chat:
    """A prompt that the model's template makes of messages."""

    messages: Sequence[Message]


Prompt: TypeAlias = str | Sequence[int] | Chat
"""A text, ids, or a chat."""


def unknown_place(engine: Engine, token_ids: Sequence[int]) -> int | None:
    """Where the first id is that the model does not have; an engine looks them up without asking."""
    size = engine.tokenizer.vocab_size
    if max(token_ids, default=0) < size:
        return None
    return next(place for place, token_id in enumerate(token_ids) if token_id >= size)


async def encoded(service: Service, prompt: str | Chat, name: str, *, param: str | None = None) -> Sequence[int]:
    """The ids of a prompt.

    Args:
        service: Whose engine has the tokenizer and the template.
        prompt: Not yet ids.
        name: What an error calls it.
        param: The parameter of an error, if it is not that name.

    Raises:
        ApiError: It cannot be encoded, or is so long that its ids would pass the limit whatever they are.
    """
    engine = service.engine
    encode: Callable[[], Sequence[int]]
    if isinstance(prompt, Chat):
        contents = [message["content"] for message in prompt.messages]
        length = MESSAGE * len(contents) + sum(map(len, contents))
        encode = partial(engine.render_chat, prompt.messages)
    else:
        contents = [prompt]
        length = len(prompt)
        encode = partial(engine.tokenizer.encode, prompt, add_special_tokens=True)
    if length > LONG:
        # Encoding so much takes seconds, and its ids are hundreds of megabytes.
        size, most = sum(len(content.encode()) for content in contents), service.prompt_bytes
        if size > most:
            message = f"{name} has {size} bytes, and at most {most} have room in the tokens that are taken: shorten it"
            raise ApiError(message, param=param or name, code="context_length_exceeded")
    try:
        # An interpreter that others want too is given up meanwhile.
        return await asyncio.to_thread(encode) if length > LONG else encode()
    except (DetokError, ValueError) as error:
        raise ApiError(f"{name}: {error}", param=param or name) from error

"""The JSON body of a request, read no further than a limit."""

import asyncio
import json
from typing import Any, NoReturn

from starlette.types import Receive, Scope

from detok.serve.error import ApiError

__all__ = ["read_json"]


async def read_json(scope: Scope, receive: Receive, most: int, patience: float) -> dict[str, Any]:
    """The object that a request's body is.

    Raises:
        ApiError: It is no JSON object, has more than `most` bytes, or was not there after so many seconds; 0: it may
            take for ever.
        ConnectionError: The client went away.
    """
    headers = dict(scope["headers"])
    # A page of another origin can send other types without being asked first.
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise ApiError(f"the content type is {kind.decode('latin-1')!r}: send application/json", status=415)
    announced = headers.get(b"content-length", b"0")
    if announced.isdigit() and int(announced) > most:
        raise _too_large(most)
    try:
        # For all of it: one that comes byte by byte holds a place as well.
        async with asyncio.timeout(patience or None):
            body = await _read(receive, most)
    except TimeoutError:
        raise ApiError(f"the body was not there after {patience:g} seconds: send it again", status=408) from None
    try:
        value = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError(f"the body is a JSON {type(value).__name__}: send an object")
    return value


async def _read(receive: Receive, most: int) -> bytes:
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client went away before its request was there")
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
        size += len(parts[-1])
        if size > most:
            raise _too_large(most)
    return b"".join(parts)


def _too_large(most: int) -> ApiError:
    return ApiError(f"the body has more than {most} bytes, which is the limit", status=413)


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")

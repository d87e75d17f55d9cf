"""Logprobs in the two forms of OpenAI's API. Numbers that JSON does not have become -9999."""

from collections.abc import Iterator, Sequence
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

from detok import PositionLogprobs, Tokenizer, TokenLogprob

__all__ = ["Row", "chat_entry", "chat_logprobs", "completion_logprobs", "completion_row", "prompt_rows"]

FLOOR = -9999.0


class Row(NamedTuple):
    """A token of a completion. The first of a prompt has no logprob."""

    token: str
    logprob: float | None
    top: dict[str, float] | None
    offset: int


def completion_row(position: PositionLogprobs, offset: int, count: int) -> Row:
    """The sampled token, and the `count` likeliest; it is among them in any case."""
    sampled = position.sampled
    name, logprob = _name(sampled), _finite(sampled.logprob)
    candidates = _likeliest(position, sampled, count)
    if sampled.token_id not in [entry.token_id for _, entry in candidates]:
        candidates.append((logprob, sampled))
    top: dict[str, float] = {}
    for number, entry in candidates:
        key = _name(entry)
        # Tokens of one text are told apart by their ids.
        top[key if key not in top else f"token_id:{entry.token_id}"] = number
    return Row(name, logprob, top, offset)


def prompt_rows(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs | None], text: str, count: int
) -> Iterator[Row]:
    """The tokens of a prompt, at their places in `text`, which is the prompt as its sender wrote it.

    Whether the sender's text has the special tokens is tried. Where it is another text altogether, no place is behind
    its end.
    """
    decoded = tokenizer.decode_attributed(token_ids, unknown_ids="skip")
    if decoded.text != text:
        shown = tokenizer.decode_attributed(token_ids, unknown_ids="skip", skip_special_tokens=False)
        decoded = shown if shown.text == text else decoded
    for token_id, position, (start, end) in zip(token_ids, logprobs, decoded.spans(), strict=True):
        offset = min(start, len(text))
        if position is not None:
            yield completion_row(position, offset, count)
            continue
        own = tokenizer.token_bytes(token_id) or b""
        token = own.decode("utf-8", "backslashreplace")
        # What its place makes of it: the first blank of a text may be gone.
        in_place = decoded.text[start:end]
        token = in_place if in_place and token.endswith(in_place) else token
        yield Row(_of_bytes(token, own), None, None, offset)


def completion_logprobs(rows: Sequence[Row]) -> dict[str, Any]:
    """The `logprobs` of a completion's choice."""
    return {
        "tokens": [row.token for row in rows],
        "token_logprobs": [row.logprob for row in rows],
        "top_logprobs": [row.top for row in rows],
        "text_offset": [row.offset for row in rows],
    }


def chat_entry(position: PositionLogprobs, count: int) -> dict[str, Any]:
    """The sampled token, and the `count` likeliest at its place."""
    sampled = position.sampled
    top = [_chat_token(entry, number) for number, entry in _likeliest(position, sampled, count)]
    return {**_chat_token(sampled, _finite(sampled.logprob)), "top_logprobs": top}


def chat_logprobs(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The `logprobs` of a chat completion's choice."""
    return {"content": list(entries), "refusal": None}


def _chat_token(entry: TokenLogprob, logprob: float) -> dict[str, Any]:
    return {"token": entry.token, "logprob": logprob, "bytes": list(entry.token_bytes)}


def _likeliest(position: PositionLogprobs, sampled: TokenLogprob, count: int) -> list[tuple[float, TokenLogprob]]:
    """Engines list the sampled token first, or last, or only if it is likely."""
    if not count:
        return []
    candidates = [(_finite(entry.logprob), entry) for entry in position.top]
    if sampled.token_id not in [entry.token_id for _, entry in candidates]:
        candidates.insert(0, (_finite(sampled.logprob), sampled))
    candidates.sort(key=itemgetter(0), reverse=True)
    return candidates[:count]


def _finite(logprob: float) -> float:
    return logprob if FLOOR < logprob < inf else FLOOR


def _name(entry: TokenLogprob) -> str:
    # Only where there are backslashes can they be those of bytes that are no characters.
    token = entry.token
    return _of_bytes(token, entry.token_bytes) if "\\x" in token else token


def _of_bytes(token: str, own: bytes) -> str:
    """Names a token that is no text by itself as OpenAI does."""
    try:
        own.decode()
    except UnicodeDecodeError:
        return f"bytes:{token}"
    return token

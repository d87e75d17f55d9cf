"""What a request's body asks for, checked field by field. OpenAI's fields, and those that vLLM has beside them.

A field that changes nothing here (`user`, `metadata`) is passed over. One that would change the answer and cannot be
honoured (`tools`) is refused, unless it has the value that asks for nothing; so is a field that nobody knows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from detok import Marker, TextDecodeOptions
from detok.serve.engine import Message, SamplingParams
from detok.serve.error import ApiError
from detok.serve.prompt import Chat, Prompt

__all__ = ["Request", "read_chat", "read_completion"]

Default = TypeVar("Default")
MOST_ID = 2**32 - 1
MOST_SEED = 2**63 - 1
ROLES = ("system", "developer", "user", "assistant")

# They say who asks, or how the answer is kept or billed.
PASSED_OVER = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
# Fields that are not honoured, and the values at which there is nothing to honour; null is one for each.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, of either kind."""

    model: str | None
    prompts: Sequence[Prompt]
    n: int
    """Choices of each prompt."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    echo: bool
    logprobs: int | None
    """Alternatives beside each token."""
    max_tokens: int | None
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    ignore_eos: bool
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    stop_scope: str | None
    return_token_ids: bool
    attribution: bool

    def params(self, request_id: str, index: int, max_tokens: int) -> SamplingParams:
        """How choice `index` is sampled."""
        return SamplingParams(
            request_id=request_id,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            # Choices of one seed differ, and are the same the next time.
            seed=None if self.seed is None else self.seed + index,
            logprobs=self.logprobs,
            prompt_logprobs=self.logprobs if self.echo else None,
            ignore_eos=self.ignore_eos,
            stop_token_ids=tuple(self.stop_token_ids),
        )

    def options(self, sections: Sequence[Marker] = ()) -> TextDecodeOptions:
        """What is shown of it, and where it ends; `stop_scope` is a name in `sections`, or `content`.

        Raises:
            ApiError: There is no section of this name.
        """
        scopes = {marker.name: None for marker in sections} | {"content": None} if sections else {}
        if self.stop_scope is not None and self.stop_scope not in scopes:
            known = f"here are {', '.join(scopes)}" if scopes else "this server knows of none"
            raise ApiError(f"stop_scope is {self.stop_scope!r}, which is no section: {known}", param="stop_scope")
        return TextDecodeOptions(
            skip_special_tokens=self.skip_special_tokens,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            include_stop_str_in_output=self.include_stop_str_in_output,
            min_tokens=self.min_tokens,
            sections=sections if self.stop_scope is not None else (),
            stop_scope=self.stop_scope,
        )


def read_completion(body: Mapping[str, Any]) -> Request:
    """The request in a body of /v1/completions.

    Raises:
        ApiError: Names the field, its value, and what it may be.
    """
    fields = Fields(body)
    prompts = _prompts(fields.take("prompt"))
    n = fields.integer("n", 1, least=1)
    best_of = fields.integer("best_of", None, least=1)
    if best_of not in (None, n):
        raise ApiError(
            f"best_of is {best_of} and n is {n}: all choices are sent, so leave best_of out",
            param="best_of",
            code="unsupported_parameter",
        )
    return _request(
        fields,
        prompts=prompts,
        n=n,
        echo=fields.flag("echo"),
        logprobs=fields.integer("logprobs", None),
        # OpenAI's default.
        max_tokens=fields.integer("max_tokens", 16, least=1),
    )


def read_chat(body: Mapping[str, Any]) -> Request:
    """The request in a body of /v1/chat/completions.

    Raises:
        ApiError: Names the field, its value, and what it may be.
    """
    fields = Fields(body)
    messages = _messages(fields.take("messages"))
    wanted, alternatives = fields.flag("logprobs"), fields.integer("top_logprobs", None)
    if alternatives is not None and not wanted:
        raise ApiError(f"top_logprobs is {alternatives}, which needs logprobs to be true", param="top_logprobs")
    older, newer = (fields.integer(name, None, least=1) for name in ("max_tokens", "max_completion_tokens"))
    if older is not None and newer is not None:
        raise ApiError(
            f"max_tokens is {older} and max_completion_tokens is {newer}: give one of them", param="max_tokens"
        )
    return _request(
        fields,
        prompts=[Chat(messages)],
        n=fields.integer("n", 1, least=1),
        echo=False,
        logprobs=(alternatives or 0) if wanted else None,
        max_tokens=older if newer is None else newer,
    )


class Fields:
    """Takes the fields of a JSON object one by one; null counts as absent, and what nobody took is unknown."""

    def __init__(self, values: Mapping[str, Any], place: str = "") -> None:
        self._left = {name: value for name, value in values.items() if value is not None}
        self._place = place

    def take(self, name: str, default: Any = None) -> Any:
        return self._left.pop(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            self.wrong(name, value, "true or false")
        return value

    def integer(self, name: str, default: Default, *, least: int = 0, most: int = MOST_ID) -> int | Default:
        if (value := self.take(name)) is None:
            return default
        if not isinstance(value, int) or _is_flag(value) or not least <= value <= most:
            self.wrong(name, value, f"an integer from {least} to {most}")
        return value

    def number(self, name: str, default: float, *, most: float) -> float:
        value = self.take(name, default)
        if not isinstance(value, int | float) or _is_flag(value) or not 0 <= value <= most:
            self.wrong(name, value, f"a number from 0 to {most}")
        return float(value)

    def wrong(self, name: str, value: Any, wanted: str) -> NoReturn:
        _wrong(self._place + name, value, wanted)

    def end(self) -> None:
        """Refuses what is left."""
        for name in PASSED_OVER:
            self.take(name)
        for name, value in self._left.items():
            place = self._place + name
            if name not in UNSUPPORTED:
                raise ApiError(
                    f"{place} is no field that is known here: leave it out", param=place, code="unknown_parameter"
                )
            # To Python, false is 0.
            if not any(value == nothing and _is_flag(value) == _is_flag(nothing) for nothing in UNSUPPORTED[name]):
                raise ApiError(
                    f"{place} is {_shown(value)}, which is not supported here: leave it out",
                    param=place,
                    code="unsupported_parameter",
                )


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _request(fields: Fields, **read: Any) -> Request:
    """Reads the fields that both kinds have."""
    stream = fields.flag("stream")
    given = fields.take("stream_options", {})
    if not isinstance(given, dict):
        fields.wrong("stream_options", given, "an object")
    if given and not stream:
        raise ApiError("stream_options are for streams: set stream to true, or leave them out", param="stream_options")
    stream_options = Fields(given, "stream_options.")
    include_usage = stream_options.flag("include_usage")
    continuous_usage = stream_options.flag("continuous_usage_stats")
    # What streams of large tokens are padded with elsewhere; nothing is padded here.
    stream_options.flag("include_obfuscation")
    stream_options.end()
    request = Request(
        **read,
        model=_text("model", fields.take("model", "")) or None,
        stream=stream,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        min_tokens=fields.integer("min_tokens", 0),
        temperature=fields.number("temperature", 1.0, most=2),
        top_p=fields.number("top_p", 1.0, most=1),
        top_k=fields.integer("top_k", 0),
        seed=fields.integer("seed", None, least=-MOST_SEED - 1, most=MOST_SEED),
        ignore_eos=fields.flag("ignore_eos"),
        stop=_stop(fields.take("stop", [])),
        stop_token_ids=_token_ids("stop_token_ids", fields.take("stop_token_ids", [])),
        include_stop_str_in_output=fields.flag("include_stop_str_in_output"),
        skip_special_tokens=fields.flag("skip_special_tokens", True),
        stop_scope=_stop_scope(fields.take("stop_scope")),
        return_token_ids=fields.flag("return_token_ids"),
        attribution=fields.flag("attribution"),
    )
    fields.end()
    return request


def _prompts(value: Any) -> list[Prompt]:
    if value is None:
        raise ApiError("there is no prompt: give a text, ids, or a list of either", param="prompt")
    if isinstance(value, list) and value:
        if isinstance(value[0], str):
            return [_text(f"prompt[{index}]", text, param="prompt") for index, text in enumerate(value)]
        if isinstance(value[0], list):
            return [_token_ids(f"prompt[{index}]", ids, param="prompt") for index, ids in enumerate(value)]
        return [_token_ids("prompt", value)]
    return [_text("prompt", value, "a text, ids, or a list of either")]


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        _wrong("messages", value, "a list of messages")
    return [_message(f"messages[{index}]", message) for index, message in enumerate(value)]


def _message(place: str, value: Any) -> Message:
    if not isinstance(value, dict):
        _wrong(place, value, "an object with role and content")
    fields = Fields(value, f"{place}.")
    if (role := fields.take("role")) not in ROLES:
        fields.wrong("role", role, f"one of {', '.join(ROLES)}")
    content = fields.take("content", "" if role == "assistant" else None)
    # What an answer of ours had, sent back; templates leave it out.
    for name in ("name", "refusal", "reasoning_content", "annotations"):
        fields.take(name)
    if fields.take("tool_calls"):
        raise ApiError(f"{place}.tool_calls: tools are not supported here", param=f"{place}.tool_calls")
    fields.end()
    if isinstance(content, list):
        parts = (_part(f"{place}.content[{index}]", part) for index, part in enumerate(content))
        content = "\n".join(parts)
    # The newer name of the same role, which templates do not know.
    role = "system" if role == "developer" else role
    return {"role": role, "content": _text(f"{place}.content", content, "a text or a list of parts")}


def _part(place: str, value: Any) -> str:
    if not isinstance(value, dict) or value.get("type") != "text":
        _wrong(place, value, "an object with type text; others are not supported here")
    return _text(f"{place}.text", value.get("text"))


def _stop(value: Any) -> list[str]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        _wrong("stop", value, "a text or a list of texts")
    for index, text in enumerate(value):
        if not _text(f"stop[{index}]", text, param="stop"):
            _wrong(f"stop[{index}]", text, "a text that is not empty", param="stop")
    return value


def _stop_scope(value: Any) -> str | None:
    if value is None:
        return None
    return _text("stop_scope", value) or _wrong("stop_scope", value, "the name of a section")


def _token_ids(place: str, value: Any, *, param: str | None = None) -> list[int]:
    if not isinstance(value, list):
        _wrong(place, value, "a list of token ids", param=param)
    for index, token_id in enumerate(value):
        if type(token_id) is not int or not 0 <= token_id <= MOST_ID:
            _wrong(f"{place}[{index}]", token_id, "a token id", param=param or place)
    return value


def _text(place: str, value: Any, wanted: str = "a text", *, param: str | None = None) -> str:
    if not isinstance(value, str):
        _wrong(place, value, wanted, param=param)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = value[error.start].encode("unicode_escape").decode()
        raise ApiError(
            f"{place} has half a character, {half}, at {error.start}: send whole ones", param=param or place
        ) from None
    return value


def _wrong(place: str, value: Any, wanted: str, *, param: str | None = None) -> NoReturn:
    raise ApiError(f"{place} is {_shown(value)}: it must be {wanted}", param=param or place, code="invalid_value")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}..."

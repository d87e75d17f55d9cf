"""What a call asks for, checked against the limits before the first choice is begun."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from google.protobuf.message import DecodeError

from detok import Marker, RequestDecoder, TextDecodeOptions
from detok.serve.engine import SamplingParams
from detok.serve.error import ApiError
from detok.serve.grpc import inference_pb2 as pb
from detok.serve.grpc.message import wants_text
from detok.serve.limits import Limits
from detok.serve.prompt import encoded, unknown_place
from detok.serve.service import Choice, Service

__all__ = ["Call", "parsed", "read_call"]


@dataclass(frozen=True, slots=True)
class Call:
    """A request that is within all limits."""

    choices: Sequence[Choice]
    options: TextDecodeOptions


def parsed(request: pb.GenerateRequest | bytes) -> pb.GenerateRequest:
    """The message of a request.

    Raises:
        ApiError: It is none.
    """
    if isinstance(request, pb.GenerateRequest):
        return request
    message = pb.GenerateRequest()
    try:
        message.ParseFromString(request)
    except DecodeError as error:
        raise ApiError(f"the request is no detok.GenerateRequest: {error}") from None
    return message


async def read_call(service: Service, request: pb.GenerateRequest) -> Call:
    """Checks a request, and encodes its prompt.

    Raises:
        ApiError: Names the field, its value, and what it may be.
    """
    engine, limits = service.engine, service.limits
    sampling, stopping, response = request.sampling, request.stopping, request.response
    service.check_model(request.model or None)
    n = request.n if request.HasField("n") else 1
    _check("n", n, n >= 1, "1 or more")
    limits.check_choices(1, n)
    limits.check_stops(stopping.stop, stopping.stop_token_ids)
    top_p = sampling.top_p if sampling.HasField("top_p") else 1.0
    _check("temperature", sampling.temperature, 0 <= sampling.temperature <= 2, "a number from 0 to 2")
    _check("top_p", top_p, 0 <= top_p <= 1, "a number from 0 to 1")
    if response.attributions and not wants_text(response):
        raise ApiError("attributions are places in the text: let text be true, or leave them out", param="attributions")
    options = _options(service, stopping, response)
    token_ids = await _prompt(service, request)
    if stopping.HasField("max_tokens"):
        max_tokens = stopping.max_tokens
        _check("max_tokens", max_tokens, max_tokens >= 1, "1 or more, or left out")
    else:
        max_tokens = limits.room(engine, token_ids)
    request_id = f"grpc-{uuid4().hex}"
    params = [
        SamplingParams(
            request_id=f"{request_id}-{index}",
            max_tokens=max_tokens,
            min_tokens=stopping.min_tokens,
            temperature=sampling.temperature,
            top_p=top_p,
            top_k=sampling.top_k,
            # Choices of one seed differ, and are the same the next time.
            seed=sampling.seed + index if sampling.HasField("seed") else None,
            logprobs=response.logprobs if response.HasField("logprobs") else None,
            prompt_logprobs=response.prompt_logprobs if response.HasField("prompt_logprobs") else None,
            ignore_eos=stopping.ignore_eos,
            stop_token_ids=tuple(stopping.stop_token_ids),
        )
        for index in range(n)
    ]
    limits.check(engine, token_ids, params[0])
    return Call([Choice(token_ids, own) for own in params], options)


def _options(service: Service, stopping: pb.Stopping, response: pb.ResponseOptions) -> TextDecodeOptions:
    if stopping.sections and not stopping.HasField("stop_scope"):
        raise ApiError("sections are there for stop_scope: name one of them in it", param="sections")
    for index, text in enumerate(stopping.stop):
        if not text:
            raise ApiError(f"stop[{index}] is empty: leave it out", param="stop")
    markers = _markers(service.limits, stopping.sections)
    try:
        options = TextDecodeOptions(
            skip_special_tokens=response.skip_special_tokens or not response.HasField("skip_special_tokens"),
            stop=stopping.stop,
            stop_token_ids=stopping.stop_token_ids,
            include_stop_str_in_output=stopping.include_stop_str_in_output,
            min_tokens=stopping.min_tokens,
            sections=markers,
            stop_scope=stopping.stop_scope if stopping.HasField("stop_scope") else None,
        )
    except ValueError as error:
        raise ApiError(str(error), param="stop_scope") from error
    try:
        # What only shows with a tokenizer.
        RequestDecoder(service.engine.tokenizer, (), options)
    except ValueError as error:
        raise ApiError(str(error), param="sections") from error
    return options


def _markers(limits: Limits, sections: Sequence[pb.Section]) -> list[Marker]:
    # They are searched for as stop strings are, and may hold back text as these do.
    count = sum(2 + len(section.also_end) for section in sections)
    if count > 2 * limits.stop_strings:
        message = f"sections: {count} patterns, but at most {2 * limits.stop_strings} are taken"
        raise ApiError(message, param="sections")
    return [_marker(limits, index, section) for index, section in enumerate(sections)]


def _marker(limits: Limits, index: int, section: pb.Section) -> Marker:
    place = f"sections[{index}]"
    for pattern in (section.start, section.end, *section.also_end):
        size = sum(len(part.text.encode()) for part in pattern.parts)
        if size > limits.held_bytes:
            message = f"{place}: {size} bytes in a pattern, but at most {limits.held_bytes} are taken"
            raise ApiError(message, param=place)
    try:
        return Marker(
            section.name,
            _pattern(section.start),
            _pattern(section.end),
            also_end=[_pattern(pattern) for pattern in section.also_end],
            reopen=section.reopen,
            keep_markers=section.keep_markers,
        )
    except ValueError as error:
        raise ApiError(f"{place}: {error}", param=place) from error


def _pattern(pattern: pb.Pattern) -> list[str | int]:
    return [part.token_id if part.HasField("token_id") else part.text for part in pattern.parts]


async def _prompt(service: Service, request: pb.GenerateRequest) -> Sequence[int]:
    """The ids of the prompt."""
    engine = service.engine
    if request.HasField("token_ids"):
        token_ids = list(request.token_ids.ids)
        if (place := unknown_place(engine, token_ids)) is not None:
            wanted = f"below {engine.tokenizer.vocab_size}, as those of this model are"
            _check(f"token_ids[{place}]", token_ids[place], False, wanted)
        return token_ids
    if not request.HasField("text"):
        raise ApiError("there is no prompt: give text or token_ids", param="prompt")
    return await encoded(service, request.text, "text", param="prompt")


def _check(param: str, value: float, holds: bool, wanted: str) -> None:
    if not holds:
        raise ApiError(f"{param} is {value}: it must be {wanted}", param=param, code="invalid_value")

"""How much a request may ask for. What is passed is refused with an error that names the limit."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from detok.serve.error import ApiError

if TYPE_CHECKING:
    # The command line asks for the limits, whatever its command: what an engine needs is not loaded for that.
    from detok.serve.engine import Engine, SamplingParams

__all__ = ["Limits", "OpenRequests"]


Number = TypeVar("Number", int, float)


def _limit(default: Number, about: str) -> Number:
    """A field with its line of help."""
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Most of everything; the model's context and the logprobs that its engine has are limits too."""

    body_bytes: int = _limit(8 << 20, "bytes of a request's body")
    prompt_tokens: int = _limit(1 << 20, "tokens of a prompt")
    max_tokens: int = _limit(1 << 16, "tokens of an answer")
    choices: int = _limit(16, "answers of a request: prompts, times n")
    logprobs: int = _limit(20, "alternatives reported beside a token")
    stop_strings: int = _limit(64, "stop strings of a request")
    stop_bytes: int = _limit(1 << 16, "bytes of a request's stop strings together")
    held_bytes: int = _limit(1 << 12, "bytes of the longest stop string, which is what may be held back of a text")
    stop_token_ids: int = _limit(256, "stop token ids of a request")
    open_requests: int = _limit(256, "requests that are open at once")
    idle_seconds: float = _limit(
        60.0, "seconds that a request's body may take, and that a client may let what it is sent wait; 0: for ever"
    )

    def room(self, engine: "Engine", prompt_token_ids: Sequence[int]) -> int:
        """The `max_tokens` of a request that names none: what there is room for, or one."""
        return max(1, min(self.max_tokens, engine.max_context - len(prompt_token_ids)))

    def check_choices(self, prompts: int, n: int) -> None:
        """Refuses a request for too many answers.

        Raises:
            ApiError: Names the parameter, its value and the limit.
        """
        if prompts * n > self.choices:
            raise ApiError(
                f"n is {n} for each of {prompts} prompts, {prompts * n} together: at most {self.choices} are taken",
                param="n" if n > 1 else "prompt",
            )

    def check_stops(self, stop: Sequence[str], stop_token_ids: Sequence[int]) -> None:
        """Refuses stops that are too many or too long, before anything is made of them.

        Raises:
            ApiError: Names the parameter, its value and the limit.
        """
        _at_most("stop", len(stop), self.stop_strings, "strings")
        sizes = [len(text.encode()) for text in stop]
        _at_most("stop", sum(sizes), self.stop_bytes, "bytes together")
        for index, size in enumerate(sizes):
            _at_most("stop", size, self.held_bytes, f"bytes in string {index}")
        _at_most("stop_token_ids", len(stop_token_ids), self.stop_token_ids, "ids")

    def check(
        self,
        engine: "Engine",
        prompt_token_ids: Sequence[int],
        params: "SamplingParams",
        *,
        prompt_name: str = "prompt",
        logprobs_name: str = "logprobs",
    ) -> None:
        """Refuses a choice that asks for too much, or has no room in the model's context.

        Args:
            engine: Has limits of its own.
            prompt_token_ids: The prompt.
            params: What is asked for.
            prompt_name: The field that the prompt came in.
            logprobs_name: The field that the number of alternatives came in.

        Raises:
            ApiError: Names the parameter, its value and the limit.
        """
        logprobs = min(self.logprobs, engine.max_logprobs)
        _at_most(logprobs_name, params.logprobs or 0, logprobs, "alternatives")
        _at_most("prompt_logprobs", params.prompt_logprobs or 0, logprobs, "alternatives")
        _at_most("max_tokens", params.max_tokens, self.max_tokens, "tokens")
        if params.min_tokens > params.max_tokens:
            raise ApiError(
                f"min_tokens is {params.min_tokens}, and max_tokens {params.max_tokens}: it must not be above it",
                param="min_tokens",
            )
        prompt, room = len(prompt_token_ids), engine.max_context
        if prompt == 0:
            raise ApiError("the prompt has no tokens: give it some", param=prompt_name)
        if prompt > self.prompt_tokens:
            too_long = f"at most {self.prompt_tokens} are taken: shorten it"
        elif prompt + params.max_tokens > room:
            too_long = (
                f"with max_tokens {params.max_tokens} that is more than the model's context of {room}: shorten it, or "
                "lower max_tokens"
            )
        else:
            return
        raise ApiError(f"the prompt has {prompt} tokens; {too_long}", param=prompt_name, code="context_length_exceeded")


def _at_most(param: str, value: int, most: int, unit: str) -> None:
    if value > most:
        raise ApiError(f"{param}: {value} {unit}, but at most {most} are taken", param=param)


class OpenRequests:
    """Counts what is open, up to a limit."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Counts a request for as long as it is open.

        Raises:
            ApiError: Too many are.
        """
        if self.count >= self.most:
            raise ApiError(
                f"{self.count} requests are open, which is the limit: send this one again when others have ended",
                status=429,
                code="too_many_requests",
            )
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1

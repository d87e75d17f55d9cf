"""What a server counts, in the text format of Prometheus."""

from collections.abc import Iterator
from types import TracebackType

from detok import TextDelta

__all__ = ["CONTENT_TYPE", "Counter", "Metrics", "Tally"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Counter:
    """A number for each combination of labels."""

    def __init__(self, name: str, about: str, *labels: str) -> None:
        self.name, self.about, self.labels = name, about, labels
        self.values: dict[tuple[str, ...], int] = {}

    def add(self, *labels: str) -> None:
        self.values[labels] = self.values.get(labels, 0) + 1

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.about, "counter")
        for values, number in self.values.items():
            pairs = (f'{label}="{_escaped(value)}"' for label, value in zip(self.labels, values, strict=True))
            yield f"{self.name}{{{','.join(pairs)}}} {number}"


class Metrics:
    """Counts of one server."""

    def __init__(self) -> None:
        self.requests = Counter("detok_requests_total", "Answered requests.", "endpoint", "status")
        self.aborts = Counter("detok_aborts_total", "Choices that the engine was told to abort.", "cause")
        self.prompt_tokens = 0
        self.generated_tokens = 0
        """Of choices that have ended."""
        self.open_choices: set[Tally] = set()

    def text(self, open_requests: int) -> str:
        """What a scrape reads."""
        sampled = sum(tally.sampled for tally in self.open_choices)
        waiting = sampled - sum(tally.settled for tally in self.open_choices)
        generated = self.generated_tokens + sampled
        lines = [
            *self.requests.lines(),
            *self.aborts.lines(),
            *_number("detok_prompt_tokens_total", "Tokens of prompts, for each choice.", "counter", self.prompt_tokens),
            *_number("detok_generated_tokens_total", "Sampled tokens that count.", "counter", generated),
            *_number("detok_open_requests", "Requests that are open.", "gauge", open_requests),
            *_number("detok_open_choices", "Choices that are being generated.", "gauge", len(self.open_choices)),
            *_number("detok_waiting_tokens", "Their sampled tokens whose text is withheld.", "gauge", waiting),
        ]
        return "\n".join(lines) + "\n"


class Tally:
    """Counts the tokens of one choice, which is open within the `with` of it.

    Attributes:
        sampled: How many were sampled.
        settled: Of how many the text came, or is known to be none.
    """

    def __init__(self, metrics: Metrics, prompt_token_count: int) -> None:
        self._metrics, self._prompt_token_count = metrics, prompt_token_count
        self.sampled = self.settled = 0

    def __enter__(self) -> None:
        self._metrics.open_choices.add(self)
        self._metrics.prompt_tokens += self._prompt_token_count

    def add(self, delta: TextDelta) -> None:
        self.sampled += len(delta.sampled.token_ids)
        self.settled += len(delta.decoded.attributions)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._metrics.open_choices.remove(self)
        self._metrics.generated_tokens += self.sampled


def _number(name: str, about: str, kind: str, value: int) -> Iterator[str]:
    yield from _head(name, about, kind)
    yield f"{name} {value}"


def _head(name: str, about: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

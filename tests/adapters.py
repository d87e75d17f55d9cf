"""What the tests of all adapters have at hand: a vocabulary, a request, its events."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from detok import EngineUpdate, Finished, RequestDecoder, TextDecodeOptions, TextDelta
from engine import vocabulary

TOKENIZER, (A, B, C, E4, BD, A0, END) = vocabulary("a", "b", "c", b"\xe4", b"\xbd", b"\xa0", "<|end|>")
PROMPT = [C, C]
GROUPS = [[A], [E4, BD], [], [A0, B]]  # a你b, with a step that samples nothing


def updates_of(groups: Sequence[Sequence[int]] = GROUPS, **last: Any) -> list[EngineUpdate]:
    """What an adapter makes of such a request."""
    updates = [EngineUpdate(group, prompt_token_ids=PROMPT) for group in groups[:-1]]
    return [*updates, EngineUpdate(groups[-1], prompt_token_ids=PROMPT, **{"finish_reason": "length", **last})]


def events_of(updates: Sequence[EngineUpdate], options: TextDecodeOptions | None = None) -> list[Any]:
    decoder = RequestDecoder(TOKENIZER, options=options, request_id="r")
    return [event for update in updates for event in decoder.push(update)]


def text_of(events: Sequence[Any]) -> str:
    return "".join(event.decoded.text for event in events if isinstance(event, TextDelta))


def end_of(events: Sequence[Any]) -> Finished:
    assert isinstance(events[-1], TextDelta)
    assert events[-1].finished is not None
    return events[-1].finished


class Source:
    """Outputs, and how often their reader closed them."""

    def __init__(self, outputs: Sequence[Any], error: Exception | None = None) -> None:
        self.left = list(outputs)
        self.error = error
        self.closed = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.closed or not self.left:
            raise StopIteration
        return self.left.pop(0)

    def close(self) -> None:
        self.closed += 1
        if self.error is not None:
            raise self.error


def imports_no_engine(name: str) -> None:
    code = (
        "import sys, detok; assert not [m for m in sys.modules if m.startswith('detok.adapters')]\n"
        f"import detok.adapters.{name}\n"
        "assert not {'vllm', 'sglang', 'cyllama', 'torch', 'transformers', 'openai'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

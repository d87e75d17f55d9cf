"""Engines as tests write them: a vocabulary of the tokens at hand, updates, and everything that a request gave."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import detok
from detok.data import demo_streams

Token = str | bytes | None
IM_END = 2  # <|im_end|> of the demo's tokenizer


def vocabulary(*tokens: Token) -> tuple[detok.Tokenizer, list[int]]:
    """The smallest table of bytes with these tokens, and their ids. `<|…|>` is special, None an id without a token."""
    table: dict[bytes | None, int] = {}
    ids = []
    for token in tokens:
        raw = token.encode() if isinstance(token, str) else token
        ids.append(table.setdefault(raw, len(table)))
    special = [i for raw, i in table.items() if raw is not None and raw[:2] == b"<|" and raw[-2:] == b"|>"]
    return detok.Tokenizer.from_token_bytes(list(table), special_token_ids=special), ids


def marks(decoded: detok.DecodedText) -> str:
    """The records, as tables write them: `V0 Z3`."""
    return " ".join(f"{a.anchor.kind[0].upper()}{a.anchor.byte_offset}" for a in decoded.attributions)


def places(decoded: detok.DecodedText) -> list[tuple]:
    """The records but for `cut`, which one that has left before the cut cannot show."""
    return [(a.token_id, a.anchor, a.continues_char) for a in decoded.attributions]


def updates(groups: Iterable[Sequence[int]], finish: str | None = "length") -> Iterator[detok.EngineUpdate]:
    """One update a group, then an empty one that ends the request (with None it goes on for ever)."""
    for group in groups:
        yield detok.EngineUpdate(group)
    if finish is not None:
        yield detok.EngineUpdate(finish_reason=finish)


@dataclass
class Outcome:
    """A request, from its start to its end."""

    start: detok.Start
    shown: list[str]  # the text of each delta
    joined: detok.DecodedText  # all of them
    sampled: list[int]
    counts: list[int]  # how many of them came with each delta
    logprobs: list[detok.PositionLogprobs] | None
    token_texts: list[str] | None
    finished: detok.Finished | None
    abort_cause: str | None

    @property
    def text(self) -> str:
        return self.joined.text

    @property
    def stop(self) -> str | int | None:
        """What stopped it, if a stop of ours did."""
        return self.finished.stop_match.stop if self.finished and self.finished.stop_match else None

    @property
    def reason(self) -> tuple[str, Any]:
        return self.finished.finish_reason.kind, self.finished.finish_reason.stop


def collect(events: Iterable[detok.Start | detok.TextDelta], abort_cause: str | None = None) -> Outcome:
    """Checks what holds for any request: order, lengths, counts; a delta has its text and ids once."""
    start, *deltas = events
    assert isinstance(start, detok.Start)
    assert all(isinstance(delta, detok.TextDelta) for delta in deltas)
    joined, sampled, logprobs, texts = detok.DecodedText(), [], [], []
    for delta in deltas:
        joined.append(delta.decoded)
        sampled += delta.sampled.token_ids
        assert (delta.text, delta.token_texts) == (delta.decoded.text, delta.sampled.token_texts)
        if delta.token_texts is not None:
            assert len(delta.token_texts) == len(delta.sampled.token_ids)
            texts += delta.token_texts
        if delta.sampled.logprobs is not None:
            assert [p.sampled.token_id for p in delta.sampled.logprobs] == delta.sampled.token_ids
            logprobs += delta.sampled.logprobs
    assert [delta.finished is None for delta in deltas[:-1]] == [True] * (len(deltas) - 1)
    finished = deltas[-1].finished if deltas else None
    records = joined.token_ids
    if finished is not None:
        assert finished.usage.output_token_count == len(sampled)
        assert finished.usage.prompt_token_count == len(start.prompt_token_ids)
        # Only the token that stands for the end has no record.
        assert records in (sampled, sampled[:-1])
    else:
        assert records == sampled[: len(records)]
    shown = [delta.decoded.text for delta in deltas]
    counts = [len(delta.sampled.token_ids) for delta in deltas]
    return Outcome(start, shown, joined, sampled, counts, logprobs or None, texts or None, finished, abort_cause)


def serve(
    tokenizer: detok.Tokenizer,
    source: Iterable[detok.EngineUpdate],
    options: detok.TextDecodeOptions | None = None,
    prompt: Sequence[int] | None = (),
    *,
    intermediate: bool = True,
    token_texts: bool = False,
) -> Outcome:
    """Pushes updates until the request is over: what a loop does that heeds the decoder."""
    how = {"request_id": "tested", "intermediate": intermediate, "token_texts": token_texts}
    decoder = detok.RequestDecoder(tokenizer, prompt, options, **how)
    events = []
    for update in source:
        assert not decoder.is_finished
        got = decoder.push(update)
        assert len(got) == (not events) + (intermediate or decoder.is_finished)
        events += got
        if decoder.is_finished:
            decoder.close()
            break
    return collect(events, decoder.abort_cause)


def transcript(
    batch: detok.BatchDecoder, plans: Sequence[Sequence[Sequence[int]]], slots: Sequence[int]
) -> list[list[tuple]]:
    """Steps all slots together, each by its own grouping; for each slot what every step gave, its end included."""
    given: list[list[tuple]] = [[] for _ in plans]
    over = set()
    for groups in itertools.zip_longest(*plans):
        live = [i for i, group in enumerate(groups) if group is not None and i not in over]
        flat = [token for i in live for token in groups[i]]
        out = batch.step([slots[i] for i in live], flat, [len(groups[i]) for i in live], token_texts=True)
        assert out.errors == {}
        for at, i in enumerate(live):
            match = out.stopped.get(slots[i])
            given[i].append((out.texts[at], out.decoded(at), out.kept_tokens[at], out.token_texts[at], match))
            if match is not None:
                over.add(i)
    left = [i for i in range(len(plans)) if i not in over]
    out = batch.finish([slots[i] for i in left])
    for at, i in enumerate(left):
        given[i].append((out.texts[at], out.decoded(at), 0, [], None))
    return given


def requested(tokenizer: detok.Tokenizer, groups, options: detok.TextDecodeOptions | None, prompt=()) -> list[tuple]:
    """The same by a decoder of its own."""
    decoder = detok.RequestDecoder(tokenizer, prompt, options)
    given = []
    ends = detok.EngineUpdate(finish_reason="length")
    for update in [*(detok.EngineUpdate(g, logprobs=[{i: -1.0} for i in g]) for g in groups), ends]:
        delta = decoder.push(update)[-1]
        texts = [p.sampled.token for p in delta.sampled.logprobs or []]
        match = delta.finished.stop_match if delta.finished else None
        given.append((delta.decoded.text, delta.decoded, len(delta.sampled.token_ids), texts, match))
        if decoder.is_finished:
            break
    return given


class PlayedEngine:
    """An engine whose n-th request samples the n-th recorded stream, and then ends of sequence for ever."""

    end_token_ids = (0, IM_END)

    def __init__(self, sequences: int = 8) -> None:
        self.sequences = sequences
        self.streams = [list(recorded.ids) for recorded in demo_streams().values()]
        self.left: dict[int, list[int]] = {}
        self.taken: list[tuple[int, list[int]]] = []
        self.most = 0

    def add(self, sequence: int, prompt_ids: list[int], *, seed: int = 0) -> None:
        assert sequence not in self.left
        assert 0 <= sequence < self.sequences
        self.left[sequence] = [*self.streams[len(self.taken)], IM_END]
        self.taken.append((sequence, list(prompt_ids)))
        self.most = max(self.most, len(self.left))

    def step(self) -> tuple[list[int], list[int]]:
        return list(self.left), [ids.pop(0) for ids in self.left.values()]

    def remove(self, sequence: int) -> None:
        del self.left[sequence]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert not self.left

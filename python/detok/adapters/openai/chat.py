"""`chat.completion.chunk` and `chat.completion`: chunks and bodies of /v1/chat/completions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from detok import DecodedText, Marker, PositionLogprobs, SectionSplitter, Start, Tokenizer
from detok.adapters.openai.builder import ChoiceBuilder, Pieces
from detok.adapters.openai.logprobs import chat_entry, chat_logprobs

__all__ = ["ChatCompletionBuilder", "Splitter"]


class Splitter(Protocol):
    """What a builder needs of a `SectionSplitter`; `detok.adapters.harmony.HarmonySections` is another."""

    def push(self, decoded: DecodedText, /) -> list[tuple[str, DecodedText]]: ...
    def finish(self) -> list[tuple[str, DecodedText]]: ...
    @property
    def section(self) -> str: ...
    @property
    def token_counts(self) -> Mapping[str, int]: ...


class ChatCompletionBuilder(ChoiceBuilder):
    """Events of one choice -> chat.completion chunks; see `ChoiceBuilder`.

    The first chunk has the role. With markers, text of their sections goes to `reasoning_content`; what lies outside,
    in sections named "content", or in sections that keep their markers, such as calls of tools, goes to `content`.

    Args:
        tokenizer: Whose ids the events have.
        id: Of the answer.
        model: Named in the answer.
        created: Seconds since 1970; now, if left out.
        index: Which choice.
        n: How many choices the answer has. If there are others, the last usage chunk is `usage_chunk`'s.
        reasoning: The markers of a `SectionSplitter`.
        splitter: Makes another splitter than that of `reasoning`, behind a prompt. What it calls "reasoning" goes to
            `reasoning_content`, and the rest to `content`.
        prompt_token_ids: What the sections go on from, if it is not the prompt of the events.
        logprobs: One entry for each sampled token, those of reasoning and of markers too.
        top_logprobs: How many of the likeliest tokens each entry has.
        include_usage: A last chunk with the usage.
        continuous_usage: The usage so far in every chunk, one of them for every event.
        return_token_ids: Ids of the prompt with the first chunk, and sampled ids with those that follow.
        attribution: By field, ids with their spans in the text of that field, in code points. A token whose text goes
            on in the next chunk has there no other span.
        keep_output: Keep what `body` needs.
    """

    _object = "chat.completion"
    _chunk_object = "chat.completion.chunk"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        id: str,
        model: str,
        created: int | None = None,
        index: int = 0,
        n: int = 1,
        reasoning: Sequence[Marker] = (),
        splitter: Callable[[Sequence[int]], Splitter] | None = None,
        prompt_token_ids: Sequence[int] = (),
        logprobs: bool = False,
        top_logprobs: int = 0,
        include_usage: bool = False,
        continuous_usage: bool = False,
        return_token_ids: bool = False,
        attribution: bool = False,
        keep_output: bool = True,
    ) -> None:
        if top_logprobs < 0 or (top_logprobs and not logprobs):
            raise ValueError(f"top_logprobs is a number of alternatives, and needs logprobs; it is {top_logprobs}")
        super().__init__(
            id=id,
            model=model,
            created=created,
            index=index,
            n=n,
            logprobs=logprobs,
            include_usage=include_usage,
            continuous_usage=continuous_usage,
            return_token_ids=return_token_ids,
            attribution=attribution,
            keep_output=keep_output,
        )
        if reasoning and splitter is not None:
            raise ValueError("reasoning and splitter both say what sections there are: give one of them")
        self._alternatives = top_logprobs
        self._reasoning = {m.name for m in reasoning if m.name != "content" and not m.keep_markers}
        self._splitter_behind = splitter
        if reasoning:
            markers = tuple(reasoning)
            self._splitter_behind = lambda prompt: SectionSplitter(tokenizer, markers, prompt_token_ids=prompt)
        elif splitter is not None:
            self._reasoning = {"reasoning"}
        # A prompt that comes with the events has a splitter made again; here its markers are checked.
        self._prompt_comes = not len(prompt_token_ids)
        self._splitter = self._splitter_behind(prompt_token_ids) if self._splitter_behind else None

    @property
    def _field(self) -> str:
        return "content" if self._splitter is None else self._field_of(self._splitter.section)

    def _field_of(self, section: str) -> str:
        return "reasoning_content" if section in self._reasoning else "content"

    def _reasoning_tokens(self) -> int:
        counts = self._splitter.token_counts if self._splitter is not None else {}
        return sum(counts[section] for section in self._reasoning)

    def _start(self, start: Start) -> list[dict[str, Any]]:
        token_ids = start.prompt_token_ids
        if self._prompt_comes and self._splitter_behind:
            self._splitter = self._splitter_behind(token_ids)
        self._prompt_token_count = len(token_ids)
        if self._with_token_ids:
            self._riders.prompt_token_ids = token_ids
        return [self._choice(self._content({"role": "assistant", "content": ""}), self._ride())]

    def _split(self, decoded: DecodedText, *, is_last: bool = False) -> Pieces:
        if self._splitter is None:
            return [("content", decoded)]
        pieces = self._splitter.push(decoded)
        if is_last:
            pieces += self._splitter.finish()
        return [(self._field_of(section), piece) for section, piece in pieces]

    def _content(self, texts: Mapping[str, str]) -> dict[str, Any]:
        return {"delta": dict(texts)}

    def _message(self, texts: Mapping[str, str]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": texts.get("content", "")}
        if self._splitter is not None:
            message["reasoning_content"] = texts.get("reasoning_content") or None
        return {"message": message}

    def _entry(self, position: PositionLogprobs, offset: int) -> dict[str, Any]:
        return chat_entry(position, self._alternatives)

    def _logprobs(self, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return chat_logprobs(entries)

    def _attributed(self, fields: dict[str, dict[str, list[Any]]]) -> dict[str, Any]:
        return fields

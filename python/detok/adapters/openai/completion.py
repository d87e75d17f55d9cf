"""`text_completion`: chunks and bodies of /v1/completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from detok import DecodedText, DetokError, PositionLogprobs, Start, Tokenizer
from detok.adapters.openai.builder import ChoiceBuilder, Pieces
from detok.adapters.openai.logprobs import Row, completion_logprobs, completion_row, prompt_rows

__all__ = ["CompletionBuilder"]


class CompletionBuilder(ChoiceBuilder):
    """Events of one choice -> text_completion chunks; see `ChoiceBuilder`.

    Args:
        tokenizer: Whose ids the events have.
        id: Of the answer.
        model: Named in the answer.
        created: Seconds since 1970; now, if left out.
        index: Which choice.
        n: How many choices the answer has. If there are others, the last usage chunk is `usage_chunk`'s.
        echo_text: The prompt as its sender wrote it, to be sent before what was generated.
        logprobs: How many alternatives each token has; the sampled token is there too. None: no logprobs.
        include_usage: A last chunk with the usage.
        continuous_usage: The usage so far in every chunk, one of them for every event.
        return_token_ids: Ids of the prompt with the first chunk, and sampled ids with those that follow.
        attribution: Ids with their spans in the text, in code points. A token whose text goes on in the next chunk has
            there no other span.
        keep_output: Keep what `body` needs.
    """

    _object = _chunk_object = "text_completion"
    _field = "text"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        id: str,
        model: str,
        created: int | None = None,
        index: int = 0,
        n: int = 1,
        echo_text: str | None = None,
        logprobs: int | None = None,
        include_usage: bool = False,
        continuous_usage: bool = False,
        return_token_ids: bool = False,
        attribution: bool = False,
        keep_output: bool = True,
    ) -> None:
        if logprobs is not None and logprobs < 0:
            raise ValueError(f"logprobs is a number of alternatives or None, not {logprobs}")
        super().__init__(
            id=id,
            model=model,
            created=created,
            index=index,
            n=n,
            logprobs=logprobs is not None,
            include_usage=include_usage,
            continuous_usage=continuous_usage,
            return_token_ids=return_token_ids,
            attribution=attribution,
            keep_output=keep_output,
        )
        self._tokenizer = tokenizer
        self._echo = None if echo_text is None else DecodedText(echo_text)
        self._alternatives = logprobs or 0

    def _start(self, start: Start) -> list[dict[str, Any]]:
        token_ids, echo = start.prompt_token_ids, self._echo
        rows: list[Row] = []
        if self._with_logprobs and echo is not None and token_ids:
            if start.prompt_logprobs is None:
                raise DetokError("logprobs of an echoed prompt are wanted, and the engine gave none")
            rows += prompt_rows(self._tokenizer, token_ids, start.prompt_logprobs, echo.text, self._alternatives)
        self._prompt_token_count = len(token_ids)
        self._riders.logprobs += rows
        if self._with_token_ids:
            self._riders.prompt_token_ids = token_ids
        elif echo is None:
            return []
        text = "" if echo is None else self._take("text", echo)
        return [self._choice(self._content({"text": text}), self._ride())]

    def _split(self, decoded: DecodedText, *, is_last: bool = False) -> Pieces:
        return [("text", decoded)]

    def _content(self, texts: Mapping[str, str]) -> dict[str, Any]:
        return {"text": texts.get("text", "")}

    _message = _content

    def _entry(self, position: PositionLogprobs, offset: int) -> Row:
        return completion_row(position, offset, self._alternatives)

    def _logprobs(self, entries: Sequence[Row]) -> dict[str, Any]:
        return completion_logprobs(entries)

    def _attributed(self, fields: dict[str, dict[str, list[Any]]]) -> dict[str, Any]:
        return fields.get("text") or {"token_ids": [], "spans": []}

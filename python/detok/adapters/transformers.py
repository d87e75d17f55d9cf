"""transformers: streamers for `generate(streamer=...)`, with the constructors and hooks of transformers' own.

Text leaves with the token that makes it certain, not at the next space; a batch may have more than one row; nothing is
decoded twice. With `skip_prompt=True` the prompt is still the context of the text after it, so that a blank between
the two is kept.
"""

from collections.abc import Iterator
from queue import Queue
from typing import TYPE_CHECKING, Any
from warnings import warn

from detok import DecodeStream, DetokWarning, Tokenizer

if TYPE_CHECKING:
    from transformers.generation.streamers import BaseStreamer
else:
    try:
        from transformers.generation.streamers import BaseStreamer
    except ImportError:
        # `generate` only ever calls `put` and `end`; the base is there for those who ask what a streamer is.
        BaseStreamer = object

__all__ = ["TextIteratorStreamer", "TextStreamer"]


class TextStreamer(BaseStreamer):
    """Prints text to standard output as it becomes certain.

    Args:
        tokenizer: A transformers tokenizer, or anything else that `Tokenizer.load` takes; a `detok.Tokenizer` that was
            loaded before costs nothing here.
        skip_prompt: Whether the prompt, which `generate` puts first, is left out of the text.
        decode_kwargs: What transformers' `decode` takes, where a stream can have it: `skip_special_tokens` (False here
            as there); `clean_up_tokenization_spaces` is ignored, for it takes back text that has left. And what
            `DecodeStream` takes: `keep_special_tokens`, `unknown_ids` ("skip" here: a model may have more ids than its
            tokenizer has names).
    """

    def __init__(self, tokenizer: Any, skip_prompt: bool = False, **decode_kwargs: Any) -> None:
        self.tokenizer = tokenizer
        self.skip_prompt = skip_prompt
        self.decode_kwargs = decode_kwargs
        self.next_tokens_are_prompt = True
        self._options = _stream_options(decode_kwargs)
        self._tokenizer = Tokenizer.load(tokenizer)
        self._rows: list[DecodeStream] = []
        self._unfinished: list[str] = []

    def put(self, value: Any) -> None:
        """Takes the prompt, then the tokens of each step: a tensor, an array or a list.

        The prompt is a row of ids or a batch of rows. Then, to a batch, a step is one id a row, as `generate` samples
        them, or again a batch of rows; to a single row it is any number of ids.
        """
        ids = value.tolist() if hasattr(value, "tolist") else value
        batched = bool(ids) and isinstance(ids[0], list)
        if self.next_tokens_are_prompt:
            rows = ids if batched else [ids]
            context = rows if self.skip_prompt else [()] * len(rows)
            self._rows = [DecodeStream(self._tokenizer, prompt, **self._options) for prompt in context]
            self.next_tokens_are_prompt = False
            if self.skip_prompt:
                return
        else:
            rows = ids if batched else [ids] if len(self._rows) == 1 else [[token_id] for token_id in ids]
        if len(rows) != len(self._rows):
            raise ValueError(f"there are tokens for {len(rows)} rows, and the prompt had {len(self._rows)}")
        errors = []
        for number, (stream, row) in enumerate(zip(self._rows, rows, strict=True)):
            try:
                stream.push_tokens(row)
            except Exception as error:
                if len(rows) > 1:
                    error.add_note(f"in row {number}")
                errors.append(error)
        # A row that is wrong takes nothing from the others: all are pushed, and shown, before it is reported.
        chunks = [stream.next_chunk() for stream in self._rows]
        if any(chunk is not None and chunk.text for chunk in chunks):
            self.on_finalized_texts([chunk.text if chunk is not None else "" for chunk in chunks])
        if errors:
            raise errors[0]

    def end(self) -> None:
        """Takes what is pending as it stands, and is ready for the next generation."""
        rows, self._rows = self._rows, []
        self.next_tokens_are_prompt = True
        lasts = [stream.flush()[0] for stream in rows]
        self.on_finalized_texts([last.text if last is not None else "" for last in lasts] or [""], stream_end=True)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Prints new text, and a line end at the end. Override this to have the text of a single row elsewhere."""
        print(text, flush=True, end="" if not stream_end else None)

    def on_finalized_texts(self, texts: list[str], stream_end: bool = False) -> None:
        """Gets the new text of every row. Override this to have the text of a batch elsewhere.

        A single row goes to `on_finalized_text`. Rows of a batch are printed line by line, each with its number, since
        half a line of one row and half a line of another have no place beside each other.
        """
        if len(texts) == 1:
            self.on_finalized_text(texts[0], stream_end)
            return
        self._unfinished = self._unfinished or [""] * len(texts)
        for row, text in enumerate(texts):
            *lines, rest = (self._unfinished[row] + text).split("\n")
            self._unfinished[row] = rest
            if stream_end and rest:
                lines.append(rest)
            for line in lines:
                print(f"[{row}] {line}", flush=True)
        if stream_end:
            self._unfinished = []


class TextIteratorStreamer(TextStreamer):
    """Iterates over text as it becomes certain, while `generate` runs in another thread.

    An item is the new text of the row; of a batch, a list with the new text of every row.

    Args:
        tokenizer: As for `TextStreamer`.
        skip_prompt: As for `TextStreamer`.
        timeout: Seconds to wait for the next text before `queue.Empty` is raised; None waits for ever, also for a
            `generate` that has failed.
        decode_kwargs: As for `TextStreamer`.
    """

    def __init__(
        self, tokenizer: Any, skip_prompt: bool = False, timeout: float | None = None, **decode_kwargs: Any
    ) -> None:
        super().__init__(tokenizer, skip_prompt, **decode_kwargs)
        self.timeout = timeout
        self.text_queue: Queue[str | list[str] | None] = Queue()

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Queues new text."""
        self._queue(text, stream_end)

    def on_finalized_texts(self, texts: list[str], stream_end: bool = False) -> None:
        """Queues the new text of every row."""
        if len(texts) == 1:
            self.on_finalized_text(texts[0], stream_end)
        else:
            self._queue(texts, stream_end)

    def _queue(self, item: str | list[str], stream_end: bool) -> None:
        if any(item):
            self.text_queue.put(item)
        if stream_end:
            self.text_queue.put(None)

    def __iter__(self) -> Iterator[str | list[str]]:
        return self

    def __next__(self) -> str | list[str]:
        item = self.text_queue.get(timeout=self.timeout)
        if item is None:
            raise StopIteration
        return item


def _stream_options(decode_kwargs: dict[str, Any]) -> dict[str, Any]:
    options = {"skip_special_tokens": False, "unknown_ids": "skip", "keep_output": False, **decode_kwargs}
    if options.pop("clean_up_tokenization_spaces", None):
        warn("clean_up_tokenization_spaces takes back text that has left; it is ignored", DetokWarning, stacklevel=3)
    for name in options.keys() - {"skip_special_tokens", "keep_special_tokens", "unknown_ids", "keep_output"}:
        raise TypeError(f"a stream cannot decode with {name!r}")
    return options

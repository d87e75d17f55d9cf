"""The native part of detok. Offsets are UTF-8 bytes unless a unit is named; rules A1 to A11 are in docs/CONTRACT.md.

Sequences of ids are lists, tuples, ranges, or 1-D native arrays of 32- or 64-bit integers (numpy, array.array, any
object with the buffer protocol), or other sequences whose items have `__index__`. `bool` is refused (`TypeError`).
Ids outside 0 to 2**32 - 1 raise `UnknownTokenError` under every policy, naming their position in the call.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Literal, Protocol, Self, SupportsIndex, TypeAlias, final, overload, type_check_only

from typing_extensions import Buffer

from detok.errors import DetokError

__all__ = [
    "ArrowBatch",
    "AttributionList",
    "BatchDecoder",
    "ChunkIterator",
    "DecodeStream",
    "DecodedText",
    "EngineUpdate",
    "FinishReason",
    "Finished",
    "Marker",
    "PositionLogprobs",
    "RequestDecoder",
    "SampledDelta",
    "SectionSplitter",
    "Start",
    "StepOutput",
    "StopMatch",
    "TextDecodeOptions",
    "TextDelta",
    "TokenAnchor",
    "TokenAttribution",
    "TokenLogprob",
    "TokenUsage",
    "Tokenizer",
    "__version__",
]

__version__: str

_TokenIds: TypeAlias = Sequence[SupportsIndex] | Buffer
_Unit: TypeAlias = Literal["byte", "codepoint", "utf16"]
_FinishKind: TypeAlias = Literal["stop", "length", "abort", "error", "repetition"]

@type_check_only
class _SupportsDecode(Protocol):
    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str: ...
    def id_to_token(self, token_id: int) -> str | None: ...
    def is_special(self, token_id: int) -> bool: ...

@final
class Tokenizer:
    """A tokenizer, as decoding sees it: compiled once, shared by its streams.

    Immutable, thread-safe and picklable as its compact table. An unpickled tokenizer encodes if it was loaded from a
    tokenizer.json that is still there, unchanged; one that was made of data or of an object decodes only.
    """

    @staticmethod
    def load(source: str | PathLike[str] | _SupportsDecode | Any, *, strict: bool = False) -> Tokenizer:
        """Loads by what `source` is.

        Args:
            source: A folder, a tokenizer.json, a tekken.json, a tiktoken rank file, a SentencePiece model (files are
                told by content); a `tokenizers.Tokenizer`, a fast transformers tokenizer, a `tiktoken.Encoding`, a
                mistral_common tokenizer; or any object with `decode`, `id_to_token` and `is_special`, which is
                decoded by windows. A name that is no path is looked up in the local Hugging Face cache if
                huggingface_hub is installed; nothing is downloaded.
            strict: Follow the `tokenizers` crate where detok departs from it: D2 and D3 everywhere, D1 in one-shot
                `decode`.

        Raises:
            FileNotFoundError: There is no such path.
            TokenizerLoadError: It is no tokenizer; names the path and what is wrong.
            TypeError: An object that is none of these.
        """

    @staticmethod
    def from_file(path: str | PathLike[str], *, strict: bool = False) -> Tokenizer:
        """Loads a file or folder; see `load`."""

    @staticmethod
    def from_json(data: str | bytes, *, strict: bool = False) -> Tokenizer:
        """Loads the text of a tokenizer.json, which stays in memory for `encode`."""

    @staticmethod
    def from_tiktoken(
        path: str | PathLike[str],
        *,
        special_tokens: Mapping[str, int] = ...,
        pattern: str | None = None,
    ) -> Tokenizer:
        """Loads a rank file: lines of a base64 byte string and its id. `encode` needs the split pattern."""

    @staticmethod
    def from_token_bytes(
        tokens: Iterable[bytes | None],
        *,
        special_token_ids: Iterable[int] = ...,
    ) -> Tokenizer:
        """A byte vocabulary given as data: index = id, `None` = unmapped."""

    # What `detok._sources` makes tokenizers of objects with.
    @staticmethod
    def _from_ranks(
        ranks: Mapping[bytes, int], special_tokens: Mapping[str, int], pattern: str | None
    ) -> Tokenizer: ...
    @staticmethod
    def _from_object(object: _SupportsDecode, reason: str) -> Tokenizer: ...
    @staticmethod
    def _from_saved(data: bytes) -> Tokenizer: ...
    def _with_encoder(self, encoder: Callable[[str, bool], _TokenIds]) -> Tokenizer: ...
    @property
    def vocab_size(self) -> int:
        """Highest id + 1, added tokens included."""

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Ids of the special tokens, by the source's word."""

    @property
    def strategy(
        self,
    ) -> Literal["byte_level", "byte_fallback", "metaspace", "wordpiece", "bpe_suffix", "ranks", "plain", "window"]:
        """The decoder family; `window` is the one that is not exact."""

    @property
    def strategy_reason(self) -> str | None:
        """Why the strategy is the window."""

    @property
    def fingerprint(self) -> str:
        """A stable hash of what decoding depends on. `DetokError` for the window over an object."""

    def id_to_token(self, token_id: SupportsIndex) -> str | None:
        """The token as its source spells it; `None` if unknown."""

    def token_to_id(self, token: str) -> int | None:
        """The id of a token by its name; `None` if there is none."""

    def token_bytes(self, token_id: SupportsIndex) -> bytes | None:
        """What the token contributes in the middle of text (nothing stripped); `None` if unmapped."""

    def is_special(self, token_id: SupportsIndex) -> bool:
        """Whether the token is special; unknown ids are not."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of a text. `DetokError` names what is missing where the source cannot encode."""

    def decode(
        self,
        token_ids: _TokenIds,
        *,
        skip_special_tokens: bool = True,
        keep_special_tokens: Iterable[int | str] = ...,
        unknown_ids: Literal["error", "skip"] = "error",
    ) -> str:
        """The text of a whole sequence.

        Raises:
            UnknownTokenError: An id that is unknown, unless such ids are skipped.
        """

    def decode_batch(
        self,
        sequences: Iterable[_TokenIds],
        *,
        skip_special_tokens: bool = True,
        unknown_ids: Literal["error", "skip"] = "error",
        threads: int = 1,
    ) -> list[str]:
        """The texts of many sequences. With threads, large batches are decoded without the interpreter lock."""

    def decode_attributed(
        self,
        token_ids: _TokenIds,
        *,
        prompt_token_ids: _TokenIds = ...,
        skip_special_tokens: bool = True,
        keep_special_tokens: Iterable[int | str] = ...,
        unknown_ids: Literal["error", "skip"] = "error",
    ) -> DecodedText:
        """The text of a whole sequence behind a prompt, with one record per id, as a stream would give it."""

    def __copy__(self) -> Tokenizer: ...
    def __deepcopy__(self, _memo: Any) -> Tokenizer: ...
    def stream(
        self,
        token_ids: Iterable[SupportsIndex],
        *,
        prompt_token_ids: _TokenIds = ...,
        skip_special_tokens: bool = True,
    ) -> ChunkIterator:
        """The shortest way: chunks as they become certain, the flushed rest last. Keeps nothing handed out."""

@final
class TokenAnchor:
    """Where a token stands in text: visible or zero-width, with a byte offset. Frozen and hashable."""

    __match_args__: ClassVar[tuple[Literal["kind"], Literal["byte_offset"]]] = ...
    def __new__(cls, kind: Literal["visible", "zero_width"], byte_offset: int) -> Self: ...
    @staticmethod
    def visible(byte_offset: int) -> TokenAnchor:
        """The start of the character that holds the token's first byte (A2)."""

    @staticmethod
    def zero_width(byte_offset: int) -> TokenAnchor:
        """The place of a token without text of its own (A3)."""

    @property
    def kind(self) -> Literal["visible", "zero_width"]: ...
    @property
    def is_visible(self) -> bool: ...
    @property
    def byte_offset(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class TokenAttribution:
    """One generated token and its place in decoded text. Frozen and hashable."""

    __match_args__: ClassVar[tuple[Literal["token_id"], Literal["anchor"]]] = ...
    def __new__(
        cls, token_id: SupportsIndex, anchor: TokenAnchor, *, continues_char: bool = False, cut: bool = False
    ) -> Self: ...
    @property
    def token_id(self) -> int: ...
    @property
    def anchor(self) -> TokenAnchor: ...
    @property
    def continues_char(self) -> bool:
        """The token's first byte is not the first byte of the character at its anchor."""

    @property
    def cut(self) -> bool:
        """The token lost text to a cut (A7)."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class AttributionList(Sequence[TokenAttribution]):
    """The records of a `DecodedText`; each is made when it is asked for. Equal to a list of the same records."""

    def __len__(self, /) -> int: ...
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> TokenAttribution: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[TokenAttribution]: ...
    def __contains__(self, item: object, /) -> bool: ...
    def index(self, item: object, start: int = 0, stop: int = ...) -> int: ...
    def count(self, item: object) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class DecodedText:
    """Decoded text and the generated tokens attributed to it."""

    def __new__(cls, text: str = "", attributions: Iterable[TokenAttribution] = ...) -> Self:
        """Text and records that fit each other.

        Raises:
            ValueError: Offsets decrease, lie inside a character or past the text, or a visible record stands at its
                end without continuing a character.
        """

    @property
    def text(self) -> str:
        """A copy of the text."""

    @property
    def attributions(self) -> AttributionList:
        """The records, in generation order; no copy, and later changes of this text do not change it."""

    @property
    def token_ids(self) -> list[int]: ...
    def __bool__(self, /) -> bool:
        """Any text or any token."""

    def __add__(self, other: DecodedText, /) -> DecodedText: ...
    def __radd__(self, value: DecodedText, /) -> DecodedText: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
    def append(self, other: DecodedText) -> None:
        """Joins `other` to the end; its offsets move by the length of this text (A8). `other` is unchanged."""

    def drain_prefix(self, byte_len: int) -> DecodedText:
        """Splits off the first `byte_len` bytes and the records that leave with them (A8).

        Raises:
            ValueError: `byte_len` is no character boundary of the text.
        """

    def take(self) -> DecodedText:
        """Returns everything and leaves this one empty."""

    def spans(self, *, unit: _Unit = "codepoint", shared: Literal["touch", "own"] = "touch") -> list[tuple[int, int]]:
        """Half-open ranges of text, one per token (A9).

        Args:
            unit: What the ranges count.
            shared: `touch`: the smallest range of whole characters that holds the token's bytes. `own`: every
                character belongs to the token that holds its first byte; spans partition joined text.
        """

    def offsets(self, *, unit: _Unit = "codepoint") -> list[int]:
        """Anchors of all tokens."""

    def tokens_at(self, start: int, end: int, *, unit: _Unit = "codepoint") -> range:
        """Indices of the tokens whose text overlaps `start` to `end` (A11); O(log n) after the first query in a unit.

        Raises:
            ValueError: A negative or reversed range.
        """

    def mask(
        self,
        ranges: Iterable[tuple[int, int]],
        *,
        unit: _Unit = "codepoint",
        rule: Literal["any", "all", "first", "majority"] = "first",
    ) -> list[bool]:
        """One bool per token: does it belong to one of the ranges of text (A11)?

        Args:
            ranges: Half-open, in `unit`.
            rule: `first`: the character at its anchor lies in a range. `any`, `all`, `majority`: so many of the code
                points of its `touch` span do. A zero-width token belongs if its place lies in a range, or at the end
                of the text if a range ends there.
        """

    def to_numpy(self) -> tuple[Any, Any, Any]:
        """Read-only columns: ids (uint32), byte offsets (uint32), flags (uint8: 1 visible, 2 continues a character,
        4 cut). Copied once, shared from then on; memoryviews where numpy is missing."""

    def to_dict(self) -> dict[str, Any]:
        """`{"text": ..., "attributions": [...]}`, for JSON."""

    def _repr_html_(self) -> str: ...

@final
class DecodeStream:
    """Incremental decoder of one generation (A1 to A11). A call that raises changes nothing.

    Safe to share between threads: one lock, and waiting for it releases the interpreter.
    """

    def __new__(
        cls,
        tokenizer: Tokenizer,
        prompt_token_ids: _TokenIds = ...,
        *,
        skip_special_tokens: bool = True,
        keep_special_tokens: Iterable[int | str] = ...,
        min_bytes_to_buffer: int = 0,
        unknown_ids: Literal["error", "skip"] = "error",
        keep_output: bool = True,
    ) -> Self:
        """A stream behind a prompt, of which only the tail is read and nothing is kept.

        Args:
            tokenizer: Whose ids are pushed.
            prompt_token_ids: The tokens before the first generated one. Ids the tokenizer does not know are passed
                over; only ids that are read are checked.
            skip_special_tokens: Hide special tokens; they have zero-width records.
            keep_special_tokens: Special tokens, by name or id, shown although the others are hidden.
            min_bytes_to_buffer: Bytes at the end of the text that stay behind until the flush.
            unknown_ids: `error` raises; `skip` gives unknown ids a zero-width record.
            keep_output: Keep what it takes to give text and records again in `output` and `flush`: the ids, four
                bytes a token (the chunks, on the window strategy). Without it memory is constant.
        """

    def push_token(self, token_id: SupportsIndex) -> int:
        """Pushes one token; the number of bytes of text that became certain.

        Raises:
            UnknownTokenError: The id is unknown, unless such ids are skipped.
            StreamFinishedError: The stream was flushed.
            ValueError: More text than 32-bit anchors address would be kept.
        """

    def push_tokens(self, token_ids: _TokenIds) -> int:
        """Pushes tokens, all or none; the number of bytes of text that became certain."""

    def next_chunk(self) -> DecodedText | None:
        """What may leave now: text, records, or both (A5, A6)."""

    def flush(self, truncate_output_to: int | None = None) -> tuple[DecodedText | None, DecodedText]:
        """Ends the text: the last chunk, and everything (what was not handed out, with keep_output=False).

        Args:
            truncate_output_to: Cut the text at this byte (A7).

        Raises:
            ValueError: A cut inside a character, or before text that was handed out.
            StreamFinishedError: The stream was flushed before.
        """

    def step(self, token_id: SupportsIndex) -> str | None:
        """Pushes one token and hands out what may leave, as text alone; its records count as handed out."""

    @property
    def output(self) -> str:
        """All text since the start, held-back text included; a copy at each read. Needs keep_output."""

    @property
    def pending(self) -> Mapping[str, int]:
        """`incomplete_bytes` of an unfinished character, `held_bytes` of whole ones, `waiting_tokens`."""

    @property
    def token_count(self) -> int:
        """Tokens pushed since the start."""

    def reset(self, prompt_token_ids: _TokenIds = ...) -> None:
        """Starts over behind another prompt, with the same options."""

@final
class ChunkIterator(Iterator[DecodedText]):
    """What `Tokenizer.stream` gives."""

    def __iter__(self, /) -> Self: ...
    def __next__(self, /) -> DecodedText: ...

@type_check_only
class _HasLogprob(Protocol):
    # A `rank`, which may be None, is read if there is one.
    @property
    def logprob(self) -> float: ...

# What an engine tells of one position.
_GivenLogprobs: TypeAlias = (
    float | TokenLogprob | PositionLogprobs | Sequence[TokenLogprob] | Mapping[int, float] | Mapping[int, _HasLogprob]
)
_DecodedTextEvent: TypeAlias = Start | TextDelta

@final
class TokenLogprob:
    """A token that was sampled, or might have been, and how likely it was. Frozen and hashable.

    Numbers are as the engine gave them, minus infinity and NaN too. NaN equals itself, so that a copy is equal.
    """

    __match_args__: ClassVar[tuple[Literal["token_id"], Literal["logprob"], Literal["rank"]]] = ...
    def __new__(
        cls,
        token_id: SupportsIndex,
        logprob: float,
        rank: int | None = None,
        *,
        token: str = "",
        token_bytes: bytes = ...,
    ) -> Self:
        """As an engine reports it: `token` and `token_bytes` are filled in by the decoder."""

    @property
    def token_id(self) -> int: ...
    @property
    def logprob(self) -> float:
        """Natural logarithm of the probability."""

    @property
    def rank(self) -> int | None:
        """Place among all tokens, the likeliest being 1, if the engine tells."""

    @property
    def token(self) -> str:
        """The token's text behind the tokens before it; see `fragments` of `TextDecodeOptions`."""

    @property
    def token_bytes(self) -> bytes:
        """The token's own bytes, in the middle of text (`Tokenizer.token_bytes`); empty for an unmapped id."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class PositionLogprobs:
    """The sampled token of one position, and its alternatives. Frozen and hashable."""

    __match_args__: ClassVar[tuple[Literal["sampled"], Literal["top"]]] = ...
    def __new__(cls, sampled: TokenLogprob, top: Iterable[TokenLogprob] = ...) -> Self: ...
    @property
    def sampled(self) -> TokenLogprob: ...
    @property
    def top(self) -> tuple[TokenLogprob, ...]:
        """In the engine's order; the sampled token is among them if the engine reported it so."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class SampledDelta:
    """What was sampled in one update, on the engine's clock. Frozen and hashable.

    Ids count here in the update in which they came, whether their text is certain yet or not.
    """

    __match_args__: ClassVar[tuple[Literal["token_ids"], Literal["logprobs"]]] = ...
    def __new__(
        cls,
        token_ids: _TokenIds,
        logprobs: Iterable[PositionLogprobs] | None = None,
        *,
        token_texts: Iterable[str] | None = None,
    ) -> Self:
        """`ValueError` if there is not one entry of `logprobs`, and of `token_texts`, per id."""

    @property
    def token_ids(self) -> list[int]:
        """The ids that count, those that end the request among them; a copy."""

    @property
    def logprobs(self) -> list[PositionLogprobs] | None:
        """One per id, if the engine gave them."""

    @property
    def token_texts(self) -> tuple[str, ...] | None:
        """One per id, if the decoder was asked for them: what `TokenLogprob.token` would be, without a number."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class TokenUsage:
    """Counts of tokens. Frozen and hashable."""

    __match_args__: ClassVar[
        tuple[Literal["prompt_token_count"], Literal["output_token_count"], Literal["cached_token_count"]]
    ] = ...
    def __new__(cls, prompt_token_count: int, output_token_count: int, cached_token_count: int = 0) -> Self: ...
    @property
    def prompt_token_count(self) -> int: ...
    @property
    def output_token_count(self) -> int:
        """Sampled ids that count: those that end the request do, those behind a stop do not."""

    @property
    def cached_token_count(self) -> int:
        """Of the prompt's, those the engine had cached: the largest number it told."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class FinishReason:
    """Why a request ended. Frozen and hashable."""

    __match_args__: ClassVar[tuple[Literal["kind"], Literal["stop"]]] = ...
    def __new__(cls, kind: _FinishKind, stop: str | int | None = None) -> Self: ...
    @property
    def kind(self) -> _FinishKind: ...
    @property
    def stop(self) -> str | int | None:
        """The stop string or the stop token's id; `None` for the end of sequence, and for what is no stop."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class StopMatch:
    """Where and how one of the request's own stops ended its text. Frozen and hashable."""

    __match_args__: ClassVar[
        tuple[Literal["stop"], Literal["byte_offset"], Literal["token_index"], Literal["cut"]]
    ] = ...
    def __new__(cls, stop: str | int, byte_offset: int, token_index: int, cut: bool = False) -> Self: ...
    @property
    def stop(self) -> str | int:
        """The stop string, or the stop token's id."""

    @property
    def byte_offset(self) -> int:
        """Where the text ends, counted from the start of the generation."""

    @property
    def token_index(self) -> int:
        """The token that completed the stop, counted from 0 in the whole generation."""

    @property
    def cut(self) -> bool:
        """Whether that token lost text, or the place where it stood (A7)."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class Finished:
    """How a request ended. Frozen and hashable; the hash leaves `kv_transfer_params` out."""

    __match_args__: ClassVar[
        tuple[
            Literal["usage"],
            Literal["finish_reason"],
            Literal["stop_match"],
            Literal["kv_transfer_params"],
            Literal["dropped_token_ids"],
            Literal["first_cut_token"],
        ]
    ] = ...
    def __new__(
        cls,
        usage: TokenUsage,
        finish_reason: FinishReason,
        stop_match: StopMatch | None = None,
        kv_transfer_params: Any | None = None,
        dropped_token_ids: _TokenIds = ...,
        first_cut_token: int | None = None,
    ) -> Self: ...
    @property
    def usage(self) -> TokenUsage:
        """Tokens of the whole request."""

    @property
    def finish_reason(self) -> FinishReason:
        """The request's own stop before the engine's word."""

    @property
    def stop_match(self) -> StopMatch | None:
        """Set if the text ended at one of the request's own stops."""

    @property
    def kv_transfer_params(self) -> Any:
        """The latest that the engine told and was not `None`; the same object."""

    @property
    def dropped_token_ids(self) -> list[int]:
        """Ids of the last update behind the stop: not kept, not counted."""

    @property
    def first_cut_token(self) -> int | None:
        """The first token that lost text to a stop string, counted from 0 in the whole generation."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class Start:
    """The first event of a request. Frozen and hashable."""

    __match_args__: ClassVar[tuple[Literal["prompt_token_ids"], Literal["prompt_logprobs"]]] = ...
    def __new__(
        cls, prompt_token_ids: _TokenIds, prompt_logprobs: Iterable[PositionLogprobs | None] | None = None
    ) -> Self:
        """`ValueError` if there is not one entry of `prompt_logprobs` per id."""

    @property
    def prompt_token_ids(self) -> list[int]:
        """A copy."""

    @property
    def prompt_logprobs(self) -> list[PositionLogprobs | None] | None:
        """One per id of the prompt, if the engine gave them; `None` where it had none, as for the first."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class TextDelta:
    """What one update brought: text that is certain now, and tokens that were sampled now. Frozen and hashable.

    The two run on clocks of their own: joined over the events of a request, each is complete.
    """

    __match_args__: ClassVar[tuple[Literal["decoded"], Literal["sampled"], Literal["finished"]]] = ...
    def __new__(cls, decoded: DecodedText, sampled: SampledDelta, finished: Finished | None = None) -> Self: ...
    @property
    def decoded(self) -> DecodedText:
        """Text that may be shown, and the tokens attributed to it. A new object each time: changing it does not
        change the event."""

    @property
    def sampled(self) -> SampledDelta: ...
    @property
    def finished(self) -> Finished | None:
        """Set in the last event of a request."""

    @property
    def text(self) -> str:
        """The text of `decoded`, at less cost."""

    @property
    def token_texts(self) -> tuple[str, ...] | None:
        """The texts of `sampled`, at less cost."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

_Pattern: TypeAlias = str | int | Sequence[str | int]

@final
class Marker:
    """A named section, and the patterns that open and close it. Frozen and hashable."""

    __match_args__: ClassVar[tuple[Literal["name"], Literal["start"], Literal["end"]]] = ...
    def __new__(
        cls,
        name: str,
        start: _Pattern,
        end: _Pattern,
        *,
        also_end: Sequence[_Pattern] = ...,
        reopen: bool = False,
        keep_markers: bool = False,
    ) -> Self:
        """A pattern is text, a token id, or a sequence of these that follow on each other.

        Text that is just the content of a special or added token of the tokenizer stands for that token: it matches
        by its id, shown or hidden, and text that only looks like it does not.

        Args:
            name: Of the section. Several markers may share it; `content` makes it part of the text outside.
            start: What opens the section.
            end: What closes it. If it is the start of another marker too, that one opens.
            also_end: Other patterns that close it.
            reopen: Whether it opens more than once. Otherwise a later start is text like any other.
            keep_markers: Whether the markers stay in the text of the section, with their records.

        Raises:
            ValueError: An empty name, pattern or text; the name `markers`; lone surrogates.
            TypeError: A part that is neither a `str` nor an id.
            UnknownTokenError: An id below 0 or above 2**32 - 1.
        """

    @property
    def name(self) -> str: ...
    @property
    def start(self) -> str | int | tuple[str | int, ...]: ...
    @property
    def end(self) -> str | int | tuple[str | int, ...]: ...
    @property
    def also_end(self) -> tuple[str | int | tuple[str | int, ...], ...]: ...
    @property
    def reopen(self) -> bool: ...
    @property
    def keep_markers(self) -> bool: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class SectionSplitter:
    """Splits decoded text into named sections at markers, keeping attribution, and counts the tokens of each.

    What may still become a marker is held back, and no more. A token belongs to the side of its first byte; one without
    text to the side it was sampled on. However the text is cut into pushes, the sections have the same text, records
    and counts, and every record is counted once.
    """

    def __new__(
        cls,
        tokenizer: Tokenizer,
        markers: Sequence[Marker],
        *,
        prompt_token_ids: _TokenIds = ...,
        initial: str | None = None,
    ) -> Self:
        """Opens in the section that the prompt leaves open.

        Args:
            tokenizer: Of the text and the ids.
            markers: In the order in which ties are settled, of those that are complete at one byte.
            prompt_token_ids: Read from the end up to the last special token that is part of no marker: the state is
                as if what is behind it had been text of the same generation. None of it is handed out or counted.
            initial: The name of the section to begin in, whatever the prompt is.

        Raises:
            UnknownTokenError: An id that the tokenizer does not have; `index` is its place in the pattern.
            ValueError: An id that is a part of a character; two markers that start alike; more than 64 KiB of
                patterns (an id counts as six bytes); an `initial` that no marker has.
            TypeError: A marker that is no `Marker`.
        """

    def push(self, decoded: DecodedText) -> list[tuple[str, DecodedText]]:
        """The sections of more decoded text, as far as they are certain: pairs of a name (`content` outside of all
        markers) and text with records, whose offsets are those of that text.

        Two pairs of one list are different sections, also if they have one name; the first goes on with the section
        that was open. A record of a character that lies in the section before has no text here: it is zero-width.

        Raises:
            StreamFinishedError: After `finish`.
        """

    def finish(self) -> list[tuple[str, DecodedText]]:
        """What was held back: it is text of its section. Ends the splitter.

        Raises:
            StreamFinishedError: At a second call.
        """

    @property
    def token_counts(self) -> Mapping[str, int]:
        """Tokens so far of each section by name, `content` too, and of all markers under `markers`.

        Their sum is the number of records that were pushed. Tokens that are held back count where they are until it is
        certain that they are a marker.
        """

    @property
    def section(self) -> str:
        """The section that the next text belongs to, as far as that is certain."""

@final
class TextDecodeOptions:
    """What a request wants of its text. Immutable and hashable.

    Stop strings are compiled here, once, and shared by every request with these options.
    """

    def __new__(
        cls,
        *,
        skip_special_tokens: bool = True,
        keep_special_tokens: Iterable[int | str] = ...,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Iterable[SupportsIndex] = ...,
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
        min_bytes_to_buffer: int = 0,
        sections: Sequence[Marker] = ...,
        stop_scope: str | None = None,
        unknown_ids: Literal["error", "skip"] = "error",
        fragments: Literal["openai", "empty", "replacement"] = "openai",
    ) -> Self:
        """Checks all that no tokenizer is needed for. Each decoder looks up the names in `keep_special_tokens`; with a
        `stop_scope` it compiles the patterns of `sections`, and raises what `SectionSplitter` does.

        Args:
            skip_special_tokens: Hide special tokens; they have zero-width records.
            keep_special_tokens: Special tokens, by name or id, shown although the others are hidden.
            stop: Strings that end the text. They match on visible text, across tokens, never into the prompt; the
                one that is complete first wins, and of those complete at one byte the first in the list. The text is
                cut before the match. What may still become one is held back: the longest suffix of the text that
                begins a stop string, and no more. Text that first appears at the end of the request is not searched.
            stop_token_ids: Ids that end the request when they are sampled. Such an id counts and is not decoded,
                unless stops are included.
            include_stop_str_in_output: Leave what ended the text in it; nothing is held back for stop strings then.
            min_tokens: A stop completed by one of so many first tokens (hidden ones count) does not count, ever.
            min_bytes_to_buffer: Bytes at the end of the text that stay behind until the end.
            sections: Where the sections of the text begin and end, for `stop_scope`.
            stop_scope: The name of a section, or `content` for what is outside of them: stop strings match only
                there, within one stretch of it, and never a marker. Text of which it is not certain whether it is a
                marker is held back. `None` is everywhere. Stop token ids end the request wherever they are sampled.
            unknown_ids: `error` raises; `skip` gives unknown ids a zero-width record.
            fragments: How `TokenLogprob.token` shows bytes that are no whole character. `openai`: each as `\\xNN`, as
                OpenAI's API does. `empty`: not at all; the token that completes a character has the whole of it.
                `replacement`: as U+FFFD, the token decoded alone.

        Raises:
            ValueError: An empty stop string, one with lone surrogates, more than 4 MiB of them; a negative number;
                a word that is none of the choices; a scope that is no section.
            TypeError: A stop that is no `str`, a section that is no `Marker`.
        """

    @property
    def skip_special_tokens(self) -> bool: ...
    @property
    def keep_special_tokens(self) -> tuple[int | str, ...]:
        """As given."""

    @property
    def stop(self) -> tuple[str, ...]:
        """In the order given, which settles ties."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ascending, each once."""

    @property
    def include_stop_str_in_output(self) -> bool: ...
    @property
    def min_tokens(self) -> int: ...
    @property
    def min_bytes_to_buffer(self) -> int: ...
    @property
    def sections(self) -> tuple[Marker, ...]: ...
    @property
    def stop_scope(self) -> str | None: ...
    @property
    def unknown_ids(self) -> Literal["error", "skip"]: ...
    @property
    def fragments(self) -> Literal["openai", "empty", "replacement"]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class EngineUpdate:
    """What an engine reports at one step of one request. Immutable and hashable; the hash leaves
    `kv_transfer_params` out."""

    def __new__(
        cls,
        token_ids: _TokenIds = ...,
        *,
        logprobs: Sequence[_GivenLogprobs] | None = None,
        finish_reason: str | None = None,
        stop_token_id: SupportsIndex | None = None,
        stop_string: str | None = None,
        prompt_token_ids: _TokenIds | None = None,
        prompt_logprobs: Sequence[_GivenLogprobs | None] | None = None,
        cached_token_count: int = 0,
        kv_transfer_params: Any | None = None,
    ) -> Self:
        """Checks what can be told from the update alone.

        Args:
            token_ids: Sampled since the last update.
            logprobs: One entry per id: a number, which is the sampled token's; a `TokenLogprob`; a sequence of them,
                the sampled token first and its alternatives behind it; a mapping of ids to numbers, or to objects with
                `logprob` and perhaps `rank`, the sampled id among them; or a `PositionLogprobs`.
            finish_reason: `stop`, `length`, `abort`, `error` or `repetition`, in the last update of a request.
            stop_token_id: With `finish_reason="stop"`, the id at which the engine stopped. If it is the last id, or if
                neither this nor `stop_string` is given (an end of sequence), the last id is kept and not decoded.
            stop_string: With `finish_reason="stop"`, the string at which it stopped: all ids of the update are text.
            prompt_token_ids: The prompt, in the first update, if the decoder was not given it; later it is not read.
            prompt_logprobs: In the first update, one entry per token of the prompt, as in `logprobs` or `None`.
            cached_token_count: Tokens of the prompt that did not have to be computed.
            kv_transfer_params: Any object, passed on to `Finished`.

        Raises:
            ValueError: An unknown finish reason, a stop without the reason `stop`, two stops, entries that are not
                one per id or not of its id, a negative count.
            TypeError: Something that is no id, or no entry.
            UnknownTokenError: A number outside the range of ids.
        """

    @property
    def token_ids(self) -> list[int]: ...
    @property
    def logprobs(self) -> list[PositionLogprobs] | None:
        """The entries, whatever they were given as."""

    @property
    def finish_reason(self) -> _FinishKind | None: ...
    @property
    def stop_token_id(self) -> int | None: ...
    @property
    def stop_string(self) -> str | None: ...
    @property
    def prompt_token_ids(self) -> list[int] | None: ...
    @property
    def prompt_logprobs(self) -> list[PositionLogprobs | dict[int, TokenLogprob] | float | None] | None:
        """The entries; a mapping or a number stays one if the update does not tell which prompt it is of."""

    @property
    def cached_token_count(self) -> int: ...
    @property
    def kv_transfer_params(self) -> Any: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class RequestDecoder:
    """The event stream of one request, without I/O. A call that raises changes nothing.

    Safe to share between threads: one lock, and waiting for it releases the interpreter.
    """

    def __new__(
        cls,
        tokenizer: Tokenizer,
        prompt_token_ids: _TokenIds | None = None,
        options: TextDecodeOptions | None = None,
        *,
        request_id: str = "",
        intermediate: bool = True,
        token_texts: bool = False,
    ) -> Self:
        """A request behind a prompt.

        Args:
            tokenizer: Whose ids the updates have.
            prompt_token_ids: The prompt; if left out, the first update has it. Ids the tokenizer does not know are
                passed over.
            options: What is shown, and where the text ends.
            request_id: The caller's name of the request, for errors.
            intermediate: One `TextDelta` per update; otherwise one at the end, with everything.
            token_texts: Each sampled token comes with its text, logprobs or not.
        """

    def push(self, update: EngineUpdate) -> list[_DecodedTextEvent]:
        """The events of one update: a `TextDelta`, and before the first the `Start`.

        Raises:
            UnknownTokenError: An id is unknown, unless such ids are skipped; `index` counts in this update. Ids
                behind a stop are not looked at.
            RequestError: The engine finished with an error, or there is no prompt.
            StreamFinishedError: The request has ended.
            ValueError: The first update has another prompt than the decoder, or logprobs of another one.
        """

    def close(self) -> None:
        """Says that no more updates come. `RequestError` if the request has not ended."""

    @property
    def abort_cause(self) -> Literal["stop_string", "stop_token_id"] | None:
        """Set if one of the request's own stops ended it: the engine, which may know nothing of it, is to be told."""

    @property
    def is_finished(self) -> bool:
        """Whether the last event was given."""

    @property
    def request_id(self) -> str: ...

@final
class BatchDecoder:
    """Many requests of one tokenizer, one call per engine step. Slots keep no output.

    What a slot gives for its ids is what a `RequestDecoder` would: text, records, stops, how many ids count. Safe to
    share between threads (one lock). Engine reasons play no part here: `finish` ends a request that its engine ended,
    and an end-of-sequence id is a `stop_token_ids` of its options.
    """

    def __new__(
        cls,
        tokenizer: Tokenizer,
        options: TextDecodeOptions | None = None,
        *,
        threads: int = 1,
        release_gil: bool | None = None,
    ) -> Self:
        """No requests.

        Args:
            options: Of requests that are added without their own.
            threads: Most threads of a step; fewer ids than 16,384 are stepped on one, which is faster.
            release_gil: Whether a step lets other Python threads run. `None`: from 65,536 ids on, since getting the
                interpreter back beside a busy thread can cost more than a smaller step. A tokenizer that is a Python
                object never does.

        Raises:
            ValueError: A special token to keep that the tokenizer does not have; `threads` below 1.
        """

    def add(self, prompt_token_ids: _TokenIds = ..., options: TextDecodeOptions | None = None) -> int:
        """Adds a request behind a prompt, of which only the tail is read; its slot is the lowest that is free."""

    def step(
        self, slots: _TokenIds, token_ids: _TokenIds, counts: _TokenIds | None = None, *, token_texts: bool = False
    ) -> StepOutput:
        """Pushes what one engine step sampled.

        Args:
            slots: Each slot once.
            token_ids: The ids of all slots, end to end.
            counts: How many of the ids belong to each slot, as many numbers as slots; without it, one each.
            token_texts: Whether `StepOutput.token_texts` is wanted.

        A slot that fails stays as it was, is reported in `StepOutput.errors`, and leaves the others alone.

        Raises:
            ValueError: A slot named twice, or counts that do not add up. Nothing has changed then.
            Exception: What the `decode` of a Python object raised; a note names the slot, and no slot has changed.
        """

    def finish(self, slots: _TokenIds) -> StepOutput:
        """Ends requests: what they withheld comes out, half a character as U+FFFD. Their slots stay until `remove`."""

    def remove(self, slots: _TokenIds) -> None:
        """Frees slots, all or none.

        Raises:
            StateError: A slot that is not in use.
            ValueError: A slot named twice.
        """

    def pending(self, slot: SupportsIndex) -> dict[str, int]:
        """What a slot withholds, as `DecodeStream.pending`; `StateError` for a slot that is not in use."""

    def usage(self, slot: SupportsIndex) -> TokenUsage:
        """Tokens of a slot's request so far; `StateError` for a slot that is not in use. `cached_token_count` is 0."""

    def __len__(self) -> int:
        """Slots in use."""

@final
class StepOutput:
    """What a step gave, by position in its slots. Python objects are made when they are first asked for."""

    @property
    def texts(self) -> list[str]:
        """By position, the text that became certain; empty where none did. The same list at each access."""

    @property
    def token_texts(self) -> list[list[str]] | None:
        """By position, the text of each kept token as `TokenLogprob.token` has it; `None` if not asked for."""

    @property
    def kept_tokens(self) -> list[int]:
        """By position, how many of its ids count: those behind a stop do not, and none where there was an error."""

    @property
    def stopped(self) -> dict[int, StopMatch]:
        """By slot, the stop of its own that ended its request. The engine, which knows nothing of it, is to be told."""

    @property
    def errors(self) -> dict[int, DetokError]:
        """By slot, why nothing was done to it.

        `UnknownTokenError`, whose index counts within the slot's ids, `StreamFinishedError`, or `StateError` for a slot
        that is not in use. The same dictionary at each access.
        """

    def decoded(self, i: int) -> DecodedText:
        """Text and records of a position; `IndexError` if there is none such."""

    def to_arrow(self) -> ArrowBatch:
        """Texts and records as Arrow arrays, one row per position: copied once, then shared by all readers."""

    def __len__(self) -> int:
        """Number of positions."""

@final
class ArrowBatch:
    """A step's rows for libraries that speak the Arrow PyCapsule interface: `pyarrow.record_batch(batch)`.

    Columns: `slot` (uint32), `text` (large_utf8), `kept_tokens` (uint32), and of the row's records, as lists,
    `token_ids` (uint32), `byte_offsets` (uint32, into the row's text) and `flags` (uint8, those of
    `DecodedText.to_numpy`).
    """

    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...
    def __len__(self) -> int: ...

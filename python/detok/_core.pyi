"""The native part of detok. Offsets are UTF-8 bytes unless a unit is named.

Sequences of ids are lists, tuples, ranges, or 1-D native arrays of 32- or 64-bit integers (numpy, array.array, any
object with the buffer protocol), or other sequences whose items have `__index__`. `bool` is refused (`TypeError`).
Ids outside 0 to 2**32 - 1 raise `UnknownTokenError` under every policy, naming their position in the call.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Literal, Protocol, Self, SupportsIndex, TypeAlias, final, overload, type_check_only

from typing_extensions import Buffer

__all__ = [
    "AttributionList",
    "ChunkIterator",
    "DecodeStream",
    "DecodedText",
    "TokenAnchor",
    "TokenAttribution",
    "Tokenizer",
    "__version__",
]

__version__: str

_TokenIds: TypeAlias = Sequence[SupportsIndex] | Buffer
_Unit: TypeAlias = Literal["byte", "codepoint", "utf16"]

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

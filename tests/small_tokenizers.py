"""The smallest tokenizer of a family that holds the given tokens, spelled as the file the family comes in.

Nothing here imports `detok`: files are text or bytes, so that the oracles can read them too.
"""

import base64
import json
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MARK = "\u2581"  # the blank of SentencePiece pieces


class Piece(NamedTuple):
    """One token: what it spells and how it is registered."""

    text: str | bytes  # bytes for vocabularies of bytes, the piece otherwise
    kind: str = "normal"  # "normal", "special" (hidden when specials are), "added" (plain text, found as a whole)


# ------------------------------------------------------------------ byte alphabet


def byte_alphabet() -> dict[int, str]:
    """GPT-2's letters for the 256 bytes."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in shown]
    return {b: chr(b) for b in shown} | {b: chr(0x100 + i) for i, b in enumerate(others)}


ALPHABET = byte_alphabet()


def spelled(data: bytes) -> str:
    """`data` in the letters of the byte alphabet."""
    return "".join(ALPHABET[b] for b in data)


# ------------------------------------------------------------------ tokenizer.json

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
REPLACE = {"type": "Replace", "pattern": {"String": MARK}, "content": " "}
BYTE_FALLBACK = {"type": "ByteFallback"}
FUSE = {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
METASPACE = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": True}
METASPACE_NEVER = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "never", "split": False}
METASPACE_OLD = {"type": "Metaspace", "replacement": MARK, "add_prefix_space": True}
WORDPIECE = {"type": "WordPiece", "prefix": "##", "cleanup": True}
WORDPIECE_PLAIN = {"type": "WordPiece", "prefix": "##", "cleanup": False}
BPE_SUFFIX = {"type": "BPEDecoder", "suffix": "</w>"}
CTC = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}
REGEX_REPLACE = {"type": "Replace", "pattern": {"Regex": "_+"}, "content": " "}


def sequence(*decoders: dict) -> dict:
    return {"type": "Sequence", "decoders": list(decoders)}


def added_token(token_id: int, content: str, special: bool) -> dict:
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    return {"id": token_id, "content": content, **flags, "special": special}


def tokenizer_json(model: dict, decoder: dict | None, added: Sequence[dict] = (), **parts) -> str:
    """A tokenizer.json; `parts` are normalizer, pre_tokenizer and the like."""
    data = {"version": "1.0", "added_tokens": list(added), **parts, "decoder": decoder, "model": model}
    return json.dumps(data, ensure_ascii=False)


def bpe(vocab: dict[str, int], *, byte_fallback: bool = False) -> dict:
    return {"type": "BPE", "unk_token": None, "byte_fallback": byte_fallback, "vocab": vocab, "merges": []}


def _vocabulary(base: Iterable[str], pieces: Sequence[Piece]) -> tuple[dict[str, int], list[dict]]:
    """Normal pieces behind `base`, each once; special and added ones behind those, as files do."""
    vocab: dict[str, int] = {}
    for text in [*base, *(p.text for p in pieces if p.kind == "normal")]:
        vocab.setdefault(text, len(vocab))
    added: dict[str, dict] = {}
    behind = len(vocab)
    for text, kind in (p for p in pieces if p.kind != "normal"):
        if text not in added:
            added[text] = added_token(vocab.get(text, behind), text, kind == "special")
            behind += text not in vocab
    return vocab, list(added.values())


def byte_level_json(pieces: Sequence[Piece], *, missing: Iterable[int] = (), decoder: dict | None = None) -> str:
    """All single bytes (but `missing`), then the pieces, given as bytes."""
    base = [ALPHABET[b] for b in range(256) if b not in set(missing)]
    spelling = [Piece(spelled(p.text) if p.kind == "normal" else p.text.decode(), p.kind) for p in pieces]
    vocab, added = _vocabulary(base, spelling)
    pre_tokenizer = BYTE_LEVEL | {"add_prefix_space": False}
    return tokenizer_json(bpe(vocab), decoder or BYTE_LEVEL, added, pre_tokenizer=pre_tokenizer)


BYTE_PIECES = [f"<0x{b:02X}>" for b in range(256)]


def spm_json(pieces: Sequence[Piece], decoder: dict, *, base: Iterable[str] = ("<unk>", *BYTE_PIECES, MARK)) -> str:
    """Byte pieces and the blank, then the pieces; encodes as Llama does."""
    vocab, added = _vocabulary(base, pieces)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, replace]}
    model = bpe(vocab, byte_fallback=True) | {"unk_token": "<unk>"}
    return tokenizer_json(model, decoder, added, normalizer=normalizer)


def unigram_json(pieces: Sequence[Piece], decoder: dict) -> str:
    vocab, added = _vocabulary(["<pad>"], pieces)
    model = {"type": "Unigram", "unk_id": vocab.get("<unk>"), "vocab": [[text, -float(i)] for text, i in vocab.items()]}
    return tokenizer_json(model, decoder, added)


def wordpiece_json(pieces: Sequence[Piece], decoder: dict = WORDPIECE) -> str:
    vocab, added = _vocabulary(["[PAD]"], pieces)
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    return tokenizer_json(model | {"max_input_chars_per_word": 100, "vocab": vocab}, decoder, added)


def plain_json(pieces: Sequence[Piece], decoder: dict | None = None) -> str:
    """A vocabulary of whole pieces under any decoder; ids are places in the list."""
    vocab, added = _vocabulary([], pieces)
    return tokenizer_json(bpe(vocab), decoder, added)


# ------------------------------------------------------------------ ranks


def rank_file(ranks: dict[bytes, int]) -> bytes:
    """A tiktoken file."""
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


def tekken_json(tokens: Sequence[bytes], specials: Sequence[str] = (), *, special_slots: int = 16) -> str:
    """A tekken.json; a token's id is its rank plus `special_slots`."""
    vocab = []
    for rank, token in enumerate(tokens):
        try:
            token_str = token.decode()
        except UnicodeDecodeError:
            token_str = None
        vocab.append({"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": token_str})
    config = {
        "pattern": "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+|\\s+",
        "num_vocab_tokens": len(vocab),
        "default_vocab_size": len(vocab) + special_slots,
        "default_num_special_tokens": special_slots,
        "version": "v3",
    }
    data = {"config": config, "vocab": vocab}
    if specials:
        data["special_tokens"] = [{"rank": i, "token_str": s, "is_control": True} for i, s in enumerate(specials)]
    return json.dumps(data)


# ------------------------------------------------------------------ SentencePiece

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
UNIGRAM_MODEL, BPE_MODEL = 1, 2
TRAINER_FLOATS = (10, 15)
NO_ID = (1 << 64) - 1  # -1 as protobuf writes it


def varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def field(number: int, value: int | float | bytes | str) -> bytes:
    """One protobuf field."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """The fields of one protobuf message, in order; 32- and 64-bit values as bytes."""
    out, at = [], 0

    def read_varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = read_varint()
        kind = key & 7
        if kind == 0:
            out.append((key >> 3, read_varint()))
            continue
        size = read_varint() if kind == 2 else {1: 8, 5: 4}[kind]
        out.append((key >> 3, data[at : at + size]))
        at += size
    return out


def spm_piece(text: str, kind: int = NORMAL, score: float = -1.0) -> bytes:
    return field(1, field(1, text) + field(2, score) + field(3, kind))


def spm_model(
    pieces: Sequence[tuple[str, int]], *, model: int = BPE_MODEL, dummy_prefix: bool = True, remove_extra: bool = False
) -> bytes:
    """A SentencePiece .model; ids are places in the list, one piece must be UNKNOWN."""
    body = b"".join(spm_piece(text, kind, -float(i)) for i, (text, kind) in enumerate(pieces))
    unk = next(i for i, (_, kind) in enumerate(pieces) if kind == UNKNOWN)
    trainer = field(3, model) + field(35, int(any(kind == BYTE for _, kind in pieces))) + field(40, unk)
    trainer += b"".join(field(n, NO_ID) for n in (41, 42, 43))  # bos, eos, pad
    normalizer = field(1, "identity") + field(3, int(dummy_prefix)) + field(4, int(remove_extra)) + field(5, 1)
    return body + field(2, trainer) + field(3, normalizer)


def spm_model_of(pieces: Sequence[Piece], **options) -> bytes:
    """`pieces` behind an unknown piece and the 256 byte pieces, each once."""
    kinds = {"<unk>": UNKNOWN} | dict.fromkeys(BYTE_PIECES, BYTE)
    for text, kind in pieces:
        kinds.setdefault(text, {"normal": NORMAL, "special": CONTROL, "added": USER_DEFINED}[kind])
    kinds.setdefault(MARK, NORMAL)  # SentencePiece refuses a vocabulary without a normal piece
    return spm_model(list(kinds.items()), **options)


def shown_controls(model: bytes) -> bytes:
    """The same .model with control pieces as user-defined ones and the unknown piece shown by its name.

    SentencePiece itself then spells them, which makes it the oracle for streams that show special tokens.
    """
    out, unknown, trainer = [], "<unk>", b""
    for number, value in fields(model):
        if number == 1:
            piece = dict(fields(value))
            kind = piece.get(3, NORMAL)
            if kind == UNKNOWN:
                unknown = piece[1].decode()
            (score,) = struct.unpack("<f", piece.get(2, b"\0\0\0\0"))
            out.append(spm_piece(piece[1].decode(), USER_DEFINED if kind == CONTROL else kind, score))
        elif number == 2:
            trainer = value
        else:
            out.append(field(number, value))
    # The ids and names of bos, eos and pad must be control pieces, which are no more: none are named.
    kept = [
        varint(n << 3 | 5) + v if n in TRAINER_FLOATS else field(n, v)
        for n, v in fields(trainer)
        if n not in range(41, 49)
    ]
    kept += [field(n, NO_ID) for n in (41, 42, 43)] + [field(44, unknown)]
    return b"".join([*out, field(2, b"".join(kept))])


def piece_kinds(model: bytes) -> list[tuple[str, int]]:
    """Every piece of a .model with its kind, by id."""
    pieces = [dict(fields(value)) for number, value in fields(model) if number == 1]
    return [(p[1].decode(), p.get(3, NORMAL)) for p in pieces]

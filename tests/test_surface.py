"""The public names, used as a caller would; mypy checks this file too."""

import asyncio
import copy
import pickle
from collections.abc import AsyncIterator, Iterator, Sequence

import detok
import pytest
from detok import (
    DecodedText,
    DecodedTextEvent,
    DecodeStream,
    EngineUpdate,
    Finished,
    FinishReason,
    Marker,
    PositionLogprobs,
    RequestDecoder,
    SampledDelta,
    SectionSplitter,
    Start,
    StopMatch,
    TextDecodeOptions,
    TextDelta,
    TokenAnchor,
    TokenAttribution,
    Tokenizer,
    TokenLogprob,
    TokenUsage,
    _core,
)


def _tokenizer() -> Tokenizer:
    return Tokenizer.from_token_bytes([b"a", b"\xe4", b"\xbd\xa0", None, b"<s>"], special_token_ids=[4])


def test_everything_the_extension_exports_is_public() -> None:
    # Types that only come back from calls need no public name of their own.
    returned = {"AttributionList", "ChunkIterator"}
    exported = {name for name in dir(_core) if not name.startswith("_")}
    assert len(exported) > 4
    assert exported - returned <= set(detok.__all__)
    assert all(hasattr(detok, name) for name in detok.__all__)
    assert detok.__version__ == _core.__version__


def test_a_stream_step_by_step() -> None:
    stream = DecodeStream(_tokenizer(), prompt_token_ids=(0,), keep_output=True)
    steps: list[str | None] = [stream.step(token) for token in (0, 1, 4, 2)]
    assert steps == ["a", None, None, "你"]
    last, everything = stream.flush()
    assert last is None
    assert everything.text == "a你"
    spans: list[tuple[int, int]] = everything.spans(unit="byte")
    assert spans == [(0, 1), (1, 4), (1, 1), (1, 4)]


def test_sections_of_a_stream() -> None:
    markers: Sequence[Marker] = [Marker("reasoning", ["<s>"], 0, also_end=["a", ["<s>", 0]], reopen=True)]
    splitter = SectionSplitter(_tokenizer(), markers, prompt_token_ids=[0], initial=None)
    decoded = _tokenizer().decode_attributed([4, 1, 2, 0])
    pieces: list[tuple[str, DecodedText]] = splitter.push(decoded) + splitter.finish()
    assert [(name, piece.text) for name, piece in pieces] == [("reasoning", "你")]
    counts: dict[str, int] = dict(splitter.token_counts)
    assert counts == {"content": 0, "reasoning": 2, "markers": 2}
    assert (splitter.section, markers[0].start, markers[0].end) == ("content", "<s>", 0)
    options = TextDecodeOptions(stop="x", sections=markers, stop_scope="reasoning")
    assert (options.sections, options.stop_scope) == (tuple(markers), "reasoning")


def test_records_are_a_sequence_and_match() -> None:
    decoded = DecodedText(
        "a你", [TokenAttribution(7, TokenAnchor.visible(0)), TokenAttribution(8, TokenAnchor.zero_width(1))]
    )
    records: Sequence[TokenAttribution] = decoded.attributions
    assert isinstance(records, Sequence)
    seen: list[tuple[int, str, int]] = []
    for record in records:
        match record:
            case TokenAttribution(token_id, TokenAnchor(kind, byte_offset)):
                seen.append((token_id, kind, byte_offset))
    assert seen == [(7, "visible", 0), (8, "zero_width", 1)]
    assert pickle.loads(pickle.dumps(decoded)) == decoded
    assert pickle.loads(pickle.dumps(records)) == list(records)


def test_chunks_of_an_iterable() -> None:
    ids = iter([0, 1, 2, 1])
    assert [chunk.text for chunk in _tokenizer().stream(ids)] == ["a", "你", "\ufffd"]


def test_a_request_update_by_update() -> None:
    options = TextDecodeOptions(stop=["你a"], min_tokens=1, fragments="empty")
    decoder = RequestDecoder(_tokenizer(), [0], options, request_id="r1")
    events: list[DecodedTextEvent] = decoder.push(EngineUpdate([0], logprobs=[{0: -0.5, 1: -2}]))
    events += decoder.push(EngineUpdate([1, 2], logprobs=[TokenLogprob(1, -1.0), [TokenLogprob(2, 0.0)]]))
    events += decoder.push(EngineUpdate([0, 0], logprobs=[{0: -0.5}, {0: -0.5}], kv_transfer_params={"blocks": [7]}))
    shown: list[str] = []
    strings: list[str] = []
    for event in events:
        match event:
            case Start(prompt_token_ids, prompt_logprobs):
                assert (prompt_token_ids, prompt_logprobs) == ([0], None)
            case TextDelta(decoded, SampledDelta(_, logprobs), finished):
                shown.append(decoded.text)
                strings += [position.sampled.token for position in logprobs or ()]
                assert (finished is None) == (len(shown) < 3)
    assert shown == ["a", "", ""]
    assert strings == ["a", "", "你", "a"]
    assert (decoder.is_finished, decoder.abort_cause, decoder.request_id) == (True, "stop_string", "r1")
    assert isinstance(event, TextDelta)
    assert event.finished == Finished(
        TokenUsage(1, 4), FinishReason("stop", "你a"), StopMatch("你a", 1, 3, True), {"blocks": [7]}, [0], 1
    )
    assert repr(event.finished) == (
        "Finished(TokenUsage(prompt_token_count=1, output_token_count=4), FinishReason('stop', stop='你a'), "
        "stop_match=StopMatch('你a', byte_offset=1, token_index=3, cut=True), kv_transfer_params={'blocks': [7]}, "
        "dropped_token_ids=[0], first_cut_token=1)"
    )
    with pytest.raises(detok.StreamFinishedError):
        decoder.push(EngineUpdate())


VALUES: list[object] = [
    TokenLogprob(7, float("nan"), 3, token="a", token_bytes=b"a"),
    PositionLogprobs(TokenLogprob(7, -0.5), [TokenLogprob(8, float("-inf"))]),
    SampledDelta([7], [PositionLogprobs(TokenLogprob(7, -0.5))]),
    TokenUsage(1, 2, 3),
    FinishReason("repetition"),
    StopMatch(7, 1, 2),
    Finished(TokenUsage(1, 2), FinishReason("stop", 7), StopMatch(7, 1, 2), {"unhashable": []}, (8, 9), 1),
    Start([1, 2], [None, PositionLogprobs(TokenLogprob(2, -0.5))]),
    TextDelta(DecodedText("a", [TokenAttribution(7, TokenAnchor.visible(0))]), SampledDelta([7])),
    TextDecodeOptions(stop="x", keep_special_tokens=["<s>", 4], stop_token_ids=range(2), fragments="empty"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_values(value: object) -> None:
    for same in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert (same, repr(same), hash(same)) == (value, repr(value), hash(value))
    assert [other for other in VALUES if other == value] == [value]
    # Each attribute that may not be set is there to be read.
    for name in getattr(type(value), "__match_args__", ()):
        with pytest.raises(AttributeError):
            setattr(value, name, None)


def test_an_update_gives_back_what_it_was_made_of() -> None:
    update = EngineUpdate(
        [5], logprobs=[{5: -0.5}], finish_reason="stop", stop_string="x", prompt_logprobs=[None, {3: -1.0}]
    )
    assert update.token_ids == [5]
    assert update.logprobs == [PositionLogprobs(TokenLogprob(5, -0.5), [TokenLogprob(5, -0.5)])]
    assert (update.finish_reason, update.stop_string, update.stop_token_id) == ("stop", "x", None)
    assert update.prompt_logprobs == [None, {3: TokenLogprob(3, -1.0)}]
    assert pickle.loads(pickle.dumps(update)) == update
    assert update != EngineUpdate([5])


def test_changing_decoded_text_does_not_change_the_event() -> None:
    [event] = RequestDecoder(_tokenizer(), []).push(EngineUpdate([0]))[1:]
    assert isinstance(event, TextDelta)
    event.decoded.append(event.decoded)
    assert event.decoded.text == "a"


def _source() -> Iterator[EngineUpdate]:
    yield EngineUpdate([0], prompt_token_ids=[0])
    yield EngineUpdate(finish_reason="length")
    raise AssertionError("read behind the end")


def test_events_of_an_iterable() -> None:
    events: list[DecodedTextEvent] = list(detok.decode_events(_source(), _tokenizer()))
    assert [event.decoded.text for event in events if isinstance(event, TextDelta)] == ["a", ""]


def test_events_of_an_asynchronous_iterable() -> None:
    async def source() -> AsyncIterator[EngineUpdate]:
        for update in _source():
            yield update

    async def collect() -> list[DecodedTextEvent]:
        return [event async for event in detok.adecode_events(source(), _tokenizer())]

    assert asyncio.run(collect()) == list(detok.decode_events(_source(), _tokenizer()))

"""The public names, used as a caller would; mypy checks this file too."""

import pickle
from collections.abc import Sequence

import detok
from detok import DecodedText, DecodeStream, TokenAnchor, TokenAttribution, Tokenizer, _core


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

"""Races, each with the invariant it watches. A deadlock would hang: `finished` turns it into a failure."""

import gc
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import detok
import pytest
import small_tokenizers as small
from conftest import load_tokenizer, read_jsonl
from helpers import CountingDecoder, ones, replay
from small_tokenizers import Piece

THREADS = 8
TIMEOUT = 60


def finished(work, count: int = THREADS) -> list:
    """`work(i)` in `count` threads that start together; results in order."""
    barrier = threading.Barrier(count, timeout=TIMEOUT)

    def run(i: int):
        barrier.wait()
        return work(i)

    with ThreadPoolExecutor(count) as pool:
        return [future.result(timeout=TIMEOUT) for future in [pool.submit(run, i) for i in range(count)]]


def test_one_tokenizer_many_streams():
    """Every thread sees the text that one alone sees."""
    tokenizer = load_tokenizer("smollm2")
    rows = read_jsonl("smollm2_streams.jsonl")

    def work(i: int) -> bool:
        mine = rows[i::THREADS]
        return all(
            replay(detok.DecodeStream(tokenizer, skip_special_tokens=False), ones(row["ids"])).text == row["text"]
            and tokenizer.decode(row["ids"], skip_special_tokens=False) == row["text"]
            for row in mine
        )

    assert finished(work) == [True] * THREADS


def test_a_new_tokenizers_first_strings():
    """Lazily made strings are made once or more than once, but always the same."""
    for _ in range(5):
        tokenizer = detok.Tokenizer.from_token_bytes([b"%d," % i for i in range(3_000)])

        def work(i: int, tokenizer: detok.Tokenizer = tokenizer) -> str:
            stream = detok.DecodeStream(tokenizer)
            return "".join(stream.step(token) for token in range(3_000))

        expect = "".join(f"{i}," for i in range(3_000))
        assert finished(work) == [expect] * THREADS


def test_one_stream_many_writers():
    """No token is lost or written twice, and no push is refused as a second borrow."""
    tokenizer = detok.Tokenizer.from_token_bytes([b"%d;" % i for i in range(THREADS)])
    stream, each = detok.DecodeStream(tokenizer), 2_000

    def work(i: int) -> int:
        return sum(stream.push_tokens([i, i]) if n % 2 else stream.push_token(i) * 2 for n in range(each))

    written = finished(work)
    assert stream.token_count == THREADS * (each // 2) * 3
    _, everything = stream.flush()
    counts = Counter(everything.text.split(";")[:-1])
    assert counts == {str(i): each // 2 * 3 for i in range(THREADS)}
    assert Counter(everything.token_ids) == dict.fromkeys(range(THREADS), each // 2 * 3)
    assert sum(written) == THREADS * each * 2 * 2


def test_one_stream_read_while_it_is_written():
    """What readers take out, joined in the order of the lock, is what was put in."""
    tokenizer = detok.Tokenizer.from_token_bytes([b"\xe4\xb8", b"\x96", b"ok "])
    stream, lock, taken = detok.DecodeStream(tokenizer), threading.Lock(), []

    def work(i: int) -> None:
        for _ in range(1_000):
            if i == 0:
                stream.push_tokens([0, 1, 2])
            elif i == 1:
                with lock:
                    chunk = stream.next_chunk()
                    if chunk is not None:
                        taken.append(chunk)
            else:
                assert stream.pending["incomplete_bytes"] <= 3
                assert stream.output.replace("世ok ", "") in ("", "世")
                assert 0 <= stream.token_count <= 3_000

    finished(work)
    last, everything = stream.flush()
    assert everything.text == "世ok " * 1_000
    assert "".join(chunk.text for chunk in taken) + (last.text if last else "") == everything.text


def test_batches_in_threads_of_their_own():
    tokenizer = load_tokenizer("smollm2")
    rows = read_jsonl("smollm2_streams.jsonl")
    ids, texts = [row["ids"] for row in rows], [row["text"] for row in rows]

    def work(_: int) -> bool:
        return tokenizer.decode_batch(ids, skip_special_tokens=False, threads=4) == texts

    assert finished(work, 4) == [True] * 4


# ------------------------------------------------------------------ calls that come back


class Reentering(CountingDecoder):
    """Its decode uses the stream that asked."""

    stream: detok.DecodeStream | None = None
    call = staticmethod(lambda stream: None)
    caught: BaseException | None = None

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        if self.stream is not None:
            stream, self.stream = self.stream, None
            try:
                self.call(stream)
            except RuntimeError as error:
                self.caught = error
                raise
            finally:
                self.stream = stream
        return super().decode(token_ids, skip_special_tokens)


REENTRIES = {
    "push_token": lambda stream: stream.push_token(0),
    "push_tokens": lambda stream: stream.push_tokens([0]),
    "step": lambda stream: stream.step(0),
    "next_chunk": lambda stream: stream.next_chunk(),
    "flush": lambda stream: stream.flush(),
    "reset": lambda stream: stream.reset(),
    "output": lambda stream: stream.output,
    "pending": lambda stream: stream.pending,
    "token_count": lambda stream: stream.token_count,
}


@pytest.mark.parametrize("name", REENTRIES)
def test_an_object_that_reenters_the_stream(name):
    """RuntimeError out of the inner call, through the object, to the caller; then the stream goes on."""
    decoder = Reentering([b"a", b"b"])
    stream = detok.DecodeStream(detok.Tokenizer.load(decoder))
    stream.push_token(0)
    decoder.call, decoder.stream = REENTRIES[name], stream

    def work(_: int) -> None:
        with pytest.raises(RuntimeError):
            stream.push_token(1)

    finished(work, 1)  # in a thread, so that a deadlock is seen
    assert isinstance(decoder.caught, RuntimeError)
    decoder.stream = None
    assert (stream.token_count, stream.output) == (1, "a")
    assert stream.push_token(1) == 1
    assert stream.output == "ab"


def test_an_object_that_uses_another_stream():
    """Only the same stream is closed to it."""
    inner = detok.DecodeStream(detok.Tokenizer.from_token_bytes([b"x"]))
    decoder = Reentering([b"a", b"b"])
    decoder.call = lambda stream: stream.push_token(0)
    stream = detok.DecodeStream(detok.Tokenizer.load(decoder))
    decoder.stream = inner
    stream.push_token(0)
    assert stream.output == "a"
    assert set(inner.output) == {"x"}


def test_an_index_that_reenters_the_stream():
    """Ids are converted before the lock is taken: the inner push comes first, or is refused; never a deadlock."""
    tokenizer = detok.Tokenizer.from_json(small.byte_level_json([Piece(b"ab")]))
    stream = detok.DecodeStream(tokenizer)

    class Reenters:
        def __index__(self) -> int:
            stream.push_token(256)
            return ord("c")

    def work(_: int) -> None:
        try:
            stream.push_tokens([Reenters(), ord("d")])
        except RuntimeError:
            stream.push_tokens([256, ord("c"), ord("d")])

    finished(work, 1)
    assert stream.output == "abcd"


def test_an_object_that_is_slow_does_not_block_others():
    """A stream that waits inside an object's decode holds only its own lock."""
    inside, go_on = threading.Event(), threading.Event()

    class Slow(CountingDecoder):
        def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
            inside.set()
            assert go_on.wait(TIMEOUT)
            return super().decode(token_ids, skip_special_tokens)

    tokenizer = detok.Tokenizer.load(Slow([b"a", b"b"]))
    slow = detok.DecodeStream(tokenizer)
    other = detok.DecodeStream(detok.Tokenizer.from_token_bytes([b"x"]))

    def work(i: int) -> str:
        if i == 0:
            slow.push_token(0)
        elif i == 1:
            assert inside.wait(TIMEOUT)
            other.push_token(0)
            go_on.set()
        else:
            # Waits for the lock that thread 0 holds; waiting lets the others run.
            assert inside.wait(TIMEOUT)
            slow.push_token(1)
        return "done"

    assert finished(work, 3) == ["done"] * 3
    assert (slow.output, other.output) == ("ab", "x")


@pytest.mark.parametrize("allocations", range(12))
def test_an_error_made_while_garbage_is_collected_does_not_wait_for_itself(allocations):
    """A finalizer may come back to the stream at any allocation: no lock is held when exceptions are made."""
    stream = detok.DecodeStream(detok.Tokenizer.from_token_bytes([b"a", b"b"]))

    class Finalizer:
        def __init__(self):
            self.cycle = self

        def __del__(self):
            stream.push_token(1)

    before = gc.get_threshold()
    Finalizer()
    try:
        gc.set_threshold(gc.get_count()[0] + allocations)
        with pytest.raises(detok.UnknownTokenError):
            stream.push_token(7)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    stream.push_token(0)
    assert stream.output.replace("b", "") == "a"

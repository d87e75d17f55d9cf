"""Many requests, one call a step: each slot gives what a request of its own gives, whatever befalls the others."""

import array
import itertools
import random
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import detok
import numpy as np
import pytest
import small_tokenizers as small
from conftest import load_tokenizer, read_jsonl
from detok import BatchDecoder, EngineUpdate, RequestDecoder, StopMatch, TextDecodeOptions, TokenUsage
from engine import marks, requested, transcript, vocabulary
from helpers import CountedId, CountingDecoder, groupings
from small_tokenizers import Piece
from test_stop import ROWS, STOP_IDS, options_of

TIMEOUT = 60
HIDDEN, E4, BD, A0 = "<|hidden|>", b"\xe4", b"\xbd", b"\xa0"
NOTHING = {"incomplete_bytes": 0, "held_bytes": 0, "waiting_tokens": 0}

TOKENIZER, (A, B, HALF, REST, ST, OP, END) = vocabulary("a", "b", E4 + BD, A0, "ST", "OP", HIDDEN)
UNKNOWN = TOKENIZER.vocab_size + 5


def opened(count: int, options: TextDecodeOptions | None = None, **batch: Any) -> tuple[BatchDecoder, list[int]]:
    decoder = BatchDecoder(TOKENIZER, options, **batch)
    return decoder, [decoder.add() for _ in range(count)]


# ------------------------------------------------------------------ slots


def test_the_lowest_free_slot_comes_first():
    batch, slots = opened(5)
    assert (slots, len(batch)) == ([0, 1, 2, 3, 4], 5)
    batch.remove([3, 1])
    assert len(batch) == 3
    assert [batch.add() for _ in range(3)] == [1, 3, 5]
    batch.remove(range(6))
    assert (len(batch), batch.add()) == (0, 0)


def test_a_slot_that_is_used_again_remembers_nothing():
    """Neither half characters nor held text, nor a stop that was, nor options."""
    batch, (slot,) = opened(1, TextDecodeOptions(stop="STOP"))
    for tokens in ([A, HALF], [A, ST], [ST, OP], []):
        batch.step([slot], tokens, [len(tokens)])
        batch.remove([slot])
        assert batch.add([B]) == slot
        assert (batch.pending(slot), batch.usage(slot)) == (NOTHING, TokenUsage(1, 0))
        out = batch.step([slot], [REST, OP], [2])
        assert (out.texts, out.stopped, out.errors) == (["\ufffdOP"], {}, {})
        assert marks(out.decoded(0)) == "V0 V3"
        batch.remove([slot])
        assert batch.add([], TextDecodeOptions(stop="x")) == slot
        assert batch.step([slot], [ST]).texts == ["ST"]
        batch.remove([slot])
        assert batch.add() == slot


def test_positions_are_in_the_order_of_the_call():
    batch, slots = opened(4)
    out = batch.step([2, 0, 3, 1], [A, B, ST, OP])
    assert (out.texts, out.kept_tokens) == (["a", "b", "ST", "OP"], [1] * 4)
    out = batch.step([3, 1, 2], [A, A, B, HALF], [2, 0, 2])
    assert (out.texts, out.kept_tokens) == (["aa", "", "b"], [2, 0, 2])
    assert [batch.usage(slot).output_token_count for slot in slots] == [1, 1, 3, 3]
    assert batch.step([2], [REST]).texts == ["你"]


def test_slots_have_prompts_and_options_of_their_own():
    batch = BatchDecoder(TOKENIZER, TextDecodeOptions(stop="a"))
    slots = [
        batch.add(),
        batch.add([A, HALF]),
        batch.add([], TextDecodeOptions()),
        batch.add(options=TextDecodeOptions(skip_special_tokens=False)),
    ]
    assert batch.step(slots, [END, REST, END, END]).texts == ["", "你", "", HIDDEN]
    out = batch.step(slots, [A] * 4)
    assert (out.texts, set(out.stopped)) == (["", "", "a", "a"], {0, 1})


def test_a_step_of_nothing():
    batch, (slot,) = opened(1)
    for out in (batch.step([], []), batch.step([], [], []), batch.finish([])):
        assert (out.texts, out.kept_tokens, dict(out.stopped), dict(out.errors)) == ([], [], {}, {})
    out = batch.step([slot], [], [0])
    assert (out.texts, out.kept_tokens) == ([""], [0])
    assert batch.remove([]) is None


# ------------------------------------------------------------------ what comes out


def test_what_a_step_gives():
    batch, slots = opened(3, TextDecodeOptions(stop="STOP"))
    out = batch.step(slots, [A, HALF, ST, OP, B, B], [2, 2, 2], token_texts=True)
    assert (out.texts, out.kept_tokens) == (["a", "", "bb"], [2, 2, 2])
    assert out.stopped == {1: StopMatch("STOP", 0, 1, True)}
    assert out.errors == {}
    assert isinstance(out.stopped, Mapping)
    assert isinstance(out.errors, Mapping)
    assert out.token_texts == [["a", "\\xe4\\xbd"], ["ST", "OP"], ["b", "b"]]
    assert [marks(out.decoded(i)) for i in range(3)] == ["V0", "Z0 Z0", "V0 V1"]
    assert [out.decoded(i).text for i in range(3)] == out.texts
    assert batch.step([0, 2], [REST, END]).token_texts is None
    for outside in (3, 10**9, 10**30):
        with pytest.raises(IndexError):
            out.decoded(outside)
    with pytest.raises(TypeError):
        out.decoded("0")


def test_what_was_given_stays():
    """Later steps, changes by the caller and the end of the decoder do not reach it."""
    batch, slots = opened(2)
    out = batch.step(slots, [A, B], token_texts=True)
    out.decoded(0).append(detok.DecodedText("more"))
    before = out.texts, out.kept_tokens, out.token_texts
    batch.step(slots, [ST, OP])
    batch.remove(slots)
    del batch
    assert (out.texts, out.kept_tokens, out.token_texts) == before == (["a", "b"], [1, 1], [["a"], ["b"]])
    assert [out.decoded(i).text for i in (0, 1)] == ["a", "b"]


def test_text_of_tokens():
    """In left context, by the slot's `fragments`; those behind a stop have none."""
    batch = BatchDecoder(TOKENIZER)
    slots = [batch.add([HALF], TextDecodeOptions(fragments=f, stop="x")) for f in ("openai", "empty", "replacement")]
    out = batch.step(slots, [REST, END] * 3, [2] * 3, token_texts=True)
    assert out.token_texts == [["\\xa0", HIDDEN], ["你", HIDDEN], ["\ufffd", HIDDEN]]
    stopping = batch.add([], TextDecodeOptions(stop="STOP", stop_token_ids=[END]))
    out = batch.step([stopping], [A, ST, OP, B], [4], token_texts=True)
    assert (out.token_texts, out.kept_tokens) == ([["a", "ST", "OP"]], [3])
    by_id = batch.add([], TextDecodeOptions(stop_token_ids=[END]))
    out = batch.step([by_id], [A, END, B], [3], token_texts=True)
    assert (out.texts, out.token_texts, out.kept_tokens) == (["a"], [["a", HIDDEN]], [2])


def test_pending_and_usage():
    batch, (slot,) = opened(1, TextDecodeOptions(stop="STOP"))
    other = batch.add([A, B, A])
    batch.step([slot], [ST])
    assert batch.pending(slot) == NOTHING | {"held_bytes": 2}
    batch.step([slot], [HALF])
    assert batch.pending(slot)["incomplete_bytes"] == 2
    assert batch.pending(slot)["held_bytes"] == 2
    # ST has its place, which is held with its text; the half character has none yet.
    assert batch.pending(slot)["waiting_tokens"] == 1
    assert (batch.pending(other), batch.usage(other)) == (NOTHING, TokenUsage(3, 0, 0))
    assert batch.usage(slot) == TokenUsage(0, 2, 0)
    batch.step([slot, other], [REST, END])
    assert (batch.pending(slot), batch.usage(slot), batch.usage(other)) == (NOTHING, TokenUsage(0, 3), TokenUsage(3, 1))


@pytest.mark.parametrize("count", [1, 100])
def test_finish(count):
    """Held text, then what is left of a character; then it is over."""
    batch, slots = opened(count, TextDecodeOptions(stop="STOP"))
    batch.step(slots, [A, ST, HALF] * count, [3] * count)
    out = batch.finish(slots)
    assert out.texts == ["ST\ufffd"] * count
    assert out.kept_tokens == [0] * count
    assert (dict(out.stopped), dict(out.errors)) == ({}, {})
    assert marks(out.decoded(0)) == "V0 V2"
    assert out.token_texts is None
    assert len(batch) == count
    assert batch.usage(slots[0]) == TokenUsage(0, 3)
    for again in (batch.finish(slots), batch.step(slots, [A] * count)):
        assert set(again.errors) == set(slots)
        assert all(isinstance(error, detok.StreamFinishedError) for error in again.errors.values())
        assert (again.texts, again.kept_tokens) == ([""] * count, [0] * count)
    batch.remove(slots)
    assert len(batch) == 0


def test_a_stopped_slot_stays_until_it_is_removed():
    batch, slots = opened(2, TextDecodeOptions(stop="STOP", stop_token_ids=[END]))
    out = batch.step(slots, [A, ST, OP, B, B, END, A], [4, 3])
    assert out.texts == ["a", "b"]
    assert out.kept_tokens == [3, 2]
    assert out.stopped == {0: StopMatch("STOP", 1, 2, True), 1: StopMatch(END, 1, 1)}
    assert [batch.usage(slot).output_token_count for slot in slots] == [3, 2]
    assert (len(batch), batch.add()) == (2, 2)
    out = batch.step([0, 1, 2], [A, A, A])
    assert {slot: type(error) for slot, error in out.errors.items()} == dict.fromkeys(slots, detok.StreamFinishedError)
    assert out.texts == ["", "", "a"]
    assert set(batch.finish(slots).errors) == set(slots)
    batch.remove(slots)
    assert (len(batch), batch.add()) == (1, 0)


# ------------------------------------------------------------------ errors


def test_an_error_is_the_slots_own():
    """The others go on; the slot itself is as it was."""
    batch, slots = opened(4, TextDecodeOptions(stop="STOP"))
    batch.step(slots, [HALF, ST, A, A])
    batch.finish([3])
    out = batch.step([0, 1, 2, 3, 9], [REST, A, UNKNOWN, B, A, A, A], [1, 2, 2, 1, 1], token_texts=True)
    assert out.texts == ["你", "", "ba", "", ""]
    assert out.kept_tokens == [1, 0, 2, 0, 0]
    assert out.token_texts == [["\\xa0"], [], ["b", "a"], [], []]
    assert out.stopped == {}
    kinds = {1: detok.UnknownTokenError, 3: detok.StreamFinishedError, 9: detok.StateError}
    assert {slot: type(error) for slot, error in out.errors.items()} == kinds
    # An error's index counts within the slot's ids.
    assert (out.errors[1].token_id, out.errors[1].index) == (UNKNOWN, 1)
    assert "9" in str(out.errors[9])
    assert not out.decoded(1)
    assert batch.usage(1) == TokenUsage(0, 1)
    assert batch.step([1], [OP]).stopped == {1: StopMatch("STOP", 0, 1, True)}


def test_a_removed_slot_is_unknown():
    batch, _ = opened(3)
    batch.remove([1])
    out = batch.step([0, 1, 2], [A, A, A])
    assert (out.texts, set(out.errors)) == (["a", "", "a"], {1})
    assert isinstance(out.errors[1], detok.StateError)
    out = batch.finish([1, 0])
    assert (out.texts, set(out.errors)) == (["", ""], {1})
    assert isinstance(out.errors[1], detok.StateError)
    for call in (batch.pending, batch.usage):
        for slot in (1, 3, 2**31):
            with pytest.raises(detok.StateError, match=str(slot)):
                call(slot)


def test_removing_what_is_not_there_changes_nothing():
    batch, _ = opened(3)
    for slots, error in [([0, 9], detok.StateError), ([1, 1], ValueError), ([0, True], TypeError), ("0", TypeError)]:
        with pytest.raises(error):
            batch.remove(slots)
        assert len(batch) == 3
    assert batch.step([0, 1, 2], [A, A, A]).errors == {}


@pytest.mark.parametrize("policy", ["error", "skip"])
def test_unknown_ids(policy):
    batch, slots = opened(2, TextDecodeOptions(unknown_ids=policy))
    out = batch.step(slots, [A, UNKNOWN, B, B], [3, 1])
    if policy == "skip":
        assert (out.texts, out.kept_tokens, out.errors) == (["ab", "b"], [3, 1], {})
        assert marks(out.decoded(0)) == "V0 Z1 V1"
    else:
        assert (out.texts, out.kept_tokens, set(out.errors)) == (["", "b"], [0, 1], {0})


# name: (arguments of step, exception). Slots 0 and 1 are open.
MALFORMED = {
    "a slot twice": (([0, 0], [A, B]), ValueError),
    "a slot twice, far apart": (([0, 1, 0], [A], [0, 1, 0]), ValueError),
    "an unknown slot twice": (([9, 1, 9], [A, B, A]), ValueError),
    "too few ids": (([0, 1], [A]), ValueError),
    "too many ids": (([0, 1], [A, B, A]), ValueError),
    "no ids": (([0, 1], []), ValueError),
    "no slots": (([], [A]), ValueError),
    "counts that are too much": (([0, 1], [A, B], [1, 2]), ValueError),
    "counts that are too little": (([0, 1], [A, B], [1, 0]), ValueError),
    "too few counts": (([0, 1], [A, B], [2]), ValueError),
    "too many counts": (([0], [A, B], [1, 1]), ValueError),
    "counts that go round": (([0, 1], [A, B], [2**32 - 1, 3]), ValueError),
    "a count below zero": (([0, 1], [A, B], [3, -1]), ValueError),
    "a count of a bool": (([0, 1], [A, B], [True, 1]), TypeError),
    "one count": (([0], [A], 1), TypeError),
    "a bool for an id": (([0, 1], [A, True]), TypeError),
    "a bool for a slot": (([False, 1], [A, B]), TypeError),
    "an id below zero": (([0, 1], [A, -1]), detok.UnknownTokenError),
    "an id of 33 bits": (([0, 1], [A, 2**32]), detok.UnknownTokenError),
    "a bad id of an unknown slot": (([0, 9], [A, -1]), detok.UnknownTokenError),
    "a float for an id": (([0], [1.0]), TypeError),
    "a float for a slot": (([0.0], [A]), TypeError),
    "text for slots": (("01", [A, B]), TypeError),
    "text for ids": (([0, 1], "ab"), TypeError),
    "one slot": ((0, [A]), TypeError),
    "one id": (([0], A), TypeError),
    "a generator of ids": (([0], (i for i in [A])), TypeError),
    "a set of slots": (({0}, [A]), TypeError),
    "an array of doubles": ((np.zeros(1), [A]), TypeError),
    "a matrix": (([0, 1], np.zeros((1, 2), np.int64)), ValueError),
    "a matrix of slots": ((np.zeros((2, 1), np.int64), [A, B]), ValueError),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_call_that_is_malformed_changes_nothing(name):
    arguments, error = MALFORMED[name]
    batch, slots = opened(2, TextDecodeOptions(stop="STOP"))
    batch.step(slots, [HALF, ST])
    before = [(dict(batch.pending(slot)), batch.usage(slot)) for slot in slots]
    with pytest.raises(error):
        batch.step(*arguments)
    assert [(dict(batch.pending(slot)), batch.usage(slot)) for slot in slots] == before
    out = batch.step(slots, [REST, A])
    assert (out.texts, out.errors) == (["你", "STa"], {})


def test_malformed_finishes():
    batch, slots = opened(2)
    batch.step(slots, [A, HALF])
    for bad, error in [
        ([0, 0], ValueError),
        ([9, 9], ValueError),
        ([True], TypeError),
        ("0", TypeError),
        (0, TypeError),
    ]:
        with pytest.raises(error):
            batch.finish(bad)
    assert batch.finish(slots).texts == ["", "\ufffd"]


BAD_CALLS = {
    "no tokenizer": (lambda: BatchDecoder(None), TypeError),
    "a dict for options": (lambda: BatchDecoder(TOKENIZER, {"stop": "x"}), TypeError),
    "no thread": (lambda: BatchDecoder(TOKENIZER, threads=0), ValueError),
    "threads of a float": (lambda: BatchDecoder(TOKENIZER, threads=1.5), TypeError),
    "a word for the GIL": (lambda: BatchDecoder(TOKENIZER, release_gil="yes"), TypeError),
    "threads by place": (lambda: BatchDecoder(TOKENIZER, None, 2), TypeError),
    "a dict for a slot's options": (lambda: BatchDecoder(TOKENIZER).add([], {}), TypeError),
    "text for a prompt": (lambda: BatchDecoder(TOKENIZER).add("ab"), TypeError),
    "token_texts by place": (lambda: opened(1)[0].step([0], [A], None, True), TypeError),
    "text for a slot": (lambda: opened(1)[0].pending("0"), TypeError),
    "None for a slot": (lambda: opened(1)[0].usage(None), TypeError),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_calls_that_are_none(name):
    call, error = BAD_CALLS[name]
    with pytest.raises(error):
        call()


def test_a_slot_that_cannot_be_opened_is_not():
    batch, _ = opened(1)
    for prompt in ([A, -1], [2**32]):
        with pytest.raises(detok.UnknownTokenError):
            batch.add(prompt)
    assert (len(batch), batch.add([UNKNOWN])) == (1, 1)


class Failing(CountingDecoder):
    """An object that cannot decode a certain token."""

    bad: int | None = None
    error: BaseException = ZeroDivisionError("not today")

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        if self.bad in token_ids:
            raise self.error
        return super().decode(token_ids, skip_special_tokens)


@pytest.mark.parametrize("error", [ZeroDivisionError("not today"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_an_object_whose_decode_raises(error):
    """Its exception comes out and names the slot; no slot has changed, not even those before it."""
    decoder = Failing([b"a", b"ST", b"OP", b"x", b"y"])
    decoder.error = error
    batch = BatchDecoder(detok.Tokenizer.load(decoder), TextDecodeOptions(stop="STOP"))
    slots = [batch.add() for _ in range(8)]
    batch.step(slots, [0, 1, 1, 0, 0, 0, 0, 0])
    before = [(dict(batch.pending(slot)), batch.usage(slot)) for slot in slots]
    decoder.bad = 4
    with pytest.raises(type(error)) as caught:
        batch.step([0, 1, 7, 2], [3, 2, 4, 2])
    assert caught.value is error
    (note,) = caught.value.__notes__
    assert "slot 7" in note
    del error.__notes__
    assert [(dict(batch.pending(slot)), batch.usage(slot)) for slot in slots] == before
    decoder.bad = None
    out = batch.step([0, 1, 7, 2], [3, 2, 4, 0])
    assert (out.texts, set(out.stopped)) == (["x", "", "y", "STa"], {1})


def test_an_object_that_reenters_the_batch():
    """RuntimeError out of the inner call, never a deadlock; then the batch goes on."""

    class Reentering(CountingDecoder):
        call: Callable[[], Any] | None = None

        def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
            if self.call is not None:
                self.call()
            return super().decode(token_ids, skip_special_tokens)

    decoder = Reentering([b"a", b"b"])
    batch = BatchDecoder(detok.Tokenizer.load(decoder))
    slot = batch.add()
    for call in [
        lambda: batch.step([slot], [0]),
        lambda: batch.add(),
        lambda: batch.finish([slot]),
        lambda: batch.remove([slot]),
        lambda: batch.usage(slot),
        lambda: len(batch),
    ]:
        decoder.call = call
        with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError):
            pool.submit(batch.step, [slot], [1]).result(TIMEOUT)
    decoder.call = None
    assert (batch.step([slot], [1]).texts, batch.usage(slot)) == (["b"], TokenUsage(0, 1))


# ------------------------------------------------------------------ arrays

KINDS = {
    "list": list,
    "tuple": tuple,
    "uint32": lambda v: np.array(v, np.uint32),
    "int32": lambda v: np.array(v, np.int32),
    "int64": lambda v: np.array(v, np.int64),
    "uint64": lambda v: np.array(v, np.uint64),
    "strided": lambda v: np.repeat(np.array(v, np.int64), 2)[::2],
    "reversed": lambda v: np.array(v[::-1], np.uint32)[::-1],
    "array": lambda v: array.array("q", v),
    "memoryview": lambda v: memoryview(array.array("I", v)),
    "objects": lambda v: [CountedId(x) for x in v],
}


@pytest.mark.parametrize("name", KINDS)
def test_slots_ids_and_counts_of_any_sequence(name):
    kind = KINDS[name]
    batch, slots = opened(3)
    out = batch.step(kind([2, 0, 1]), kind([A, B, HALF, REST]), kind([1, 1, 2]))
    assert (out.texts, out.kept_tokens) == (["a", "b", "你"], [1, 1, 2])
    assert batch.step(kind(slots), kind([A, B, A])).texts == ["a", "b", "a"]
    assert batch.step(kind([]), kind([]), kind([])).texts == []
    assert batch.finish(kind([0])).texts == [""]
    assert batch.add(kind([A, HALF])) == 3
    assert batch.step([3], [REST]).texts == ["你"]
    batch.remove(kind(slots))
    assert len(batch) == 1


# ------------------------------------------------------------------ the same as a request of its own


@pytest.mark.parametrize("name", [*ROWS, *(f"ids: {name}" for name in STOP_IDS)])
def test_the_stop_tables(name):
    """Every row, in several groupings at once."""
    if name.startswith("ids: "):
        tokens, stop, given, *_ = STOP_IDS[name.removeprefix("ids: ")]
        tokenizer, ids = vocabulary(*tokens, *stop)
        ids, stop_ids = ids[: len(tokens)], ids[len(tokens) :]
        options = TextDecodeOptions(stop_token_ids=stop_ids, **given)
    else:
        tokenizer, ids = vocabulary(*ROWS[name].tokens)
        options = options_of(ROWS[name])
    plans = list(groupings(ids, name))
    batch = BatchDecoder(tokenizer, options)
    got = transcript(batch, plans, [batch.add() for _ in plans])
    assert got == [requested(tokenizer, groups, options) for groups in plans]


OPTIONS = [
    TextDecodeOptions(),
    TextDecodeOptions(stop=["the", "of a", "\n\n"], min_tokens=20),
    TextDecodeOptions(stop=["e and"], include_stop_str_in_output=True, fragments="empty"),
    TextDecodeOptions(skip_special_tokens=False, min_bytes_to_buffer=7, fragments="replacement"),
    TextDecodeOptions(stop=[f"{a}{b}" for a in "qxz" for b in "abcdefghij"], stop_token_ids=[2, 0]),
]


@pytest.mark.parametrize(
    "batch_options", [{}, {"threads": 2}, {"release_gil": True}, {"release_gil": False, "threads": 3}], ids=repr
)
def test_recorded_streams(batch_options):
    """All recorded answers at once, under every mix of options, in chunks of their own."""
    tokenizer, rows = load_tokenizer("smollm2"), read_jsonl("smollm2_streams.jsonl")
    rng = random.Random(7)
    batch = BatchDecoder(tokenizer, **batch_options)
    plans, slots, expect = [], [], []
    for n, (row, options) in enumerate(itertools.product(rows, OPTIONS)):
        plan = list(groupings(row["ids"], n, 1))[1 + n % 2]
        prompt = row["prompt_ids"] if rng.random() < 0.5 else ()
        plans.append(plan)
        slots.append(batch.add(prompt, options))
        expect.append(requested(tokenizer, plan, options, prompt))
    assert transcript(batch, plans, slots) == expect


FAMILIES = {
    "llama": small.spm_json(
        [Piece("▁Hi"), Piece("▁you"), Piece("<s>", "special")],
        small.sequence(small.REPLACE, small.BYTE_FALLBACK, small.FUSE, small.STRIP),
    ),
    "metaspace": small.unigram_json([Piece("▁Hi"), Piece("you"), Piece("<s>", "special")], small.METASPACE),
    "wordpiece": small.wordpiece_json([Piece("play"), Piece("##ing"), Piece("[CLS]", "special")]),
    "bpe_suffix": small.plain_json([Piece("lo"), Piece("w</w>"), Piece("<s>", "special")], small.BPE_SUFFIX),
    "plain": small.plain_json([Piece("a"), Piece("b"), Piece("<s>", "special")]),
    "window": small.plain_json([Piece("a__"), Piece("_b"), Piece("<s>", "special")], small.REGEX_REPLACE),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name):
    """Slots begin and end at different times; each has the text it has alone."""
    tokenizer = detok.Tokenizer.from_json(FAMILIES[name])
    rng = random.Random(name)
    options = [TextDecodeOptions(), TextDecodeOptions(stop=["ii", "b b"], unknown_ids="skip")]
    batch = BatchDecoder(tokenizer)
    last = tokenizer.vocab_size
    for _ in range(10):
        plans, slots, expect = [], [], []
        for _ in range(20):
            each = rng.choice(options)
            ids = [
                rng.randrange(max(0, last - 6), last + (each.unknown_ids == "skip")) for _ in range(rng.randrange(12))
            ]
            prompt = [rng.randrange(last) for _ in range(rng.choice([0, 0, 1, 3]))]
            plans.append(list(groupings(ids, rng.random(), 1))[-1])
            slots.append(batch.add(prompt, each))
            expect.append(requested(tokenizer, plans[-1], each, prompt))
        assert transcript(batch, plans, slots) == expect
        batch.remove(slots)
    assert len(batch) == 0


def test_thousands_of_slots_that_come_and_go():
    """Random steps over random slots, with errors among them: each slot is a request of its own throughout."""
    rng = random.Random(1)
    options = [None, TextDecodeOptions(stop=["STOP", "ab"]), TextDecodeOptions(stop="a", min_tokens=5)]
    batch, live = BatchDecoder(TOKENIZER), {}
    for _ in range(40):
        while len(live) < 2000:
            prompt, each = rng.choice([[], [], [HALF]]), rng.choice(options)
            slot = batch.add(prompt, each)
            assert slot == next(i for i in itertools.count() if i not in live)
            live[slot] = RequestDecoder(TOKENIZER, prompt, each)
        slots = rng.sample(sorted(live), rng.randrange(1, 400))
        groups = [[rng.choice([A, B, HALF, REST, ST, OP, END])] * rng.choice([1, 1, 1, 0, 3]) for _ in slots]
        for group in groups:
            if rng.random() < 0.02:
                group.append(UNKNOWN)
        out = batch.step(slots, [i for group in groups for i in group], [len(group) for group in groups])
        for at, (slot, group) in enumerate(zip(slots, groups, strict=True)):
            if UNKNOWN in group and slot in out.errors:
                with pytest.raises(type(out.errors[slot])):
                    live[slot].push(EngineUpdate(group))
                continue
            assert slot not in out.errors
            delta = live[slot].push(EngineUpdate(group))[-1]
            assert (out.texts[at], out.decoded(at)) == (delta.decoded.text, delta.decoded)
            assert out.kept_tokens[at] == len(delta.sampled.token_ids)
            assert out.stopped.get(slot) == (delta.finished.stop_match if delta.finished else None)
        gone = [slot for slot in slots if slot in out.stopped or rng.random() < 0.1]
        batch.remove(gone)
        for slot in gone:
            del live[slot]
        assert len(batch) == len(live)


# ------------------------------------------------------------------ threads


def test_many_threads_one_batch():
    """Each steps slots of its own; none sees another's text."""
    batch = BatchDecoder(TOKENIZER, TextDecodeOptions(stop="STOP"))
    slots = [[batch.add() for _ in range(3)] for _ in range(4)]
    barrier = threading.Barrier(4, timeout=TIMEOUT)

    def work(i: int) -> list[str]:
        barrier.wait()
        texts = ["", "", ""]
        for n in range(200):
            out = batch.step(slots[i], [A, HALF if n % 2 == 0 else REST, ST if n % 2 == 0 else B])
            texts = [text + more for text, more in zip(texts, out.texts, strict=True)]
        return texts

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4), timeout=TIMEOUT))
    assert results == [["a" * 200, "你" * 100, "STb" * 100]] * 4


class LastId:
    """The last id of a call: when it is read, the work begins."""

    def __init__(self, value: int, begins: threading.Event) -> None:
        self.value, self.begins = value, begins

    def __index__(self) -> int:
        self.begins.set()
        return self.value


def others_ran(release_gil: bool | None, slots: int, each: int, steps: int) -> list[bool]:
    """For each step, whether another thread had its turn before the step came back.

    No thread is made to give way while this runs, so the other one runs only if the step lets it.
    """
    batch, open_slots = opened(slots, release_gil=release_gil)
    counts = np.full(slots, each)
    ids: list[Any] = [A] * (slots * each)
    ran = []
    before = sys.getswitchinterval()
    sys.setswitchinterval(1_000)
    try:
        for _ in range(steps):
            begins, trace = threading.Event(), []

            def work(begins: threading.Event = begins, trace: list = trace) -> None:
                assert begins.wait(TIMEOUT)
                trace.append("other")

            other = threading.Thread(target=work)
            other.start()
            ids[-1] = LastId(A, begins)
            batch.step(open_slots, ids, counts)
            trace.append("step")
            other.join(TIMEOUT)
            assert sorted(trace) == ["other", "step"]
            ran.append(trace[0] == "other")
    finally:
        sys.setswitchinterval(before)
    return ran


@pytest.mark.parametrize("release_gil", [True, None])
def test_a_big_step_lets_other_threads_run(release_gil):
    # The other thread must wake up within the step; that it does so once in many is enough.
    assert any(others_ran(release_gil, 2_000, 100, 20))


def test_a_step_may_keep_the_interpreter():
    """A small one does, a big one by option; without an interpreter lock there is nothing to keep."""
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    assert not (has_lock and any(others_ran(None, 1, 1, 20)))
    assert any(others_ran(False, 2_000, 100, 5)) is not has_lock


# ------------------------------------------------------------------ Arrow

COLUMNS = ["slot", "text", "kept_tokens", "token_ids", "byte_offsets", "flags"]


def a_step() -> detok.StepOutput:
    """Text, none, wide text with records of three kinds, a stop, an error."""
    batch = BatchDecoder(TOKENIZER, TextDecodeOptions(stop="STOP"))
    slots = [batch.add() for _ in range(5)]
    return batch.step(slots, [A, HALF, HALF, REST, END, A, B, ST, OP, B, A, UNKNOWN], [1, 1, 4, 4, 2])


ROWS_OF_A_STEP = [
    (0, "a", 1, [A], [0]),
    (1, "", 1, [], []),
    (2, "你a", 4, [HALF, REST, END, A], [0, 0, 3, 3]),
    (3, "b", 3, [B, ST, OP], [0, 1, 1]),
    (4, "", 0, [], []),
]


def test_arrow_capsules():
    """What a library asks for: a pair of capsules, as often as it likes."""
    table = a_step().to_arrow()
    for _ in range(2):
        schema, data = table.__arrow_c_array__()
        assert ('"arrow_schema"' in repr(schema), '"arrow_array"' in repr(data)) == (True, True)
    assert '"arrow_schema"' in repr(table.__arrow_c_schema__())


def test_arrow_by_pyarrow():
    pyarrow = pytest.importorskip("pyarrow")
    out = a_step()
    table = pyarrow.record_batch(out.to_arrow())
    table.validate(full=True)
    assert table.schema.names == COLUMNS
    rows = table.to_pydict()
    assert [tuple(rows[name][i] for name in COLUMNS[:5]) for i in range(5)] == ROWS_OF_A_STEP
    assert rows["text"] == out.texts
    for i in range(5):
        ids, offsets, flags = out.decoded(i).to_numpy()
        assert (rows["token_ids"][i], rows["byte_offsets"][i]) == (ids.tolist(), offsets.tolist())
        assert rows["flags"][i] == flags.tolist()
    # Not a copy: every reader sees the same bytes, and they live as long as it does.
    again = pyarrow.record_batch(out.to_arrow())
    assert again.column("text").buffers()[2].address == table.column("text").buffers()[2].address
    del out, again
    assert table.column("text").to_pylist() == [row[1] for row in ROWS_OF_A_STEP]
    empty = pyarrow.record_batch(BatchDecoder(TOKENIZER).step([], []).to_arrow())
    assert (empty.num_rows, empty.schema) == (0, table.schema)


def test_arrow_by_polars():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(a_step().to_arrow())
    assert frame.columns == COLUMNS
    assert frame.select(COLUMNS[:5]).rows() == ROWS_OF_A_STEP
    assert polars.DataFrame(BatchDecoder(TOKENIZER).step([], []).to_arrow()).shape == (0, len(COLUMNS))

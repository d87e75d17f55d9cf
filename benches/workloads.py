"""What is timed. A workload takes a peer and data and gives one `Sample` for each of its cases.

w1  one stream, a token a call, every delta wanted; 4,096 tokens behind 512 prompt ids, per text class
w2  1,000 streams in lock step, behind 512 prompt ids each; a token for each stream a step, every delta wanted
w3  w2 with stop strings, and the text of each sampled token as for logprobs
w4  lone continuation bytes, and hidden special tokens: cost per token, and how the total grows
w5  offline, one thread: 2,000 sequences of 500 ids
w6  opening behind a long prompt, and the first delta after it
w7  memory of an idle stream behind 4,096 prompt ids
w8  a busy Python thread beside steps: what a big step leaves it, and what it costs a small step
w9  events of a request to the bytes of a server's stream, a token an event; plain, and with logprobs
"""

import gc
import math
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

from data import Data
from peers.peer import Peer

TITLES = {
    "w1": "one stream, a token a call",
    "w2": "1,000 streams in lock step",
    "w3": "1,000 streams in lock step, with stop strings and token texts",
    "w4": "bad bytes and hidden specials",
    "w5": "offline, one thread",
    "w6": "behind a long prompt",
    "w7": "memory of an idle stream",
    "w8": "steps beside a busy Python thread",
    "w9": "events to the bytes of a server's stream",
}


STOPS = ["</answer>", "<|user|>", "\n\nObservation:", "### END"]


@dataclass
class Sample:
    value: float
    unit: str = "ns/token"
    note: str = ""


@contextmanager
def no_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def passes(call: Callable[[], object], least_ns: float) -> list[int]:
    """Nanoseconds of each call, for `least_ns` together. Processor time of all threads: everyone has one thread, and
    waiting for a processor that others use would tell long calls from short ones."""
    now, out = time.process_time_ns, []
    with no_collector():
        end = now() + least_ns
        while not out or now() < end:
            start = now()
            call()
            out.append(now() - start)
    return out


def difference(got: str, want: str) -> str:
    """Where the text first differs, or nothing. Peers without a flush never send an unfinished end."""
    got, want = got.rstrip("\ufffd"), want.rstrip("\ufffd")
    if got == want or (want.startswith(got) and len(want) - len(got) <= 2):
        return ""
    at = next((k for k, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
    return f"text differs at {at}: {got[at : at + 12]!r} for {want[at : at + 12]!r}"


def w1(peer: Peer, data: Data, classes=("mixed",), least_ns=25e6) -> dict[str, Sample]:
    out = {}
    for cls in classes:
        prompt, ids = data.stream(cls)
        prompt = prompt if peer.takes_prompt else None
        deltas, last = peer.run(ids, prompt)  # the warm-up, and the text to check
        text = "".join(delta or "" for delta in deltas) + last
        note = difference(text, data.vocab.reference(ids, prompt)) if peer.makes_text else ""
        times = passes(lambda ids=ids, prompt=prompt: peer.run(ids, prompt), least_ns)
        out[cls] = Sample(statistics.median(times) / len(ids), note=note)
    return out


def pooled(peer: Peer, data: Data, open_pool, step_pool) -> Sample:
    prompts, steps = data.pool(peer.reads)
    prompts = prompts[: peer.most_streams]
    steps = [ids[: len(prompts)] for ids in steps]
    pool, times, shown = open_pool(prompts), [], []
    with no_collector():
        for ids in steps:
            start = time.process_time_ns()
            texts = step_pool(pool, ids)
            times.append(time.process_time_ns() - start)
            shown.append(texts)
    note = ""
    if peer.makes_text:
        # What is held back at the end is not looked at: half a character, and what may become a stop.
        for k, prompt in enumerate(prompts[:50]):
            text = "".join(texts[k] or "" for texts in shown)
            ids = [int(ids[k]) for ids in steps]
            want = data.vocab.reference(ids, prompt if peer.takes_prompt else None)
            note = note or difference(text, want[: len(text)])
            if len(want) - len(text) > 32:
                note = note or f"{len(want) - len(text)} characters behind"
    # The first steps make strings that are shared from then on, as they would be for days.
    return Sample(statistics.median(times[len(times) // 4 :]) / len(prompts), note=note)


def w2(peer: Peer, data: Data) -> dict[str, Sample]:
    return {"mixed": pooled(peer, data, peer.open_pool, peer.step_pool)}


def w3(peer: Peer, data: Data) -> dict[str, Sample]:
    out = {}
    for count in (1, 4, 4096):
        if count > peer.most_stops:
            break
        stops = (STOPS + [f"{n} {stop}" for n in range(1023) for stop in STOPS])[:count]

        def open_pool(prompts, stops=stops):
            return peer.open_request_pool(prompts, stops)

        def step_pool(pool, ids):
            return peer.step_request_pool(pool, ids)[0]

        out[f"{count:,} stops"] = pooled(peer, data, open_pool, step_pool)
    return out


def w4(peer: Peer, data: Data, sizes=(1250, 2500, 5000, 10_000), limit_ns=14e9) -> dict[str, Sample]:
    """Stops before a size that would take too long."""
    out = {}
    for case, source, text_length in (
        ("plain text", data.ids("english"), None),
        ("bad bytes", [data.vocab.byte_id], 1),
        ("hidden specials", [data.vocab.specials[-1]], 0),
    ):
        totals, note = {}, ""
        for n in sizes:
            if _expected(totals, n) > limit_ns:
                break
            ids = (source * (n // len(source) + 1))[:n]
            totals[n] = min(passes(lambda ids=ids: peer.run(ids, None), 30e6))
            deltas, last = peer.run(ids, None)
            length = sum(len(delta or "") for delta in deltas) + len(last)
            if text_length is not None and length != n * text_length:
                note = f"; {length} characters, not {n * text_length}"
        most = max(totals)
        out[case] = Sample(totals[most] / most, note=f"of {most:,}{note}")
        if case != "plain text":
            out[f"{case} / plain text"] = Sample(out[case].value / out["plain text"].value, "")
        if len(totals) > 1:
            out[f"{case}, exponent"] = Sample(slope(totals), "")
    return out


def _expected(totals, n):
    if not totals:
        return 0
    last = max(totals)
    return totals[last] * (n / last) ** max(1.0, slope(totals) if len(totals) > 1 else 2.0)


def slope(totals: dict[int, float]) -> float:
    """Least squares over logarithms: 1 is linear, 2 is quadratic."""
    xs, ys = [math.log(n) for n in totals], [math.log(total) for total in totals.values()]
    return statistics.linear_regression(xs, ys).slope


def w5(peer: Peer, data: Data) -> dict[str, Sample]:
    calls, times = data.offline(peer.reads), []
    with no_collector():
        for sequences in calls:
            start = time.process_time_ns()
            out = peer.decode_batch(sequences)
            times.append(time.process_time_ns() - start)
    note = ""
    if peer.makes_text:
        for k, ids in enumerate(data.offline("lists")[-1]):
            note = note or difference(out[k], data.vocab.reference(ids))
    return {"mixed": Sample(statistics.median(times) / data.ids_a_call, note=note)}


def w6(peer: Peer, data: Data, sizes=(0, 131_072, 1_000_000), limit_ns=30e6) -> dict[str, Sample]:
    """Medians of up to 200 streams a case; a first delta is opening, and steps until there is text. Wall time, whose
    clock is finer."""
    out, now = {}, time.perf_counter_ns
    for n in sizes:
        prompt, ids = data.long_prompt(n)
        opened, first = [], []
        with no_collector():
            while len(first) < 200 and sum(first) < limit_ns:
                start = now()
                stream = peer.open(prompt)
                opened.append(now() - start)
                for i in ids:
                    if peer.step(stream, i):
                        break
                first.append(now() - start)
                del stream
        out[f"open, {n:,} ids"] = Sample(statistics.median(opened), "ns")
        out[f"first delta, {n:,} ids"] = Sample(statistics.median(first), "ns")
        if n:
            later = out[f"first delta, {n:,} ids"].value - out[f"first delta, {sizes[0]:,} ids"].value
            out[f"first delta, {n:,} ids, later by"] = Sample(later, "ns")
    return out


def w8(peer: Peer, data: Data, big=1 << 17, small=1_000) -> dict[str, Sample]:
    """Wall time; steps are those of a peer that can give up the interpreter or keep it."""
    ids, out = data.ids("mixed"), {}
    for count in (small, big):
        sampled = (ids * (count // len(ids) + 1))[:count]
        for name, release in (("as it is", None), ("never released", False), ("always released", True)):
            step = peer.stepper(count, release)
            step(sampled)
            alone = statistics.median(_wall(step, sampled) for _ in range(9))
            with _Busy() as busy:
                took, counted = zip(*(busy.beside(step, sampled) for _ in range(9)), strict=True)
            case = f"{count:,} ids, {name}"
            out[f"{case}: a step"] = Sample(alone / 1e3, "µs")
            out[f"{case}: beside a busy thread"] = Sample(statistics.median(took) / 1e3, "µs")
            out[f"{case}: share of its speed that the thread had"] = Sample(statistics.median(counted), "")
    return out


def _wall(step, sampled) -> int:
    start = time.perf_counter_ns()
    step(sampled)
    return time.perf_counter_ns() - start


class _Busy:
    """A thread that counts, and how fast it counts when nothing else runs."""

    def __enter__(self):
        self.count, self.goes_on = 0, True
        self.thread = threading.Thread(target=self.spin, daemon=True)
        self.thread.start()
        start, before = time.perf_counter_ns(), self.count
        time.sleep(0.05)
        self.speed = (self.count - before) / (time.perf_counter_ns() - start)
        return self

    def spin(self):
        while self.goes_on:
            self.count += 1

    def beside(self, step, sampled) -> tuple[int, float]:
        before = self.count
        took = _wall(step, sampled)
        return took, (self.count - before) / (self.speed * took)

    def __exit__(self, *_):
        self.goes_on = False
        self.thread.join()


def w9(peer: Peer, data: Data, least_ns=25e6) -> dict[str, Sample]:
    out = {}
    for case, cls, alternatives in (
        ("english", "english", None),
        ("mixed", "mixed", None),
        ("mixed, 5 logprobs", "mixed", 5),
    ):
        prompt, ids = data.stream(cls)
        events = peer.events(ids, prompt, alternatives)
        # The warm-up, and the text to check.
        note = difference(peer.text(peer.serve(events, alternatives)), data.vocab.reference(ids, prompt))
        times = passes(lambda events=events, alternatives=alternatives: peer.serve(events, alternatives), least_ns)
        out[case] = Sample(statistics.median(times) / len(ids), note=note)
    return out

"""Streaming detokenizers side by side, in one process.

    pip install --group bench
    python benches/run.py                                   the table of docs/COSTS.md, about a minute
    python benches/run.py -w w1 -p all --texts all          one workload, every adapter, every class of text
    python benches/run.py -w all -p all --turns 3           everything
    python benches/run.py -w w1,w5 -p detok,detok-batch,hf-batch --vocab spm

Adapters take turns (A B C A B C ...), so that a slow spell of the machine hits all of them. A cell has the median over
the turns; `ratio` is the median of adapter / baseline within one turn: above 1, the adapter takes that many times as
long as the baseline. Adapters whose package is missing are skipped (numpy and tokenizers make the data and must be
there). Times of one run compare; those of two do not.
"""

import argparse
import os
import platform
import statistics
import sys
from importlib.metadata import version

import workloads
from data import Data
from memory import w7
from peers import ADAPTERS
from peers.peer import Peer, Skip
from vocabs import FILES, Vocab

# Everyone on one thread, and nobody asks the network. Packages are imported later, when their adapter is made.
ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
}
RUN = {
    "w1": workloads.w1,
    "w2": workloads.w2,
    "w3": workloads.w3,
    "w4": workloads.w4,
    "w5": workloads.w5,
    "w6": workloads.w6,
    "w7": w7,
    "w8": workloads.w8,
    "w9": workloads.w9,
}
BASELINES = {"w8": "detok-busy", "w9": "detok-openai", "w2": "detok-step", "w3": "detok-step", "w5": "detok-batch"}

# The short run: workload, adapters, turns, options.
SHORT = [
    ("w1", "detok detok-everything py-strtable hf-decodestream", 15, {"classes": ("english", "mixed")}),
    ("w2", "detok-step detok-step-numpy py-strtable hf-decodestream", 7, {}),
    ("w3", "detok-step detok-request detok-request-logprobs py-strtable hf-decodestream vllm-fast", 5, {}),
    ("w5", "detok-batch detok-batch-numpy detok-decode detok-decode-numpy hf-batch hf-decode", 9, {}),
    ("w6", "detok hf-decodestream-prompt", 5, {}),
    ("w4", "detok hf-decodestream", 3, {"limit_ns": 1e9}),
    ("w9", "detok-openai detok-openai-chat json-chunk", 7, {}),
]

Turns = dict[str, list[dict[str, workloads.Sample]]]


def load(names: list[str], vocab: Vocab) -> list[Peer]:
    out = []
    for name in names:
        try:
            out.append(ADAPTERS[name](vocab))
        except Skip as skip:
            print(f"skipped {name}: {skip}", file=sys.stderr)
    return out


def measure(workload: str, peers: list[Peer], data: Data, turns: int, options: dict) -> Turns:
    out: Turns = {peer.name: [] for peer in peers}
    for turn in range(turns):
        for peer in list(peers):
            try:
                out[peer.name].append(RUN[workload](peer, data, **options))
            except Skip as skip:
                print(f"skipped {peer.name} in {workload}: {skip}", file=sys.stderr)
                peers.remove(peer)
            except Exception as error:  # a peer that fails is a finding, not the end of the run
                print(f"{workload}: {peer.name} failed: {type(error).__name__}: {error}", file=sys.stderr)
                peers.remove(peer)
        print(f"{workload}: turn {turn + 1} of {turns}", end="\r", file=sys.stderr)
    print(file=sys.stderr)
    return {name: samples for name, samples in out.items() if samples}


def show(workload: str, turns: Turns, baseline: str) -> None:
    print(f"\n{workload.upper()} {workloads.TITLES[workload]} (ratio: against {baseline})\n")
    print("| case | adapter | kind | median | least | ratio | |\n|---|---|---|--:|--:|--:|---|")
    cases = list(dict.fromkeys(case for samples in turns.values() for sample in samples for case in sample))
    for case in cases:
        rows = []
        for name, samples in turns.items():
            values = [sample[case].value for sample in samples if case in sample]
            if values:
                rows.append((statistics.median(values), name, min(values), next(s[case] for s in samples if case in s)))
        for median, name, least, sample in sorted(rows, key=lambda row: row[0]):
            cells = [case, name, ADAPTERS[name].kind, number(median, sample.unit), number(least, sample.unit)]
            print("|", " | ".join([*cells, ratio(turns, case, name, baseline), sample.note]), "|", flush=True)


def ratio(turns: Turns, case: str, name: str, baseline: str) -> str:
    if not turns[name][0][case].unit:
        return ""
    pairs = zip(turns[name], turns.get(baseline, []), strict=False)
    ratios = [a[case].value / b[case].value for a, b in pairs if case in a and case in b and b[case].value]
    return f"{statistics.median(ratios):,.3g}" if ratios else ""


def number(value: float, unit: str) -> str:
    return f"{value:,.{1 if value < 100 else 0}f} {unit}" if unit else f"{value:,.2f}"


def options_of(workload: str, texts: str, data: Data) -> dict:
    if workload != "w1":
        return {}
    return {"classes": tuple(data.texts) if texts == "all" else tuple(texts.split(","))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-w", "--workloads", help="of w1 to w9, or all; without it the short run")
    parser.add_argument("-p", "--peers", default="all", help=f"of {', '.join(ADAPTERS)}, or all")
    parser.add_argument("-t", "--turns", type=int, default=5)
    parser.add_argument("--texts", default="mixed", help="classes of text for w1, or all")
    parser.add_argument("--vocab", default="bytelevel", choices=FILES)
    parser.add_argument("--baseline", help="the adapter that the others are divided by (detok)")
    args = parser.parse_args()

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    data = Data(Vocab(args.vocab))
    if args.workloads is None:
        plan = SHORT
    else:
        chosen = list(RUN) if args.workloads == "all" else args.workloads.split(",")
        names = " ".join(ADAPTERS) if args.peers == "all" else args.peers.replace(",", " ")
        plan = [(workload, names, args.turns, options_of(workload, args.texts, data)) for workload in chosen]
    loaded = {peer.name: peer for peer in load(list(dict.fromkeys(" ".join(p[1] for p in plan).split())), data.vocab)}
    packages = sorted({peer.package for peer in loaded.values() if peer.package})
    print(", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)]))
    for workload, names, turns, options in plan:
        peers = [loaded[name] for name in names.split() if name in loaded and workload in loaded[name].does]
        if peers:
            results = measure(workload, peers, data, turns, options)
            show(workload, results, args.baseline or BASELINES.get(workload, "detok"))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Prints the table of goals of docs/performance.md from results of `reynard bench attention --device cuda --peers`.

usage: attention_goals.py [--results FOLDER] [--check DOCUMENT]

A cell is the smallest to the largest share of the peer's time over all runs of a kind of GPU with the kernels that are compared, its last
run behind it; what misses the goal is bold. --check compares the table with the one in DOCUMENT and exits with 1 where they differ.
"""

import argparse
import json
import pathlib
import re
import sys

# Runs whose backward has the design of today, from halves of 256 dimensions on (H200), or the one before (H100); of their forwards the last
# three runs of an H200 alone look at sums of weights.
RUNS = {
    "H200": ["2026-11-29-40cbef2-attention-h200", "2026-11-29-87b4a41-attention-h200", "2026-11-29-87b4a41-attention-fla-h200",
             "2026-11-29-d7d7d22-attention-h200", "2026-11-30-67a89cd-attention-fla-h200", "2026-11-30-67a89cd-attention-h200", "2026-11-30-164bf0e-attention-h200",
             "2026-12-01-3bc60d0-attention-h200", "2026-12-01-9d3cf26-attention-h200", "2026-12-01-9d3cf26-attention-2048-h200"],
    "H100": ["2026-11-26-be43296-attention-another-h100", "2026-11-26-be43296-attention-fla-h100", "2026-11-26-be43296-attention-h100",
             "2026-11-26-f9cbe65-attention-2048-h100", "2026-11-28-7bd2345-attention-h100"],
}

BEGIN, END = "<!-- attention_goals.py -->", "<!-- end -->"


class Run:
    def __init__(self, path):
        self.times = {}  # (row, shape): ms
        self.shares = []  # (row, T, D, peer, ours / peer)
        for row in json.loads(path.read_text()):
            shape = re.match(r"B\d+ H\d+ G\d+ T(\d+) D(\d+)", row["shape"])
            key = row["name"], int(shape[1]), int(shape[2])
            if not row["name"].startswith(("gqa_", "packed_")):
                self.times[key] = row["ours"]
            if row["peer_value"]:
                self.shares.append((*key, row["peer"], row["ours"] / row["peer_value"]))

    def share(self, peer, name, lengths, dim):
        return [share for row, T, D, of, share in self.shares if (row, of) == (name, peer) and T in lengths and dim in (None, D)]

    def sums(self, rule, T, D):
        """Forward and backward together, ms."""
        rows = [(f"{rule}_{way}", T, D) for way in ("forward", "backward")]
        return [sum(self.times[row] for row in rows)] if all(row in self.times for row in rows) else []

    def of_dense(self, rule, T, D):
        return [a / b for a, b in zip(self.sums(rule, T, D), self.sums("dense", T, D))]


LONG = (16384, 65536)


def goals():
    """(what, goal, values of a run)"""

    def of(peer, name, lengths, dim=None):
        return lambda run: run.share(peer, name, lengths, dim)

    for dim, goal in ((64, 0.80), (128, 0.84)):
        yield f"dense forward D{dim}, T from 16,384", goal, of("cudnn", "dense_forward", LONG, dim)
    for T, goal in ((4096, 0.90), (2048, 0.97)):
        for dim in (64, 128):
            yield f"dense forward D{dim}, T = {T:,}", goal, of("cudnn", "dense_forward", (T,), dim)
    for dim in (64, 128, 256):
        for T in (8192, *LONG):
            yield f"dense backward D{dim}, T = {T:,}", 0.90, of("cudnn", "dense_backward", (T,), dim)
    for way, goal in (("forward", 0.27), ("backward", 0.30)):
        for dim in (64, 128):
            for rule in ("tight", "published"):
                yield f"{rule} {way} D{dim}, T = 16,384", goal, of("cudnn", f"{rule}_{way}", (16384,), dim)
    for rule in ("tight", "published"):
        yield f"{rule} forward and backward, B2 H24 T16384 D64, ms", 3.9, lambda run, rule=rule: run.sums(rule, 16384, 64)
    for dim in (64, 128, 256):
        for rule in ("tight", "published"):
            yield (f"{rule} forward and backward, T = 65,536 D{dim}, of own dense", 0.28,
                   lambda run, rule=rule, dim=dim: run.of_dense(rule, 65536, dim))
    for way in ("forward", "backward"):
        yield f"grouped heads (4:1) {way}, T from 4,096, of plain", 1.1, of("own_plain", f"gqa_{way}", (4096, 8192, *LONG))
    for way in ("forward", "backward"):
        yield f"packed documents {way}, T from 4,096, of short rows", 1.1, of("own_apart", f"packed_{way}", (4096, 8192, *LONG))


def cell(runs, values_of, goal):
    def text(value):
        digits = f"{value:.2f}" if goal > 1 else f"{value:.3f}"
        return f"**{digits}**" if value > goal else digits

    values = [value for run in runs for value in values_of(run)]
    if not values:
        return ""
    low, high = text(min(values)), text(max(values))
    last = next(found for found in (values_of(run) for run in reversed(runs)) if found)
    extremes = low if low == high else f"{low} to {high}"
    return extremes if len(runs) == 1 or extremes == text(max(last)) else f"{extremes}; {text(max(last))}"


def table(folder):
    runs = {card: [Run(folder / f"{name}.json") for name in names] for card, names in RUNS.items()}
    yield "| work | goal | " + " | ".join(runs) + " |"
    yield "|---|---|" + "---|" * len(runs)
    for what, goal, values_of in goals():
        yield f"| {what} | {goal:.3g} | " + " | ".join(cell(of_card, values_of, goal) for of_card in runs.values()) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--results", type=pathlib.Path, default=root / "results")
    parser.add_argument("--check", type=pathlib.Path, metavar="DOCUMENT")
    options = parser.parse_args()
    lines = "\n".join(table(options.results))
    if not options.check:
        print(lines)
        return 0
    text = options.check.read_text()
    there = text[text.index(BEGIN) + len(BEGIN):text.index(END)].strip()
    if there != lines:
        print(f"{options.check}: the table of goals is not what {sys.argv[0]} prints", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Both sides of `reynard bench knn --device cuda`: exact search by libreynard.so on a GPU, torch's product of the same
queries and keys, and a copy of keys in host memory, in this process.

    knn_cuda_peer.py LIBREYNARD KEYS DIM K REPEATS

Answers one line per line: "device" with GPU, clocks, torch and commit; "parity Q" with the largest difference of the
first four queries' scores from those of torch in f32, relative to the largest, and with how many ids and scores are
others where the keys lie in host memory; "search Q" with the milliseconds of a search and of the product, "host Q" with
those of a search of keys in pinned host memory and of copying them, both with the bytes that tensors of the search take
on the GPU at most.

Medians of events after one warm-up. The host waits for each run before it begins the next, as a program does that reads
what was found, so its share of a search counts. Keys and queries are bf16, from N(0, 1).
"""

import statistics
import sys

import torch
from gpu import described

LIBRARY = sys.argv[1]
KEYS, DIM, K, REPEATS = map(int, sys.argv[2:6])
BLOCK = 1 << 21  # keys that are copied at once


def median_ms(function):
    function()
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


class Memory:
    """The same keys on the GPU and in pinned host memory."""

    def __init__(self):
        torch.manual_seed(1)
        self.keys = normal(KEYS)
        self.host = self.keys.cpu().pin_memory()

    def parity(self, q):
        ids, scores = search(q, self.keys)
        best = torch.topk(q[:4].float() @ self.keys.float().t(), K).values
        error = (scores[:4] - best).abs().max() / best.abs().max()
        host_ids, host_scores = search(q, self.host)
        others = (host_ids != ids).sum() + (host_scores != scores).sum()
        return error.item(), others.item()

    def search_cost(self, q):
        ms, peak = cost(lambda: search(q, self.keys))
        return ms, median_ms(lambda: q @ self.keys.t()), peak

    def host_cost(self, q):
        ms, peak = cost(lambda: search(q, self.host))
        block = torch.empty(min(BLOCK, KEYS), DIM, device="cuda", dtype=self.host.dtype)

        def copy():
            for part in self.host.split(BLOCK):
                block[: part.shape[0]].copy_(part)

        return ms, median_ms(copy), peak


def normal(rows):
    return torch.randn(rows, DIM, device="cuda", dtype=torch.bfloat16)


def search(q, keys):
    return torch.ops.reynard.knn_search(q, keys, K)


def cost(function):
    """Milliseconds, and the most bytes beyond those that tensors take already."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ms = median_ms(function)
    return ms, torch.cuda.max_memory_allocated() - before


def main():
    torch.ops.load_library(LIBRARY)
    memory = Memory()
    queries = {}
    for line in sys.stdin:
        what, *number = line.split()
        if what == "device":
            print(described(), flush=True)
            continue
        count = int(number[0])
        if count not in queries:
            queries[count] = normal(count)
        measure = {"parity": memory.parity, "search": memory.search_cost, "host": memory.host_cost}[what]
        print(*measure(queries[count]), flush=True)


main()

"""Exact search on a GPU against torch's matmul and topk in the same process (docs/performance-knn.md)."""

import argparse
import json
import pathlib
import statistics
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers"))
from gpu import described  # noqa: E402


def median_ms(call, repeats):
    call()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def host_rows(keys, args):
    """Keys in pinned host memory, which cross the bus once in each search, against a copy of the same bytes alone."""
    host = keys.cpu().pin_memory()
    block = torch.empty(1 << 21, args.dim, device="cuda", dtype=keys.dtype)

    def copy():
        for part in host.split(block.shape[0]):
            block[: part.shape[0]].copy_(part)

    copy_ms = median_ms(copy, args.repeats)
    rows = []
    for count in args.queries:
        q = torch.randn(count, args.dim, device="cuda", dtype=keys.dtype)
        found, expected = (torch.ops.reynard.knn_search(q, k, args.k) for k in (host, keys))
        assert all(torch.equal(a, b) for a, b in zip(found, expected)), "other keys are found in host memory"
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
        ms = median_ms(lambda: torch.ops.reynard.knn_search(q, host, args.k), args.repeats)
        row = {"place": "host", "queries": count, "keys": args.keys, "dim": args.dim, "k": args.k, "ms": round(ms, 3),
               "copy_ms": round(copy_ms, 3), "ratio": round(ms / copy_ms, 3), "gb_per_s": round(keys.numel() * 2 / ms / 1e6, 1),
               "peak_mb": round((torch.cuda.max_memory_allocated() - base) / 2**20, 1), "device": described()}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--keys", type=int, default=1 << 24)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--k", type=int, default=128)
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.cuda.init()
    torch.ops.load_library(args.library)
    torch.manual_seed(1)
    keys = torch.randn(args.keys, args.dim, device="cuda", dtype=torch.bfloat16)
    rows = []
    for count in args.queries:
        q = torch.randn(count, args.dim, device="cuda", dtype=torch.bfloat16)
        ids, scores = torch.ops.reynard.knn_search(q, keys, args.k)
        some = slice(0, min(count, 4))
        best = torch.topk(q[some].float() @ keys.float().t(), args.k)
        assert torch.allclose(best.values, scores[some], atol=1e-3), "scores differ from torch's"
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
        ms = median_ms(lambda: torch.ops.reynard.knn_search(q, keys, args.k), args.repeats)
        peak = torch.cuda.max_memory_allocated() - base
        product = median_ms(lambda: q @ keys.t(), args.repeats)
        row = {"queries": count, "keys": args.keys, "dim": args.dim, "k": args.k, "ms": round(ms, 4),
               "matmul_ms": round(product, 4), "ratio": round(ms / product, 3), "peak_mb": round(peak / 2**20, 1),
               "gb_per_s": round(keys.numel() * 2 / ms / 1e6, 1), "device": described()}
        rows.append(row)
        print(json.dumps(row), flush=True)
    rows += host_rows(keys, args)
    if args.json:
        with open(args.json, "w") as out:
            json.dump(rows, out, indent=1)


if __name__ == "__main__":
    main()

"""Decode of one query on a GPU: its share of a copy's bandwidth, its error and its bits (docs/performance-cuda.md).

Bytes are those of keys, values and sums of gates; a copy's those read and written. Medians, with a buffer larger than the L2 cache
written between two runs. Pages lie in random order; three quarters of the heads are local, which only pruned rows make use of.
"""

import argparse
import json
import math
import pathlib
import statistics
import sys

import torch
from torch.nn.functional import logsigmoid

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers"))
from gpu import described  # noqa: E402

PAGE = 64
# H, G, D, keys
SHAPES = [(24, 24, 64, 16384), (24, 24, 64, 65536), (24, 24, 64, 262144), (24, 6, 64, 65536), (12, 12, 128, 65536),
          (8, 8, 256, 65536), (32, 4, 128, 65536)]


def median_ms(call, repeats, flush):
    for _ in range(3):
        call()
    events = []
    for _ in range(repeats):
        flush.zero_()
        torch.cuda._sleep(600_000)  # the call is issued while the GPU is still busy
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


class Pages:
    """One sequence of N keys: H query heads on G, gate logits N(2, 1) for three quarters of the heads, else N(12, 1)."""

    def __init__(self, H, G, D, N):
        torch.manual_seed(1)
        pages, group = G * N // PAGE, H // G
        options = {"device": "cuda", "dtype": torch.bfloat16}
        self.H, self.G, self.D = H, G, D
        self.q = torch.randn(1, H, D, **options)
        self.keys = torch.randn(pages, PAGE, D, **options)
        self.values = torch.randn(pages, PAGE, D, **options)
        mean = torch.where(torch.arange(H, device="cuda") < H * 3 // 4, 2.0, 12.0)
        self.sums_of_heads = logsigmoid(torch.randn(N, H, device="cuda") + mean).double().cumsum(0)
        in_order = self.sums_of_heads.view(N // PAGE, PAGE, G, group).permute(2, 0, 3, 1).reshape(pages, group, PAGE)
        self.table = torch.randperm(pages, device="cuda").view(1, G, N // PAGE).int()
        self.sums = torch.empty_like(in_order)
        self.sums[self.table.flatten().long()] = in_order
        self.norms = self.keys.float().norm(dim=-1).amax(1) * 1.0001
        self.masses = (-self.sums).logsumexp(-1)
        self.lengths = torch.tensor([N], device="cuda")
        self.bound = torch.full((H,), 2.5 * math.sqrt(D), device="cuda")
        self.bytes = G * N * D * 4 + H * N * 8

    def dense(self):
        return torch.ops.reynard.attention_decode(self.q, self.keys, self.values, self.sums, None, None, self.table, self.lengths)

    def pruned(self):
        return torch.ops.reynard.attention_decode(
            self.q, self.keys, self.values, self.sums, self.norms, self.masses, self.table, self.lengths, None, self.bound,
            log_pruning_tolerance=-10.0, rule="published")

    def error(self, out):
        """Against f64, of the first and the last head, relative to the norm."""
        errors = []
        for h in (0, self.H - 1):
            where = self.table[0, h // (self.H // self.G)].long()
            k, v = (t[where].reshape(-1, self.D).double() for t in (self.keys, self.values))
            logits = k @ self.q[0, h].double() / math.sqrt(self.D) + self.sums_of_heads[-1, h] - self.sums_of_heads[:, h]
            exact = logits.softmax(0) @ v
            errors.append(float((out[0, h].double() - exact).norm() / exact.norm()))
        return max(errors)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.cuda.init()
    torch.ops.load_library(args.library)
    flush = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda")
    source = torch.empty(1 << 32, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = 2 * source.numel() / median_ms(lambda: target.copy_(source), args.repeats, flush) / 1e6
    del source, target
    rows = []
    for H, G, D, N in SHAPES:
        pages = Pages(H, G, D, N)
        out = pages.dense()[0].clone()
        error = pages.error(out)
        assert error < 6e-3, f"off by {error} of the norm"
        assert all(torch.equal(pages.dense()[0], out) for _ in range(20)), "other bits in another run"
        ms, pruned_ms = (median_ms(call, args.repeats, flush) for call in (pages.dense, pages.pruned))
        speed = pages.bytes / ms / 1e6
        row = {"name": "decode", "shape": f"H{H} G{G} D{D} N{N}", "dtype": "bf16", "device": described(),
               "ours": round(speed), "peer": "copy", "peer_value": round(copy), "unit": "GB/s", "ratio": round(speed / copy, 3),
               "note": f"{ms:.4f} ms, pruned {pruned_ms:.4f} ms, error {error:.1e}"}
        rows.append(row)
        print(json.dumps(row), flush=True)
    if args.json:
        with open(args.json, "w") as out:
            json.dump(rows, out, indent=1)


if __name__ == "__main__":
    main()

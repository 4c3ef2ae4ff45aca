"""Both sides of `reynard bench decode --device cuda`: decode of one query by libreynard.so on a GPU and a copy, in
this process.

    decode_cuda_peer.py LIBREYNARD REPEATS

Answers one line per line: "device" with GPU, clocks, torch and commit; "copy" with the GB/s of a copy of 4 GB, read and
written; "parity H G T D" with the largest error of dense and pruned outputs against f64, relative to the norm of a
head's, and with how many of 20 further runs of each gave other bits; "times H G T D" with the milliseconds of dense and
of pruned decode, of each median and minimum (gpu_times.py).

Pages are bf16 and lie in random order; q, k, v from N(0, 1). Gates: 75 % of the heads with logits N(2, 1), the rest
N(12, 1), which only pruned decode makes use of: published rule, tolerance e^-10.
"""

import math
import sys

import torch
from gpu import described
from gpu_times import medians, other_data
from torch.nn.functional import logsigmoid

LIBRARY, REPEATS = sys.argv[1], int(sys.argv[2])
PAGE = 64
RUNS = 20


class Pages:
    """One sequence of T keys: H query heads on G."""

    def __init__(self, H, G, T, D):
        self.shape = (H, G, T, D)
        torch.manual_seed(1)
        pages, group = G * T // PAGE, H // G
        options = {"device": "cuda", "dtype": torch.bfloat16}
        self.q = torch.randn(1, H, D, **options)
        self.keys = torch.randn(pages, PAGE, D, **options)
        self.values = torch.randn(pages, PAGE, D, **options)
        mean = torch.where(torch.arange(H, device="cuda") < H * 3 // 4, 2.0, 12.0)
        self.sums_of_heads = logsigmoid(torch.randn(T, H, device="cuda") + mean).double().cumsum(0)
        in_order = self.sums_of_heads.view(T // PAGE, PAGE, G, group).permute(2, 0, 3, 1)
        self.table = torch.randperm(pages, device="cuda").view(1, G, T // PAGE).int()
        self.sums = torch.empty(pages, group, PAGE, device="cuda", dtype=torch.float64)
        self.sums[self.table.flatten().long()] = in_order.reshape(pages, group, PAGE)
        self.norms = self.keys.float().norm(dim=-1).amax(1) * 1.0001
        self.masses = (-self.sums).logsumexp(-1)
        self.lengths = torch.tensor([T], device="cuda")
        self.bound = torch.full((H,), 2.5 * math.sqrt(D), device="cuda")

    def dense(self):
        return torch.ops.reynard.attention_decode(
            self.q, self.keys, self.values, self.sums, None, None, self.table, self.lengths
        )[0]

    def pruned(self):
        return torch.ops.reynard.attention_decode(
            self.q, self.keys, self.values, self.sums, self.norms, self.masses, self.table, self.lengths,
            None, self.bound, log_pruning_tolerance=-10.0, rule="published",
        )[0]

    def exact(self, head):
        """In f64, (D)."""
        H, G, _, D = self.shape
        pages = self.table[0, head // (H // G)].long()
        k, v = (t[pages].reshape(-1, D).double() for t in (self.keys, self.values))
        sums = self.sums_of_heads[:, head]
        return (k @ self.q[0, head].double() / math.sqrt(D) + sums[-1] - sums).softmax(0) @ v

    def parity(self):
        """Largest error of the first and the last head, and the number of runs with other bits."""
        errors, other_runs = [], 0
        for function in (self.dense, self.pruned):
            out = function().clone()
            for head in (0, self.shape[0] - 1):
                exact = self.exact(head)
                errors.append((out[0, head].double() - exact).norm() / exact.norm())
            other_runs += sum(not torch.equal(function(), out) for _ in range(RUNS))
        return torch.stack(errors).max().item(), other_runs  # NaN if any is


def copy_speed(other):
    source = torch.empty(1 << 32, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    ms, _ = medians({"copy": lambda: target.copy_(source)}, REPEATS, other)["copy"]
    return 2 * source.numel() / ms / 1e6


def main():
    torch.ops.load_library(LIBRARY)
    other = other_data()
    pages = None
    for line in sys.stdin:
        what, *shape = line.split()
        if what == "device":
            print(described(), flush=True)
        elif what == "copy":
            print(copy_speed(other), flush=True)
        else:
            shape = tuple(int(number) for number in shape)
            if pages is None or pages.shape != shape:
                pages = None
                torch.cuda.empty_cache()
                pages = Pages(*shape)
            if what == "parity":
                print(*pages.parity(), flush=True)
            else:
                times = medians({"dense": pages.dense, "pruned": pages.pruned}, REPEATS, other)
                print(*times["dense"], *times["pruned"], flush=True)


main()

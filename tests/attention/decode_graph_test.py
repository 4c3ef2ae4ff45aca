"""Decode recorded in a CUDA graph: replays read what the tensors hold by then and give the bits of a call.

Usage: decode_graph_test.py LIBRARY

Needs a GPU (REYNARD_TEST_DEVICE=cuda); skipped without.
"""

import os
import sys
import unittest

import torch
from torch.nn.functional import logsigmoid

LIBRARY = sys.argv.pop(1)
torch.ops.load_library(LIBRARY)
PAGE = 64


class Pages:
    """A sequence for each of S rows, H heads on G, in pages in random order."""

    def __init__(self, S, H, G, D, N, dtype=torch.bfloat16):
        self.shape = (S, H, G, D, N)
        pages, group = S * G * N, H // G
        options = {"device": "cuda"}
        self.q = torch.empty(S, H, D, dtype=dtype, **options)
        self.keys = torch.empty(pages, PAGE, D, dtype=dtype, **options)
        self.values = torch.empty_like(self.keys)
        self.sums = torch.empty(pages, group, PAGE, dtype=torch.float64, **options)
        self.norms = torch.empty(pages, **options)
        self.masses = torch.empty(pages, group, dtype=torch.float64, **options)
        self.table = torch.empty(S, G, N, dtype=torch.int32, **options)
        self.lengths = torch.empty(S, dtype=torch.int64, **options)

    def fill(self, seed):
        """Writes everything in place: other rows, gates, pages and lengths."""
        S, H, G, D, N = self.shape
        torch.manual_seed(seed)
        for rows in (self.q, self.keys, self.values):
            rows.normal_()
        mean = torch.where(torch.arange(H, device="cuda") < H * 3 // 4, 2.0, 12.0)
        gates = logsigmoid(torch.randn(S, N * PAGE, H, device="cuda") + mean).double()
        sums = gates.cumsum(1).view(S, N, PAGE, G, H // G).permute(0, 3, 1, 4, 2)
        self.table.copy_(torch.randperm(S * G * N, device="cuda").view(S, G, N))
        where = self.table.flatten().long()
        self.sums[where] = sums.reshape(S * G * N, H // G, PAGE)
        self.norms.copy_(self.keys.float().norm(dim=-1).amax(1) * 1.0001)
        self.masses.copy_((-self.sums).logsumexp(-1))
        self.lengths.copy_(torch.randint(1, N * PAGE + 1, (S,), device="cuda"))

    def decode(self, pruned):
        options = {"log_pruning_tolerance": -10.0} if pruned else {}
        bounds = (self.norms, self.masses) if pruned else (None, None)
        return torch.ops.reynard.attention_decode(
            self.q, self.keys, self.values, self.sums, *bounds, self.table, self.lengths, **options
        )


class DecodeGraph(unittest.TestCase):
    def replays_give_the_bits_of_calls(self, pages, pruned):
        pages.fill(0)
        pages.decode(pruned)  # kernels are loaded by their first call
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = pages.decode(pruned)
        for seed in range(1, 4):
            pages.fill(seed)
            for t in recorded:
                t.fill_(7)
            graph.replay()
            for replayed, called in zip(recorded, pages.decode(pruned)):
                self.assertTrue(torch.equal(replayed, called))
                self.assertTrue(bool(torch.isfinite(called).all()))

    def test_heads_with_keys_of_their_own(self):
        for pruned in (False, True):
            self.replays_give_the_bits_of_calls(Pages(2, 4, 4, 64, 40), pruned)

    def test_one_long_row(self):
        for pruned in (False, True):
            self.replays_give_the_bits_of_calls(Pages(1, 24, 24, 64, 1024), pruned)

    def test_heads_that_share_keys(self):
        for pruned in (False, True):
            self.replays_give_the_bits_of_calls(Pages(2, 16, 2, 128, 40), pruned)
            self.replays_give_the_bits_of_calls(Pages(2, 4, 2, 96, 40, torch.float32), pruned)


if __name__ == "__main__":
    if os.environ.get("REYNARD_TEST_DEVICE") != "cuda" or not torch.cuda.is_available():
        print("skipped: needs REYNARD_TEST_DEVICE=cuda and a GPU")
        sys.exit(77)
    unittest.main()

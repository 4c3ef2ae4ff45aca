"""Tensors of more than 2^31 elements: sampled rows of out and of every gradient against f64, the last ones too.

Usage: large_offsets_test.py LIBRARY

Needs a GPU with 60 GB (REYNARD_TEST_DEVICE=cuda); skipped without.
"""

import math
import os
import sys
import unittest

import torch
from torch.nn.functional import logsigmoid

torch.ops.load_library(sys.argv.pop(1))
B, T, H, D = 17, 32768, 64, 64  # 2.28e9 elements: 4.6 GB a tensor
ROWS = 1024  # gates of N(2, 1) leave 300 keys at most with a weight


def drawn():
    t = torch.empty(B, T, H, D, dtype=torch.bfloat16, device="cuda")
    for row in t:
        row.normal_()
    return t


class LargeOffsets(unittest.TestCase):
    def test_sampled_rows(self):
        self.assertGreater(B * T * H * D, 2**31)
        torch.manual_seed(1)
        q, k, v, dout = (drawn() for _ in range(4))
        for t in (q, k, v):
            t.requires_grad_()
        gate = logsigmoid(torch.randn(B, T, H, device="cuda") + 2).requires_grad_()
        out, _, _ = torch.ops.reynard.attention(q, k, v, gate, None, None)
        grads = torch.autograd.grad(out, (q, k, v, gate), dout)
        rows = slice(T - ROWS, T)
        half = slice(ROWS // 2, ROWS)  # these see no key before the cut that weighs anything
        for b, h in ((B - 1, H - 1), (B - 1, 0), (0, H - 1), (B // 2, H // 2)):
            exact = self.exact_of([t[b, rows, h].detach() for t in (q, k, v, gate, dout)])
            for name, ours, right in zip(("out", "dq", "dk", "dv", "gates'"), (out, *grads), exact):
                error = (ours[b, rows, h].detach().double()[half] - right[half]).norm() / right[half].norm()
                self.assertLess(float(error), 1e-2, f"{name} of row {b}, head {h}, relative to its norm")

    @staticmethod
    def exact_of(rows):
        q, k, v, gate, dout = (t.double() for t in rows)
        leaves = [t.requires_grad_() for t in (q, k, v, gate)]
        sums = gate.cumsum(0)
        logits = q @ k.T / math.sqrt(D) + sums[:, None] - sums[None]
        hidden = torch.ones(ROWS, ROWS, device="cuda").triu(1).bool()
        out = logits.masked_fill(hidden, -math.inf).softmax(-1) @ v
        return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


if __name__ == "__main__":
    if os.environ.get("REYNARD_TEST_DEVICE") != "cuda" or not torch.cuda.is_available():
        print("skipped: needs REYNARD_TEST_DEVICE=cuda and a GPU")
        sys.exit(77)
    unittest.main()

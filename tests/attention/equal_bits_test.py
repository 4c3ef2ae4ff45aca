"""Forward and backward of the same call many times, with equal bits: dense, pruned, grouped heads, packed documents.

Usage: equal_bits_test.py LIBRARY [RUNS]

With REYNARD_TEST_DEVICE=cuda on a GPU and 100 runs unless told otherwise, else short rows on the CPU and 5 runs.
"""

import math
import os
import sys
import unittest

import torch
from torch.nn.functional import logsigmoid

torch.ops.load_library(sys.argv.pop(1))
ON_GPU = os.environ.get("REYNARD_TEST_DEVICE") == "cuda"
RUNS = int(sys.argv.pop(1)) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 100 if ON_GPU else 5
DEVICE = "cuda" if ON_GPU else "cpu"
SHORTER = 1 if ON_GPU else 8
TOLERANCE = {"log_pruning_tolerance": -10.0}
CASES = [
    # name, (B, H, G, T, D), dtype, documents a row, options
    ("dense", (2, 8, 8, 4096, 64), torch.bfloat16, 1, {}),
    ("tight", (2, 8, 8, 4096, 64), torch.bfloat16, 1, TOLERANCE),
    ("published", (2, 8, 8, 4096, 64), torch.bfloat16, 1, {**TOLERANCE, "rule": "published"}),
    ("grouped", (2, 8, 2, 2048, 128), torch.bfloat16, 1, TOLERANCE),
    ("grouped, narrow", (2, 24, 6, 2048, 64), torch.bfloat16, 1, TOLERANCE),
    ("grouped, wide", (2, 8, 2, 2048, 256), torch.float16, 1, {}),
    ("packed", (2, 4, 4, 2048, 128), torch.float16, 4, {}),
    ("wide", (2, 4, 4, 2048, 256), torch.bfloat16, 1, TOLERANCE),
    # Key blocks in several waves, every second one downwards (key_block_order.h).
    ("waves", (4, 8, 8, 4096, 128), torch.bfloat16, 1, TOLERANCE),
    # Waves of some rows as a whole, and of parts of rows.
    ("some rows", (1, 7, 7, 5120, 256), torch.bfloat16, 1, {}),
    ("parts of rows", (1, 7, 7, 12288, 256), torch.bfloat16, 1, {}),
    # One row that is longer than the GPU is wide, beside pruned ones.
    ("long and local", (1, 4, 4, 20480, 128), torch.bfloat16, 1, TOLERANCE),
    ("long and local, wide", (1, 4, 4, 12288, 256), torch.bfloat16, 1, TOLERANCE),
    # Waves of which the first takes the last key blocks first.
    ("three waves", (1, 2, 2, 36864, 128), torch.bfloat16, 1, TOLERANCE),
    ("f32", (1, 4, 2, 512, 64), torch.float32, 1, TOLERANCE),
]


def inputs(shape, dtype, documents):
    """q, k, v, log gates (75 % of heads local), dout and, of packed documents, first keys."""
    B, H, G, T, D = shape
    torch.manual_seed(1)
    q = torch.randn(B, T, H, D, device=DEVICE).to(dtype).requires_grad_()
    k, v = (torch.randn(B, T, G, D, device=DEVICE).to(dtype).requires_grad_() for _ in range(2))
    mean = torch.where(torch.arange(H, device=DEVICE) < H * 3 // 4, 2.0, 12.0)
    gate = logsigmoid(torch.randn(B, T, H, device=DEVICE) + mean).requires_grad_()
    first = None
    if documents > 1:
        length = T // documents
        first = torch.arange(T, device=DEVICE, dtype=torch.int32) // length * length
        first = first.expand(B, T).contiguous()
    return (q, k, v, gate), torch.randn_like(q), first


class EqualBits(unittest.TestCase):
    def test_every_run(self):
        for name, (B, H, G, T, D), dtype, documents, options in CASES:
            with self.subTest(name):
                leaves, dout, first = inputs((B, H, G, T // SHORTER, D), dtype, documents)
                bound = torch.full((H,), 2 * math.sqrt(D), device=DEVICE) if "rule" in options else None

                def run():
                    out, lse, start = torch.ops.reynard.attention(*leaves, first, bound, **options)
                    return [out.detach(), lse.detach(), start, *torch.autograd.grad(out, leaves, dout)]

                kept = [t.clone() for t in run()]
                self.assertTrue(all(bool(torch.isfinite(t.float()).all()) for t in kept))
                different = sum(not all(map(torch.equal, run(), kept)) for _ in range(RUNS - 1))
                self.assertEqual(different, 0, f"of {RUNS} runs")


if __name__ == "__main__":
    unittest.main()

"""The operators under torch.compile, and opcheck of them, on the CPU or (REYNARD_TEST_DEVICE=cuda) on a GPU.

Usage: compiled_ops_test.py LIBRARY

On the CPU graphs are traced, differentiated and run as they are (backend aot_eager); on a GPU what
surrounds the operators is compiled too (backend inductor).
"""

import os
import sys
import unittest

import torch
from torch import nn

LIBRARY = sys.argv.pop(1)
torch.ops.load_library(LIBRARY)
ops = torch.ops.reynard

DEVICE = os.environ.get("REYNARD_TEST_DEVICE", "cpu")
BACKEND = "inductor" if DEVICE == "cuda" else "aot_eager"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32


class Layer(nn.Module):
    """Forgetting attention between its projections."""

    def __init__(self, width=64, heads=2, **options):
        super().__init__()
        self.heads, self.options = heads, options
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.gate = nn.Linear(width, heads)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3 * self.heads, C // self.heads).chunk(3, 2)
        log_gate = nn.functional.logsigmoid(self.gate(x).float() + 2)
        mixed, lse, _ = ops.attention(q, k, v, log_gate, **self.options)
        return self.out(mixed.reshape(B, T, C)), lse


def layer(**options):
    torch.manual_seed(0)
    return Layer(**options).to(DEVICE, DTYPE)


def input_of(T, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, T, 64, generator=generator).to(DEVICE, DTYPE)
    return x.requires_grad_()


def results(function, model, x):
    """Outputs and the gradients of input and parameters."""
    model.zero_grad()
    out, lse = function(x)
    (out.float().square().sum() + lse.sum()).backward()
    return [out.detach(), lse.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]


class CompiledOps(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()

    def assert_same(self, compiled, plain):
        tolerance = 2e-2 if DTYPE == torch.bfloat16 else 1e-5
        for a, b in zip(compiled, plain):
            torch.testing.assert_close(a, b, atol=tolerance * float(b.abs().max()), rtol=tolerance)

    def test_whole_graph_with_gradients(self):
        for options in ({}, {"log_pruning_tolerance": -10.0}):
            model = layer(**options)
            compiled = torch.compile(model, backend=BACKEND, fullgraph=True)
            self.assert_same(
                results(compiled, model, input_of(96)), results(model, model, input_of(96))
            )

    def test_one_graph_for_every_length(self):
        model = layer()
        compiled = torch.compile(model, backend=BACKEND, fullgraph=True, dynamic=True)
        for T in (140, 200, 300):  # a size of 1, as one block of queries has, is a graph of its own
            self.assert_same(
                results(compiled, model, input_of(T)), results(model, model, input_of(T))
            )
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        self.assertEqual(graphs, 1)

    def test_values_are_checked_when_the_graph_runs(self):
        os.environ["REYNARD_DEBUG_CHECKS"] = "1"
        self.addCleanup(os.environ.pop, "REYNARD_DEBUG_CHECKS")
        q, k, v = (input_of(40, seed).detach().view(2, 40, 2, 32) for seed in range(3))
        bound = torch.full((2,), 1e3, device=DEVICE)

        def function(q, k, v, first_key):
            return ops.attention(q, k, v, None, first_key, bound)[0].sum()

        compiled = torch.compile(function, backend=BACKEND, fullgraph=True)
        first_key = torch.zeros(2, 40, dtype=torch.int32, device=DEVICE)
        compiled(q.requires_grad_(), k, v, first_key).backward()
        first_key[:, 3] = 2
        with self.assertRaisesRegex(RuntimeError, r"first_key at \[0, 4\] = 0"):
            compiled(q, k, v, first_key)

    def test_opcheck(self):
        q, k, v = (input_of(40, seed).detach().view(2, 40, 2, 32) for seed in range(3))
        log_gate = nn.functional.logsigmoid(q[..., 0].float() + 2)
        tensors = [t.clone().requires_grad_() for t in (q, k, v, log_gate)]
        torch.library.opcheck(ops.attention.default, tensors)
        torch.library.opcheck(
            ops.attention.default, tensors, {"log_pruning_tolerance": -10.0, "rule": "published"}
        )


if __name__ == "__main__":
    if DEVICE == "cuda" and not torch.cuda.is_available():
        print("skipped: REYNARD_TEST_DEVICE=cuda and there is no GPU")
        sys.exit(77)
    unittest.main()

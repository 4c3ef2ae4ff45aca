#!/usr/bin/env python3
"""Forgetting attention in Python: the operators of libreynard.so under torch.ops.

    python3 examples/attention.py build/cpu/lib/libreynard.so

A layer's queries, keys, values and gates; forward, backward, what pruning left out, and the same through
torch.compile. On a GPU (a build with REYNARD_CUDA) the same calls take CUDA tensors.
"""

import sys

import torch

torch.ops.load_library(sys.argv[1])
reynard = torch.ops.reynard

B, T, H, G, D = 1, 1024, 4, 2, 64  # batch, tokens, query heads, key/value heads, head dimension


def inputs():
    q, k, v = (torch.randn(B, T, heads, D, requires_grad=True) for heads in (H, G, G))
    # The log of the gate by which each token lets the past fade, per head; heads 2 and 3 hardly forget.
    log_gate = torch.nn.functional.logsigmoid(torch.randn(B, T, H) + torch.tensor([2.0, 2.0, 12.0, 12.0]))
    return q, k, v, log_gate.requires_grad_()


def attend(q, k, v, log_gate):
    # At most exp(-10) of any query's attention is dropped; 0.0, the default, drops nothing.
    return reynard.attention(q, k, v, log_gate, log_pruning_tolerance=-10.0)


def main() -> int:
    torch.manual_seed(1)
    leaves = inputs()
    out, lse, start = attend(*leaves)
    out.square().mean().backward()
    gradients = [leaf.grad for leaf in leaves]

    exact = reynard.attention(*leaves)[0]
    error = (out - exact).abs().max().item()
    pruned = reynard.attention_statistics(start, None, T, T)[1]
    print("pruned tiles of each head:", ", ".join(f"{share:.0%}" for share in pruned.tolist()))
    print(f"what that changes: {error:.1e}")

    compiled = torch.compile(attend)(*leaves)[0]
    same = torch.equal(compiled, out)
    print("torch.compile gives the same bits:", same)
    finite = all(gradient.isfinite().all() for gradient in gradients)
    return 0 if same and finite and error < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Gated attention on a GPU against ungated attention of other libraries, in one process.

    python bench/attention_cuda.py --library build/cuda/lib/libreynard.so [--quick] [--json FILE]

Gates: 75 % of the heads with logits N(2, 1), the rest N(12, 1); q, k, v from N(0, 1); tolerance e^-10.
Sampled rows are compared with an f64 computation before anything is timed. Times are medians of
events, the functions of a shape run by turns; between two runs a buffer larger than the L2 cache is
written. ratio = time of the peer / ours: above 1 ours is faster.
"""
import argparse
import json
import math
import subprocess

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import logsigmoid, scaled_dot_product_attention

TOLERANCE = -10.0
PEERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash_attention_2": SDPBackend.FLASH_ATTENTION}


def shapes(quick):
    if quick:
        return [(2, 24, 24, 16384, 64, False), (2, 12, 12, 16384, 128, False)]
    found = []
    for length, batch in ((2048, 8), (4096, 4), (8192, 2), (16384, 2), (65536, 1)):
        for dim, heads in ((64, 24), (128, 12)):
            heads = heads if length < 65536 else heads // 3
            found.append((batch, heads, heads, length, dim, False))
    found += [(2, 24, 6, 16384, 64, False), (2, 24, 24, 16384, 64, True)]
    return found


class Case:
    """Inputs of one shape; packed: documents of a quarter of the length."""

    def __init__(self, batch, heads, groups, length, dim, packed):
        self.shape = (batch, heads, groups, length, dim, packed)
        torch.manual_seed(1)

        def normal(count):
            made = torch.randn(batch, length, count, dim, device="cuda", dtype=torch.bfloat16)
            return made.requires_grad_()

        self.q, self.k, self.v = normal(heads), normal(groups), normal(groups)
        mean = torch.where(torch.arange(heads, device="cuda") < heads * 3 // 4, 2.0, 12.0)
        logits = torch.randn(batch, length, heads, device="cuda") + mean
        self.log_gate = logsigmoid(logits).requires_grad_()
        self.dout = torch.randn_like(self.q)
        self.first_key = None
        if packed:
            document = length // 4
            first = torch.arange(length, device="cuda", dtype=torch.int32) // document * document
            self.first_key = first.expand(batch, length).contiguous()
        self.bound = torch.full((heads,), math.sqrt(dim) * 1.01, device="cuda")
        # Peers read (B, H, T, D).
        self.peer_inputs = [
            t.detach().transpose(1, 2).contiguous().requires_grad_() for t in (self.q, self.k, self.v)
        ]
        self.peer_dout = self.dout.transpose(1, 2).contiguous()

    def ours(self, **options):
        bound = self.bound if options.get("rule") == "published" else None
        gate = options.pop("log_gate", self.log_gate)
        return torch.ops.reynard.attention(
            self.q, self.k, self.v, gate, self.first_key, bound, **options
        )[0]

    def peer(self, backend):
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                *self.peer_inputs, is_causal=True, enable_gqa=self.shape[1] != self.shape[2]
            )

    def flops(self):
        """Of the dense causal forward: two products."""
        batch, heads, _, length, dim, packed = self.shape
        return 2 * batch * heads * length * length * dim / (4 if packed else 1)

    def largest_error(self):
        """Of sampled rows of three heads against f64, relative to the norm of the rows."""
        batch, heads, groups, length, dim, _ = self.shape
        rows = torch.sort(torch.randperm(length, device="cuda")[:64])[0]
        sums = self.log_gate.detach().double().cumsum(1)
        with torch.no_grad():
            out = self.ours()
        worst = 0.0
        for head in (0, heads // 2, heads - 1):
            group = head // (heads // groups)
            q = self.q[0, rows, head].double()
            k, v = self.k[0, :, group].double(), self.v[0, :, group].double()
            logits = q @ k.T / math.sqrt(dim) + sums[0, rows, head, None] - sums[0, None, :, head]
            key = torch.arange(length, device="cuda")
            hidden = key[None] > rows[:, None]
            if self.first_key is not None:
                hidden |= key[None] < self.first_key[0, rows, None]
            exact = logits.masked_fill(hidden, -math.inf).softmax(-1) @ v
            error = (out[0, rows, head].double() - exact).norm() / exact.norm()
            worst = max(worst, float(error))
        return worst


def medians(functions, repeats, flush):
    for function in functions.values():
        for _ in range(3):
            function()
    events = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            function()
            end.record()
            events[name].append((begin, end))
    torch.cuda.synchronize()
    return {
        name: sorted(begin.elapsed_time(end) for begin, end in pairs)[len(pairs) // 2]
        for name, pairs in events.items()
    }


def measure(case, repeats, flush):
    batch, heads, groups, length, dim, packed = case.shape
    error = case.largest_error()
    if not error < 6e-3:
        raise SystemExit(f"parity: relative error {error:.2g} at {case.shape}; nothing was timed")
    variants = {
        "softmax": lambda: case.ours(log_gate=None),
        "gated": lambda: case.ours(),
        "pruned_tight": lambda: case.ours(log_pruning_tolerance=TOLERANCE),
        "pruned_published": lambda: case.ours(log_pruning_tolerance=TOLERANCE, rule="published"),
    }
    peers = {} if packed else {name: lambda b=b: case.peer(b) for name, b in PEERS.items()}
    ours = {"inputs": (case.q, case.k, case.v, case.log_gate), "dout": case.dout}
    rows = []
    for direction in ("forward", "backward"):
        timed = {**variants, **peers}
        if direction == "forward":
            with torch.no_grad():
                times = medians(timed, repeats, flush)
        else:
            graphs = {}
            for name, function in timed.items():
                out = function()
                inputs = case.peer_inputs if name in peers else ours["inputs"]
                dout = case.peer_dout if name in peers else ours["dout"]
                graphs[name] = lambda out=out, inputs=inputs, dout=dout: torch.autograd.grad(
                    out, inputs, dout, retain_graph=True, allow_unused=True
                )
            times = medians(graphs, repeats, flush)
        flops = case.flops() * (1 if direction == "forward" else 2.5)
        for name in variants:
            row = {
                "name": f"{name}_{direction}",
                "shape": f"B{batch} H{heads} G{groups} T{length} D{dim}" + (" packed" if packed else ""),
                "dtype": "bf16",
                "ms": round(times[name], 4),
                "dense_tflops": round(flops / times[name] / 1e9, 1),
                "error": error,
            }
            for peer in peers:
                row[f"{peer}_ms"] = round(times[peer], 4)
                row[f"ratio_to_{peer}"] = round(times[peer] / times[name], 3)
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--library", required=True, help="libreynard.so with libreynard_cuda.so beside it")
    parser.add_argument("--quick", action="store_true", help="two shapes only")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--commit", default="", help="what the results are of; asked of git when empty")
    parser.add_argument("--json", help="file for all rows")
    arguments = parser.parse_args()
    torch.ops.load_library(arguments.library)
    device = torch.cuda.get_device_properties(0)
    flush = torch.empty(2 * device.L2_cache_size, dtype=torch.uint8, device="cuda")
    commit = arguments.commit or subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    rows = []
    for shape in shapes(arguments.quick):
        rows += measure(Case(*shape), arguments.repeats, flush)
        torch.cuda.empty_cache()
    if arguments.json:
        result = {"gpu": device.name, "torch": torch.__version__, "commit": commit, "rows": rows}
        with open(arguments.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()

"""Both sides of `reynard bench attention --device cuda`: gated attention of libreynard.so on a GPU and
ungated attention of other libraries, by turns in this process.

    attention_cuda_peer.py LIBREYNARD REPEATS

Answers one line per line: "device" with GPU, clocks, torch and commit; "parity B H G T D DOCUMENTS PEERS" with
the largest relative errors of outputs and of gradients against f64; "forward ..." and "backward ..." of the same shape
with names, each before its milliseconds, median and minimum (gpu_times.py): the GPU's time, as in training, where the host runs ahead.

PEERS, 0 or 1, says whether peers are timed: cuDNN and FlashAttention-2 through torch, and FLA's
parallel_forgetting_attn (which has gates, and is tuned at its first call of a shape) where its package is
installed.

Gates: 75 % of the heads with logits N(2, 1), the rest N(12, 1); q, k, v from N(0, 1); tolerance e^-10.
"""

import math
import sys

import torch
from gpu import described
from gpu_times import medians, other_data
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import logsigmoid, scaled_dot_product_attention

LIBRARY, REPEATS = sys.argv[1], int(sys.argv[2])
TOLERANCE = -10.0
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash_attention_2": SDPBackend.FLASH_ATTENTION}

try:
    from fla.ops.forgetting_attn import parallel_forgetting_attn
except ImportError:
    parallel_forgetting_attn = None
# What a peer that does not take a shape may raise.
REFUSALS = (RuntimeError,)
try:
    from triton.errors import TritonError

    REFUSALS += (TritonError,)
except ImportError:
    pass


class Case:
    """Inputs of one shape; documents of equal length."""

    def __init__(self, B, H, G, T, D, documents):
        self.shape = (B, H, G, T, D, documents)
        torch.manual_seed(1)

        def normal(count):
            made = torch.randn(B, T, count, D, device="cuda", dtype=torch.bfloat16)
            return made.requires_grad_()

        self.q, self.k, self.v = normal(H), normal(G), normal(G)
        mean = torch.where(torch.arange(H, device="cuda") < H * 3 // 4, 2.0, 12.0)
        logits = torch.randn(B, T, H, device="cuda") + mean
        self.log_gate = logsigmoid(logits).requires_grad_()
        self.dout = torch.randn_like(self.q)
        self.first_key = None
        if documents > 1:
            document = T // documents
            first = torch.arange(T, device="cuda", dtype=torch.int32) // document * document
            self.first_key = first.expand(B, T).contiguous()
        self.bound = torch.full((H,), math.sqrt(D) * 1.01, device="cuda")
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

    def sdpa(self, backend):
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                *self.peer_inputs, is_causal=True, enable_gqa=self.shape[1] != self.shape[2]
            )

    def functions(self, with_peers):
        """name -> (function, inputs of its gradient, gradient of its output)"""
        own = ((self.q, self.k, self.v, self.log_gate), self.dout)
        found = {
            "softmax": (lambda: self.ours(log_gate=None), *own),
            "dense": (lambda: self.ours(), *own),
            "tight": (lambda: self.ours(log_pruning_tolerance=TOLERANCE), *own),
            "published": (lambda: self.ours(log_pruning_tolerance=TOLERANCE, rule="published"), *own),
        }
        if with_peers and self.first_key is None:
            for name, backend in BACKENDS.items():
                function = lambda backend=backend: self.sdpa(backend)  # noqa: E731
                found[name] = (function, self.peer_inputs, self.peer_dout)
            if parallel_forgetting_attn and self.shape[1] == self.shape[2]:
                function = lambda: parallel_forgetting_attn(  # noqa: E731
                    self.q, self.k, self.v, self.log_gate
                )
                found["fla"] = (function, *own)
        return found

    def exact(self, rows, heads):
        """In f64, of these rows of the first batch row and of query heads that share a key head: outputs
        (heads, rows, D), dS (heads, rows, T) and the weights it is made of."""
        _, H, G, T, D, _ = self.shape
        group = heads[0] // (H // G)
        sums = self.log_gate.detach()[0, :, heads].double().cumsum(0).T  # (heads, T)
        q, dout = (t.detach()[0, rows][:, heads].transpose(0, 1).double() for t in (self.q, self.dout))
        k, v = (t.detach()[0, :, group].double() for t in (self.k, self.v))
        logits = q @ k.T / math.sqrt(D) + sums[:, rows, None] - sums[:, None]
        key = torch.arange(T, device="cuda")
        hidden = key[None] > rows[:, None]
        if self.first_key is not None:
            hidden |= key[None] < self.first_key[0, rows, None]
        weights = logits.masked_fill(hidden, -math.inf).softmax(-1)
        dweights = dout @ v.T
        dscores = weights * (dweights - (weights * dweights).sum(-1, keepdim=True))
        return weights @ v, dscores, weights

    def largest_errors(self):
        """Of outputs and of gradients of dense and pruned calls against f64, relative to the norm of what is
        compared: sampled rows of out and dq; dk, dv and the gates' of the last 64 positions, which only
        as many queries see."""
        _, H, G, T, D, _ = self.shape
        sampled = torch.sort(torch.randperm(T, device="cuda")[:64])[0]
        last = torch.arange(T - 64, T, device="cuda")
        later = torch.ones(64, 64, device="cuda", dtype=torch.float64).tril()  # [query, gate]
        out_errors, gradient_errors = [], []

        def compare(errors, ours, exact):
            errors.append((ours.double() - exact).norm() / exact.norm())

        for name, (function, inputs, dout) in self.functions(with_peers=False).items():
            if name == "softmax":
                continue
            out = function()
            dq, dk, dv, dgate = torch.autograd.grad(out, inputs, dout)
            own_gates, exact_gates = [], []
            for group in sorted({0, G // 2, G - 1}):
                heads = list(range(group * (H // G), (group + 1) * (H // G)))
                k = self.k.detach()[0, :, group].double()
                exact_out, dscores, _ = self.exact(sampled, heads)
                compare(out_errors, out[0, sampled][:, heads].transpose(0, 1), exact_out)
                exact_dq = dscores @ k / math.sqrt(D)
                compare(gradient_errors, dq[0, sampled][:, heads].transpose(0, 1), exact_dq)
                _, dscores, weights = self.exact(last, heads)
                q, do = (t.detach()[0, last][:, heads].transpose(0, 1).double() for t in (self.q, self.dout))
                near = dscores[:, :, T - 64 :]
                exact_dk = (near.transpose(1, 2) @ q).sum(0) / math.sqrt(D)
                exact_dv = (weights[:, :, T - 64 :].transpose(1, 2) @ do).sum(0)
                compare(gradient_errors, dk[0, last, group], exact_dk)
                compare(gradient_errors, dv[0, last, group], exact_dv)
                # Of gate t: dS of all queries from t on and all keys before it.
                before = dscores[:, :, : T - 64].sum(-1, keepdim=True) + near.cumsum(-1) - near
                own_gates.append(dgate[0, last][:, heads].T)
                exact_gates.append((later * before).sum(1))
            # Of all heads together: where gates are open these sums cancel.
            compare(gradient_errors, torch.cat(own_gates), torch.cat(exact_gates))
        return [torch.stack(errors).max().item() for errors in (out_errors, gradient_errors)]  # NaN if any is


class Refusals:
    """What a peer does not take. Longer rows are not asked for again: each refusal may cost a compilation."""

    def __init__(self):
        self.of = set()

    def allow(self, name, what, case, function):
        _, H, G, T, D, _ = case.shape
        kind = (name, what, H == G, D)
        if kind in self.of:
            return False
        try:
            function()
            return True
        except REFUSALS as error:
            self.of.add(kind)
            print(f"{name} {what} does not take T{T} D{D}: {str(error).splitlines()[0]}", file=sys.stderr)
            return False


def measure(case, what, with_peers, refusals, other):
    timed = {}
    if what == "forward":
        with torch.no_grad():
            for name, (function, _, _) in case.functions(with_peers).items():
                if refusals.allow(name, what, case, function):
                    timed[name] = function
            return medians(timed, REPEATS, other)
    for name, (function, inputs, dout) in case.functions(with_peers).items():
        if not refusals.allow(name, "forward", case, function):
            continue
        out = function()
        out = out[0] if isinstance(out, tuple) else out

        def backward(out=out, inputs=inputs, dout=dout):
            return torch.autograd.grad(out, inputs, dout, retain_graph=True, allow_unused=True)

        if refusals.allow(name, what, case, backward):
            timed[name] = backward
    return medians(timed, REPEATS, other)


def main():
    torch.ops.load_library(LIBRARY)
    other = other_data()
    case, refusals = None, Refusals()
    for line in sys.stdin:
        what, *shape = line.split()
        if what == "device":
            print(described(), flush=True)
            continue
        *shape, with_peers = (int(number) for number in shape)
        shape = tuple(shape)
        if case is None or case.shape != shape:
            case = None
            torch.cuda.empty_cache()
            case = Case(*shape)
        if what == "parity":
            print(*case.largest_errors(), flush=True)
        else:
            times = measure(case, what, with_peers, refusals, other)
            print(*(f"{name} {ms} {least}" for name, (ms, least) in times.items()), flush=True)


main()

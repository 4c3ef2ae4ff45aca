"""The operators from Python: load_library, opcheck of every registered op, gradcheck in f64.

Usage: attention_ops_test.py LIBRARY

On a GPU with REYNARD_TEST_DEVICE=cuda.
"""

import math
import os
import sys
import unittest

import torch

LIBRARY = sys.argv.pop(1)
torch.ops.load_library(LIBRARY)
ops = torch.ops.reynard
DEVICE = os.environ.get("REYNARD_TEST_DEVICE", "cpu")
torch.set_default_device(DEVICE)


def inputs(B=2, Tq=9, Tk=12, H=4, G=2, D=8, dtype=torch.float32, requires_grad=False, seed=0):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def normal(*sizes):
        return torch.randn(*sizes, generator=generator, dtype=torch.float64)

    q = normal(B, Tq, H, D).to(dtype)
    k = normal(B, Tk, G, D).to(dtype)
    v = normal(B, Tk, G, D).to(dtype)
    log_gate = torch.nn.functional.logsigmoid(normal(B, Tk, H) + 2).to(wide)
    tensors = [q, k, v, log_gate]
    return [t.requires_grad_(requires_grad) for t in tensors]


def naive(q, k, v, log_gate, first_key=None):
    B, Tq, H, D = q.shape
    Tk, G = k.shape[1:3]
    k = k.repeat_interleave(H // G, 2)
    v = v.repeat_interleave(H // G, 2)
    c = log_gate.double().cumsum(1).permute(0, 2, 1)
    s = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(D)
    s = s + (c[:, :, Tk - Tq :, None] - c[:, :, None, :]).to(s.dtype)
    j = torch.arange(Tk)
    visible = j <= torch.arange(Tk - Tq, Tk)[:, None]
    if first_key is not None:
        visible = visible & (j >= first_key[:, None, :, None])
    s = s.masked_fill(~visible, -math.inf)
    return torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v), s.logsumexp(-1)


class AttentionOps(unittest.TestCase):
    def test_equals_the_formula(self):
        q, k, v, log_gate = inputs()
        out, lse, start = ops.attention(q, k, v, log_gate)
        expected, expected_lse = naive(q, k, v, log_gate)
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(lse, expected_lse, atol=1e-5, rtol=1e-5)
        self.assertEqual(start.shape, (2, 4, 1))

    def test_gradients_equal_those_of_the_formula(self):
        ours = inputs(requires_grad=True)
        theirs = inputs(requires_grad=True)
        weight = torch.randn(2, 9, 4, 8)
        (ops.attention(*ours)[0] * weight).sum().backward()
        (naive(*theirs)[0] * weight).sum().backward()
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-4)

    def test_gradcheck_in_double(self):
        tensors = inputs(B=1, Tq=4, Tk=6, H=2, G=1, D=3, dtype=torch.float64, requires_grad=True)
        first_key = torch.tensor([[0, 1, 1, 3]], dtype=torch.int32)

        def function(q, k, v, log_gate):
            return ops.attention(q, k, v, log_gate, first_key)[:2]

        self.assertTrue(torch.autograd.gradcheck(function, tensors))

    def test_gradcheck_of_several_parts(self):
        q, k, v, log_gate = inputs(
            B=1, Tq=3, Tk=5, H=2, G=1, D=3, dtype=torch.float64, requires_grad=True
        )

        def function(q, k, v, log_gate):
            sums = ops.gate_sums(log_gate)
            return ops.attention_parts(
                q,
                sums[:, :, 2:],
                [k[:, :2], k[:, 2:]],
                [v[:, :2], v[:, 2:]],
                [sums[:, :, :2], sums[:, :, 2:]],
                [None, None],
                [0, 1],
            )[:2]

        whole = ops.attention(q, k, v, log_gate)
        for a, b in zip(function(q, k, v, log_gate), whole):
            torch.testing.assert_close(a, b)
        self.assertTrue(torch.autograd.gradcheck(function, (q, k, v, log_gate)))

    def test_opcheck(self):
        for dtype in (torch.float32, torch.bfloat16):
            q, k, v, log_gate = inputs(dtype=dtype, requires_grad=True)
            first_key = torch.zeros(2, 9, dtype=torch.int32)
            bound = torch.full((4,), 30.0)
            torch.library.opcheck(ops.attention.default, (q, k, v))
            torch.library.opcheck(
                ops.attention.default,
                (q, k, v, log_gate, first_key, bound),
                {"log_pruning_tolerance": -10.0, "rule": "published"},
            )

    def test_opcheck_of_the_parts(self):
        q, k, v, log_gate = inputs(requires_grad=True)
        sums = ops.gate_sums(log_gate).detach().requires_grad_(True)
        query_sums = sums[:, :, 3:].detach().requires_grad_(True)
        lists = ([k], [v], [sums], [None], [1])
        torch.library.opcheck(ops.gate_sums.default, (log_gate,))
        torch.library.opcheck(ops.attention_parts.default, (q, query_sums, *lists))
        with torch.no_grad():
            out, lse, start = ops.attention_parts(q, query_sums, *lists)
            arguments = (out, lse, q, query_sums, *lists, out, lse, start, 0.0)
            detached = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, arguments)
            torch.library.opcheck(ops.attention_parts_backward.default, detached)
            torch.library.opcheck(
                ops.gate_sums_backward.default, (sums.detach(), log_gate.detach())
            )

    def test_backward_takes_any_strides(self):
        q, k, v, log_gate = inputs(B=1, Tq=5, Tk=5, H=2, G=2, D=16)
        sums = ops.gate_sums(log_gate)
        lists = ([k], [v], [sums], [None], [1])
        out, lse, start = ops.attention_parts(q, sums, *lists, log_pruning_tolerance=-10.0)
        dout = torch.randn_like(out)

        def backward(out, start):
            dq, dsums, dk, dv, dkey_sums = ops.attention_parts_backward(
                dout, None, q, sums, *lists, out, lse, start, 0.0
            )
            return dq, dsums, *dk, *dv, *dkey_sums

        strided = out.transpose(-1, -2).contiguous().transpose(-1, -2)
        every_other = torch.stack([start, start + 1000], -1)[..., 0]
        for ours, theirs in zip(backward(strided, every_other), backward(out, start)):
            torch.testing.assert_close(ours, theirs, atol=0, rtol=0)

    def test_decode_reads_pages(self):
        B, T, H, G, D = 2, 100, 4, 2, 8
        q, k, v, log_gate = inputs(B=B, Tq=T, Tk=T, H=H, G=G, D=D)
        expected, expected_lse = naive(q, k, v, log_gate)
        N = (T + 63) // 64
        keys = torch.full((B * G * N, 64, D), math.nan)
        values = torch.full((B * G * N, 64, D), math.nan)
        sums = torch.full((B * G * N, H // G, 64), math.nan, dtype=torch.float64)
        table = torch.arange(B * G * N, dtype=torch.int32).view(B, G, N)
        c = log_gate.double().cumsum(1)
        for b in range(B):
            for g in range(G):
                for t in range(T):
                    page, slot = table[b, g, t // 64], t % 64
                    keys[page, slot], values[page, slot] = k[b, t, g], v[b, t, g]
                    sums[page, :, slot] = c[b, t, g * 2 : g * 2 + 2]
        lengths = torch.full((B,), T, dtype=torch.int64)
        arguments = (q[:, -1].contiguous(), keys, values, sums, None, None, table, lengths)
        out, lse, start = ops.attention_decode(*arguments)
        torch.testing.assert_close(out, expected[:, -1], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(lse, expected_lse[:, :, -1], atol=1e-5, rtol=1e-5)
        self.assertEqual(start.tolist(), [[0] * H] * B)
        torch.library.opcheck(
            ops.attention_decode.default, arguments, test_utils=("test_schema", "test_faketensor")
        )

    def test_decode_is_not_differentiable(self):
        pages = torch.zeros(1, 64, 8)
        table, lengths = torch.zeros(1, 1, 1, dtype=torch.int32), torch.tensor([10])
        q = torch.zeros(1, 2, 8, requires_grad=True)
        out, lse, start = ops.attention_decode(q, pages, pages, None, None, None, table, lengths)
        self.assertFalse(start.requires_grad)
        for result in (out, lse):
            with self.assertRaisesRegex(RuntimeError, "not implemented"):
                result.sum().backward()

    def test_statistics(self):
        start = torch.tensor([[[0, 128]]], dtype=torch.int32)
        first_block, tiles, flops = ops.attention_statistics(start, None, 256, 256)
        self.assertEqual(first_block.tolist(), [[[0, 2]]])
        self.assertAlmostEqual(tiles.item(), 2 / 6)
        self.assertAlmostEqual(flops.item(), 2 / 6)
        torch.library.opcheck(ops.attention_statistics.default, (start, None, 256, 256))

    def test_gate_sums_run_over_the_row_whatever_its_documents_are(self):
        log_gate = inputs(B=1, Tq=6, Tk=6)[3].requires_grad_()
        first_key = torch.tensor([[0, 0, 0, 3, 3, 3]], dtype=torch.int32)
        sums = ops.gate_sums(log_gate, first_key)
        torch.testing.assert_close(sums, log_gate.double().cumsum(1).transpose(1, 2))
        # A document's first gate is between none of its keys; the sum of the others' starts anew.
        sums[0, 0, 5].backward()
        self.assertEqual(log_gate.grad[0, :, 0].tolist(), [0, 0, 0, 0, 1, 1])

    def test_errors_name_the_argument(self):
        q, k, v, log_gate = inputs()
        with self.assertRaisesRegex(RuntimeError, "k has dtype BFloat16; expected Float, as q"):
            ops.attention(q, k.bfloat16(), v, log_gate)
        with self.assertRaisesRegex(RuntimeError, "attention: log_gate has shape"):
            ops.attention(q, k, v, log_gate[:, :5])

    def test_backward_rejects_what_no_forward_returned(self):
        q, k, v, log_gate = inputs()
        sums = ops.gate_sums(log_gate)
        lists = ([k], [v], [sums], [None], [1])
        out, lse, start = ops.attention_parts(q, sums[:, :, 3:], *lists)

        def backward(dout=out, dlse=lse, out=out, lse=lse, start=start):
            ops.attention_parts_backward(dout, dlse, q, sums[:, :, 3:], *lists, out, lse, start, 0.0)

        backward()
        for name, other in {
            "out": out[:, :1],
            "dout": out[..., :4],
            "lse": lse[:, :, :1],
            "dlse": lse.double(),
            "start": start[..., :0],
        }.items():
            with self.assertRaisesRegex(RuntimeError, f"attention_parts_backward: {name} has"):
                backward(**{name: other})
        with self.assertRaisesRegex(RuntimeError, "gate_sums: dsums has shape"):
            ops.gate_sums_backward(torch.zeros(1, 1, 1, dtype=torch.float64), log_gate)

    @unittest.skipIf(DEVICE != "cpu", "nothing waits for a GPU to look at values")
    def test_decode_rejects_what_it_would_read_beyond_its_pages(self):
        q, pages = torch.zeros(1, 2, 8), torch.zeros(8, 64, 8)

        def decode(ids, length=512, first_key=None, **options):
            table = torch.tensor([[ids]], dtype=torch.int32)
            lengths = torch.tensor([length])
            if first_key is not None:
                first_key = torch.tensor([first_key], dtype=torch.int32)
            return ops.attention_decode(
                q, pages, pages, None, None, None, table, lengths, first_key, **options
            )[2]

        self.assertEqual(decode([0, 1, 2, 3, 4, 5, 6, 7]).tolist(), [[0, 0]])
        self.assertEqual(decode([-1, -1, 2, 3, 4, 5, 6, 7]).tolist(), [[128, 128]])
        # What lies before the first key is not read.
        self.assertEqual(decode([5, -1, 2, 3, 4, 5, 6, 7], first_key=128).tolist(), [[128, 128]])
        for ids, place in (
            ([0, 1, 2, -1, 4, 5, 6, 7], "3] = -1"),
            ([0, 1, 2, -2000000000, 4, 5, 6, 7], "3] = -2000000000"),
            ([-1, 1, -1, 3, 4, 5, 6, 7], "2] = -1"),
            ([0, 1, 2, 3, 4, 5, 6, -1], "7] = -1"),
        ):
            with self.assertRaisesRegex(RuntimeError, rf"page_table at \[0, 0, {place}; expected neg"):
                decode(ids)
        # Ids that no length reaches are checked too.
        for length in (512, 1):
            with self.assertRaisesRegex(RuntimeError, r"page_table at \[0, 0, 7\] = 8; .* pages, 8"):
                decode([0, 1, 2, 3, 4, 5, 6, 8], length)
        for length in (-1, 513):
            with self.assertRaisesRegex(RuntimeError, rf"lengths at \[0\] = {length}; .* = 512"):
                decode(range(8), length)
        with self.assertRaisesRegex(RuntimeError, "log_pruning_tolerance = 5"):
            decode(range(8), log_pruning_tolerance=5.0)
        with self.assertRaisesRegex(RuntimeError, "scale = -1"):
            decode(range(8), scale=-1.0)

    def test_decode_errors_name_the_argument(self):
        S, H, G, D, P, N = 2, 4, 2, 8, 6, 3
        right = {
            "q": torch.zeros(S, H, D),
            "keys": torch.zeros(P, 64, D),
            "values": torch.zeros(P, 64, D),
            "sums": torch.zeros(P, H // G, 64, dtype=torch.float64),
            "norms": torch.zeros(P),
            "masses": torch.zeros(P, H // G, dtype=torch.float64),
            "page_table": torch.arange(P * 2, dtype=torch.int32).remainder(P).view(S, G, N),
            "lengths": torch.full((S,), 100),
            "first_key": torch.zeros(S, dtype=torch.int32),
            "logit_bound": torch.ones(H),
        }
        ops.attention_decode(*right.values())

        def expect(message, options=None, **changed):
            with self.assertRaisesRegex(RuntimeError, "attention_decode: " + message):
                ops.attention_decode(*{**right, **changed}.values(), **(options or {}))

        for name, tensor in right.items():
            expect(f"{name} has shape", **{name: tensor.unsqueeze(0)})
            other = torch.float64 if tensor.dtype != torch.float64 else torch.float32
            expect(f"{name} has dtype", **{name: tensor.to(other)})
        for name in list(right)[2:]:
            expect(f"{name} has shape", **{name: right[name][:-1]})
        for name in ("keys", "values", "sums"):
            expect(f"{name} has shape", **{name: right[name].transpose(1, 2)})
        expect("number of key/value heads G of page_table = 3", page_table=torch.zeros(S, 3, N).int())
        wide = torch.zeros(P, 64, 257)
        expect("head dimension D = 257", q=torch.zeros(S, H, 257), keys=wide, values=wide)
        pruned = {"log_pruning_tolerance": -10.0}
        expect("masses = undefined", pruned, masses=None)
        expect("norms and logit_bound = undefined", pruned, norms=None, logit_bound=None)
        with self.assertRaisesRegex(RuntimeError, "expected tight or published"):
            ops.attention_decode(*right.values(), rule="loose")

    def test_results_lie_as_their_description_says(self):
        for dtype in (torch.float64, torch.float32):
            tensors = inputs(dtype=dtype, requires_grad=True)
            described = ops.attention(*(t.detach().to("meta") for t in tensors))
            results = ops.attention(*tensors)
            results[0].sum().backward()
            for described, real in zip(described, results):
                self.assertEqual((described.dtype, described.stride()), (real.dtype, real.stride()))
            for t in tensors:
                self.assertTrue(t.grad.is_contiguous())

    def test_checks_of_values_leave_descriptions_alone(self):
        os.environ["REYNARD_DEBUG_CHECKS"] = "1"
        try:
            q, k, v, log_gate = (t.to("meta") for t in inputs())
            first_key = torch.zeros(2, 9, dtype=torch.int32, device="meta")
            ops.attention(q, k, v, log_gate, first_key)
        finally:
            del os.environ["REYNARD_DEBUG_CHECKS"]


if __name__ == "__main__":
    unittest.main()

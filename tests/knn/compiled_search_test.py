"""Exact search under torch.compile, and opcheck of it, on the CPU or (REYNARD_TEST_DEVICE=cuda) on a GPU.

Usage: compiled_search_test.py LIBRARY
"""

import os
import sys
import unittest

import torch

LIBRARY = sys.argv.pop(1)
torch.ops.load_library(LIBRARY)
knn_search = torch.ops.reynard.knn_search

DEVICE = os.environ.get("REYNARD_TEST_DEVICE", "cpu")


class CompiledSearch(unittest.TestCase):
    def test_one_graph_for_any_number_of_queries(self):
        torch._dynamo.reset()
        keys = torch.randn(50, 16, device=DEVICE)

        def values_of_best(queries):
            ids, scores = knn_search(queries, keys, 5)
            return (keys[ids] * scores.softmax(-1).unsqueeze(-1)).sum(1)

        compiled = torch.compile(values_of_best, backend="aot_eager", fullgraph=True, dynamic=True)
        for num_queries in (3, 7, 20):
            queries = torch.randn(num_queries, 16, device=DEVICE)
            torch.testing.assert_close(compiled(queries), values_of_best(queries))
        self.assertEqual(torch._dynamo.utils.counters["stats"]["unique_graphs"], 1)

    def test_scores_are_not_differentiable(self):
        queries = torch.randn(4, 16, device=DEVICE, requires_grad=True)
        keys = torch.randn(9, 16, device=DEVICE, requires_grad=True)
        ids, scores = knn_search(queries, keys, 3)
        with self.assertRaisesRegex(RuntimeError, "not implemented"):
            scores.sum().backward(retain_graph=True)
        (queries.unsqueeze(1) * keys[ids]).sum().backward()  # of what the ids say
        self.assertGreater(keys.grad.abs().max().item(), 0)

    def test_descriptions_are_checked_as_tensors_are(self):
        def sizes(*shape, dtype=torch.float32):
            return torch.empty(*shape, dtype=dtype, device="meta")

        self.assertEqual(knn_search(sizes(4, 8), sizes(20, 8), 20)[0].shape, (4, 20))
        queries, keys = sizes(4, 8), sizes(20, 8)
        for queries, keys, k, message in (
            (queries, keys, 21, "k = 21; expected 1 ... 20"),
            (queries, keys, 0, "k = 0"),
            (queries, keys, -1, "k = -1"),
            (queries, sizes(20, 9), 3, "keys has shape"),
            (sizes(8), keys, 3, "queries has shape"),
            (sizes(4, 8, dtype=torch.float64), keys, 3, "queries has dtype"),
            (queries, sizes(20, 8, dtype=torch.float16), 3, "keys has dtype"),
        ):
            with self.assertRaisesRegex(RuntimeError, "knn: " + message.replace(".", "[.]")):
                knn_search(queries, keys, k)

    def test_opcheck(self):
        for dtype in (torch.float32, torch.bfloat16):
            queries = torch.randn(4, 16, device=DEVICE, dtype=dtype)
            keys = torch.randn(9, 16, device=DEVICE, dtype=torch.bfloat16)
            torch.library.opcheck(knn_search.default, (queries, keys, 3))


if __name__ == "__main__":
    if DEVICE == "cuda" and not torch.cuda.is_available():
        print("skipped: REYNARD_TEST_DEVICE=cuda and there is no GPU")
        sys.exit(77)
    unittest.main()

"""Exact search against FAISS: IndexFlatIP finds the same keys, up to keys whose scores are equal in
f32 to rounding.

Usage: faiss_test.py LIBRARY
"""

import sys
import unittest

try:
    import faiss
except ImportError:
    print("skipped: faiss is not installed (scripts/requirements-test.txt)")
    sys.exit(77)
import torch

LIBRARY = sys.argv.pop(1)
torch.ops.load_library(LIBRARY)


class Faiss(unittest.TestCase):
    def compare(self, queries, keys, k):
        ids, scores = torch.ops.reynard.knn_search(queries, keys, k)
        index = faiss.IndexFlatIP(keys.shape[1])
        index.add(keys.float().numpy())
        theirs, their_ids = map(torch.from_numpy, index.search(queries.float().numpy(), k))
        # Sums of D products in another order differ by at most D roundings of |q||k| each.
        size = queries.float().norm(dim=1).max() * keys.float().norm(dim=1).max()
        close = 2 * keys.shape[1] * 2**-24 * size
        self.assertTrue(((scores - theirs).abs() <= close).all())
        exact = (queries.double() @ keys.double().T).gather(1, ids)
        self.assertTrue(((exact - scores).abs() <= close).all())
        # What one of them finds alone is as good as the last that both find.
        for row in range(len(queries)):
            only = set(ids[row].tolist()) ^ set(their_ids[row].tolist())
            for key in only:
                score = queries[row].double() @ keys[key].double()
                self.assertLessEqual(abs(score - scores[row, -1]), close)
        return ids, their_ids

    def test_finds_the_same_keys(self):
        generator = torch.Generator().manual_seed(0)
        for dtype in (torch.float32, torch.bfloat16):
            for queries, keys, dim, k in ((1, 50000, 64, 128), (70, 20000, 100, 32), (5, 300, 7, 300)):
                with self.subTest(dtype=dtype, queries=queries, dim=dim):
                    q = torch.randn(queries, dim, generator=generator)
                    x = torch.randn(keys, dim, generator=generator).to(dtype)
                    ids, theirs = self.compare(q, x, k)
                    same = (ids == theirs).float().mean().item()
                    self.assertGreater(same, 0.99)  # neighbours in the order may be exchanged

    def test_unit_keys_and_queries(self):
        generator = torch.Generator().manual_seed(1)
        x = torch.nn.functional.normalize(torch.randn(30000, 64, generator=generator), dim=1)
        self.compare(x[:40] + 0.01, x, 100)

    def test_duplicates(self):
        generator = torch.Generator().manual_seed(2)
        x = torch.randn(100, 32, generator=generator).repeat(20, 1)
        ids, _ = self.compare(torch.randn(9, 32, generator=generator), x, 40)
        # Equal scores by ascending id: both groups of 20 come in order.
        self.assertTrue((ids[:, 1:20] - ids[:, :19] == 100).all())


unittest.main()

"""Peer of `reynard bench knn`: FAISS IndexFlatIP on f32 keys.

    knn_faiss_peer.py KEYS DIM K MOST_QUERIES bf16|f32

Keys and queries are those of torch's generator with seed 0, rounded to the dtype. Answers
`search Q` with the time in seconds that the first Q queries took, `scores J` with those of query J,
descending.
"""

import sys
import time

import faiss
import torch

KEYS, DIM, K, QUERIES = map(int, sys.argv[1:5])
DTYPE = {"bf16": torch.bfloat16, "f32": torch.float32}[sys.argv[5]]


def main():
    torch.manual_seed(0)
    keys = torch.randn(KEYS, DIM).to(DTYPE).float().numpy()
    queries = torch.randn(QUERIES, DIM).to(DTYPE).float().numpy()
    index = faiss.IndexFlatIP(DIM)
    index.add(keys)
    del keys
    scores = None
    for line in sys.stdin:
        command, number = line.split()
        if command == "search":
            begin = time.perf_counter()
            scores, _ = index.search(queries[: int(number)], K)
            print(time.perf_counter() - begin, flush=True)
        else:
            print(*(f"{x:.7g}" for x in scores[int(number)]), flush=True)


main()

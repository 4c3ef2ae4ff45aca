#pragma once
// Speed and memory of exact search on a GPU: keys there against torch's product of the same
// queries and keys, keys in host memory against a copy of their bytes, timed by events in one
// Python process (peers/knn_cuda_peer.py) that loads this library.

#include "bench/peer_process.h"
#include "bench/rows.h"

#include <cstdint>
#include <vector>

namespace reynard::bench {

struct KnnCudaBench {
  int64_t num_keys = int64_t{1} << 24;
  int64_t head_dim = 64;
  int64_t k = 128;
  std::vector<int64_t> queries = {1, 8, 64, 512};
  int repeats = 10;
  Measured measured = [](const Rows&, int64_t, int64_t) {};  // behind each number of queries
};

// Keys in bf16. knn and knn_host: ms; the product stores its scores and selects nothing.
// knn_memory and knn_host_memory: MB that a search takes at most beside queries and keys, against
// the f32 scores of all pairs and against the keys. A row's device holds clocks, torch and commit.
// Throws reynard::Error where scores are not torch's or host memory leads to another result;
// nothing is timed then.
Rows bench_knn_cuda(const KnnCudaBench& options);

// The same from a peer that runs already.
Rows knn_cuda_rows(PeerProcess& peer, const KnnCudaBench& options);

}  // namespace reynard::bench

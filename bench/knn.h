#pragma once
// Speed of exact search over a memory's keys: against the bandwidth that a sum over the same bytes
// reaches, and against FAISS IndexFlatIP in f32; and the memory that it takes for scores.

#include "bench/rows.h"

#include <cstdint>
#include <string>
#include <vector>

namespace reynard::bench {

struct KnnBench {
  int64_t num_keys = 1'000'000;
  int64_t head_dim = 64;
  int64_t k = 128;
  std::vector<int64_t> queries = {1, 64, 512};
  std::vector<std::string> dtypes = {"bf16"};
  std::vector<std::string> names = {"knn_bandwidth", "knn_faiss", "knn_coded", "knn_memory"};
  int repeats = 9;
};

// knn_bandwidth: GB/s of one query, bytes of the keys over its time, against the sum. knn_faiss:
// queries/s against the peer, each on its own dtype of the same keys. knn_coded: the same for one
// query where int8 codes of the keys are kept. knn_memory: MB that the
// process grew by while 512 queries looked for 32 keys, against the scores of all pairs.
// Throws reynard::Error where the found keys are not those of the plain loop or the scores not
// those of the peer.
Rows bench_knn(const KnnBench& options);

// Throws reynard::Error for numbers of keys and of those to find that are not measured on any
// device.
void check_search_sizes(int64_t num_keys, int64_t k);

}  // namespace reynard::bench

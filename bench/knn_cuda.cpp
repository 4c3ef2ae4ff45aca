#include "bench/knn_cuda.h"

#include "bench/knn.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/device.h"
#include "reynard/tensor/installation.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace reynard::bench {

namespace {

// Of sums of D products in f32 in another order, relative to the largest score: D 2^-24 = 1.5e-5
// of the sum of |q_d k_d| for D = 256, which is less than twice the best scores.
constexpr double kLargestScoreError = 3e-5;
constexpr double kMegabyte = 1 << 20;

void check_knn_parity(PeerProcess& peer, int64_t queries) {
  const std::vector<double> answer = peer.ask_numbers(fmt::format("parity {}", queries), 2);
  const double error = answer[0], others = answer[1];
  if (!(error < kLargestScoreError)) {  // nan is not
    throw Error(
        fmt::format("bench knn: scores of {} queries differ from torch's by {:.2g} of the largest; "
                    "expected at most {}",
                    queries,
                    error,
                    kLargestScoreError));
  }
  if (others == 0) return;
  throw Error(fmt::format(
      "bench knn: {} of the ids and scores of {} queries are others with keys in host memory; "
      "expected 0",
      others,
      queries));
}

struct SearchCost {
  double ours_ms = 0, peer_ms = 0, megabytes = 0;
};

// place: search, of keys on the GPU, or host.
SearchCost cost_of(PeerProcess& peer, const char* place, int64_t queries) {
  const std::vector<double> answer = peer.ask_numbers(fmt::format("{} {}", place, queries), 3);
  return {.ours_ms = answer[0],
          .peer_ms = answer[1],
          .megabytes = std::max(answer[2] / kMegabyte, 0.01)};
}

Rows place_rows(Row row, const SearchCost& cost, const char* memory_peer, double peer_megabytes) {
  row.ours = cost.ours_ms, row.peer_value = cost.peer_ms;
  row.ratio = cost.peer_ms / cost.ours_ms;
  Row memory = row;
  memory.name += "_memory";
  memory.ours = cost.megabytes, memory.peer_value = peer_megabytes;
  memory.peer = memory_peer;
  memory.unit = "MB";
  memory.ratio = peer_megabytes / cost.megabytes;
  return {row, memory};
}

Rows queries_rows(PeerProcess& peer,
                  const KnnCudaBench& options,
                  int64_t queries,
                  const std::string& device) {
  check_knn_parity(peer, queries);
  const auto num_keys = static_cast<double>(options.num_keys);
  const double all_scores = static_cast<double>(queries) * num_keys * 4 / kMegabyte;
  const double all_keys = num_keys * static_cast<double>(options.head_dim) * 2 / kMegabyte;
  Row row{.name = "knn",
          .shape = fmt::format(
              "Q{} N{} D{} k{}", queries, options.num_keys, options.head_dim, options.k),
          .dtype = "bf16",
          .device = device,
          .peer = "torch_matmul",
          .unit = "ms"};
  Rows rows = place_rows(row, cost_of(peer, "search", queries), "all_scores", all_scores);
  row.name = "knn_host";
  row.peer = "copy";
  rows += place_rows(row, cost_of(peer, "host", queries), "all_keys", all_keys);
  return rows;
}

}  // namespace

Rows knn_cuda_rows(PeerProcess& peer, const KnnCudaBench& options) {
  const std::string device = peer.ask("device");
  Rows rows;
  int64_t done = 0;
  for (const int64_t queries : options.queries) {
    rows += queries_rows(peer, options, queries, device);
    options.measured(rows, ++done, static_cast<int64_t>(options.queries.size()));
  }
  return rows;
}

Rows bench_knn_cuda(const KnnCudaBench& options) {
  check_search_sizes(options.num_keys, options.k);
  tensor::choose_device("cuda");  // says what is missing
  PeerProcess peer("knn_cuda_peer.py",
                   {tensor::library_folder() + "/libreynard.so",
                    std::to_string(options.num_keys),
                    std::to_string(options.head_dim),
                    std::to_string(options.k),
                    std::to_string(options.repeats)});
  return knn_cuda_rows(peer, options);
}

}  // namespace reynard::bench

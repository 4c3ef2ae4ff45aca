#include "bench/knn.h"

#include "bench/peak_growth.h"
#include "bench/peer_process.h"
#include "bench/sum_of_words.h"
#include "reynard/knn/search.h"
#include "reynard/tensor/check.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <sstream>

namespace reynard::bench {

namespace {

struct Data {
  at::Tensor keys;     // (N,D)
  at::Tensor queries;  // (most queries, D)
};

// What the peer makes too: the generator of torch is the same in both languages.
Data make_data(const KnnBench& options, int64_t most_queries, at::ScalarType dtype) {
  at::Generator generator = at::detail::createCPUGenerator(0);
  const auto random = [&](int64_t rows) {
    return at::randn({rows, options.head_dim}, generator, at::TensorOptions().dtype(at::kFloat))
        .to(dtype);
  };
  Data data;
  data.keys = random(options.num_keys);
  data.queries = random(most_queries);
  return data;
}

std::string shape_text(const KnnBench& options, int64_t queries, int64_t k) {
  return fmt::format("Q{} N{} D{} k{}", queries, options.num_keys, options.head_dim, k);
}

void check_plain(const KnnBench& options, const Data& data) {
  const at::Tensor query = data.queries.narrow(0, 0, 1);
  const knn::SearchResult found = knn::search(query, data.keys, options.k);
  const knn::SearchResult expected = knn::plain_search(query, data.keys, options.k);
  if (at::equal(found.ids, expected.ids) && at::equal(found.scores, expected.scores)) return;
  throw Error("bench knn: the search does not find what the plain loop finds");
}

Row bandwidth_row(const KnnBench& options, const std::string& dtype, const Data& data) {
  check_plain(options, data);
  const at::Tensor query = data.queries.narrow(0, 0, 1);
  std::atomic<uint64_t> sink{0};
  const Medians seconds = time_by_turns(
      options.repeats,
      [&] { knn::search(query, data.keys, options.k); },
      [&] { sink += sum_of_words(data.keys); });
  return with_rates({.name = "knn_bandwidth",
                     .shape = shape_text(options, 1, options.k),
                     .dtype = dtype,
                     .device = device_name(at::kCPU),
                     .peer = "sum",
                     .unit = "GB/s"},
                    static_cast<double>(data.keys.nbytes()) * 1e-9,
                    seconds);
}

// As a memory that keeps codes of its keys searches them.
knn::KeyRing coded_ring(const KnnBench& options, const Data& data) {
  knn::KeyRing ring{data.keys.unsqueeze(0), 0, 0, options.num_keys};
  ring.codes = knn::new_codes(1, options.num_keys, options.head_dim);
  knn::encode_keys(ring.keys, 0, ring.codes);
  return ring;
}

Row coded_row(const KnnBench& options,
              const std::string& dtype,
              const Data& data,
              PeerProcess& peer) {
  const knn::KeyRing ring = coded_ring(options, data);
  const at::Tensor query = data.queries.narrow(0, 0, 1);
  const at::Tensor batched = query.unsqueeze(0).unsqueeze(2);
  const knn::SearchResult found = knn::search(batched, {&ring, 1}, options.k);
  const knn::SearchResult expected = knn::plain_search(query, data.keys, options.k);
  if (!at::equal(found.ids.view_as(expected.ids), expected.ids) ||
      !at::equal(found.scores.view_as(expected.scores), expected.scores)) {
    throw Error("bench knn: codes do not lead to what the plain loop finds");
  }
  const Medians seconds = time_by_turns(
      options.repeats,
      [&] {
        knn::search(batched, {&ring, 1}, options.k);
      },
      [&] { peer.ask("search 1"); });
  return with_rates({.name = "knn_coded",
                     .shape = shape_text(options, 1, options.k),
                     .dtype = dtype,
                     .device = device_name(at::kCPU),
                     .peer = "faiss_flat",
                     .unit = "queries/s"},
                    1,
                    seconds);
}

// The peer sums in another order: scores agree to the roundings of sums of D products.
void check_peer(const KnnBench& options, const Data& data, int64_t queries, PeerProcess& peer) {
  const knn::SearchResult found =
      knn::search(data.queries.narrow(0, 0, queries), data.keys, options.k);
  const auto* ours = found.scores.const_data_ptr<float>();
  peer.ask(fmt::format("search {}", queries));
  for (const int64_t query : {int64_t{0}, queries - 1}) {
    std::istringstream theirs(peer.ask(fmt::format("scores {}", query)));
    for (int64_t i = 0; i < options.k; ++i) {
      double score = 0;
      theirs >> score;
      const double difference = std::abs(score - ours[query * options.k + i]);
      if (theirs && difference <= 1e-5 * std::abs(score) + 1e-5) continue;
      throw Error(fmt::format("bench knn: score {} of query {} is {}, FAISS has {}",
                              i,
                              query,
                              ours[query * options.k + i],
                              score));
    }
  }
}

Row faiss_row(const KnnBench& options,
              const std::string& dtype,
              const Data& data,
              int64_t queries,
              PeerProcess& peer) {
  check_peer(options, data, queries, peer);
  const at::Tensor some = data.queries.narrow(0, 0, queries);
  const Medians seconds = time_by_turns(
      options.repeats,
      [&] { knn::search(some, data.keys, options.k); },
      [&] { peer.ask(fmt::format("search {}", queries)); });
  return with_rates({.name = "knn_faiss",
                     .shape = shape_text(options, queries, options.k),
                     .dtype = dtype,
                     .device = device_name(at::kCPU),
                     .peer = "faiss_flat",
                     .unit = "queries/s"},
                    static_cast<double>(queries),
                    seconds);
}

Row memory_row(const KnnBench& options, const std::string& dtype, const Data& data) {
  constexpr int64_t kQueries = 512, kBest = 32;
  const at::Tensor queries = data.queries.narrow(0, 0, kQueries);
  const PeakGrowth growth(at::kCPU);
  knn::search(queries, data.keys, kBest);
  const double grown = std::max(growth.bytes() / (1 << 20), 0.01);
  const double all = static_cast<double>(kQueries * options.num_keys) * 4 / (1 << 20);
  return {.name = "knn_memory",
          .shape = shape_text(options, kQueries, kBest),
          .dtype = dtype,
          .device = device_name(at::kCPU),
          .ours = grown,
          .peer = "all_scores",
          .peer_value = all,
          .unit = "MB",
          .ratio = all / grown};
}

}  // namespace

void check_search_sizes(int64_t num_keys, int64_t k) {
  tensor::check_value(num_keys >= 1000, "bench knn", "--keys", num_keys, ">= 1000");
  tensor::check_value(k >= 1 && k <= 300, "bench knn", "--k", k, "1 ... 300");
}

Rows bench_knn(const KnnBench& options) {
  const auto wanted = [&](const char* name) { return is_named(options.names, name); };
  check_search_sizes(options.num_keys, options.k);
  const int64_t most =
      std::max<int64_t>(512, *std::max_element(options.queries.begin(), options.queries.end()));
  Rows rows;
  for (const std::string& dtype : options.dtypes) {
    const Data data = make_data(options, most, scalar_type(dtype));
    // The peak of memory comes first: later rows leave freed memory that could be used again.
    if (wanted("knn_memory")) rows.push_back(memory_row(options, dtype, data));
    if (wanted("knn_bandwidth")) rows.push_back(bandwidth_row(options, dtype, data));
    if (!wanted("knn_faiss") && !wanted("knn_coded")) continue;
    PeerProcess peer("knn_faiss_peer.py",
                     {std::to_string(options.num_keys),
                      std::to_string(options.head_dim),
                      std::to_string(options.k),
                      std::to_string(most),
                      dtype});
    if (wanted("knn_coded")) rows.push_back(coded_row(options, dtype, data, peer));
    if (!wanted("knn_faiss")) continue;
    for (const int64_t queries : options.queries) {
      rows.push_back(faiss_row(options, dtype, data, queries, peer));
    }
  }
  return rows;
}

}  // namespace reynard::bench

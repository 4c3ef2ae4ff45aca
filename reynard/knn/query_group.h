#pragma once
// Queries packed for the kernels of a scan, and how far their approximate scores may be off.

#include "reynard/knn/best_keys.h"
#include "reynard/knn/cpu/scan_kernels.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace reynard::knn {

// 64 bytes at a multiple of 64: scratch that vector loads and tiles like.
struct alignas(64) Line {
  std::byte bytes[64];
};
using Scratch = std::vector<Line>;
inline size_t lines_of(int64_t bytes) {
  return static_cast<size_t>((bytes + 63) / 64);
}

struct Query {
  BestKeys best;
  double norm = 0;      // sum_d |q_d|
  double rounding = 0;  // sum_d |q_d - packed q_d|
};

// How far the score that a kernel gives may be from that of the definition, for keys with
// |k_d| <= largest, rounding of the bounds themselves included; infinite where f32 might overflow.
float error_bound(const Query& query,
                  double largest,
                  const cpu::ScanKernels& kernels,
                  int64_t depth);

// A query as int8 codes, and what the products with coded keys say about scores.
struct CodedQuery {
  Scratch codes;  // (depth)
  int64_t depth = 0;
  int32_t sum = 0;
  cpu::CodeBound coarse = {}, fine = {};  // without and with the lower halves of the keys' codes

  cpu::CodeQuery view() const {
    return {reinterpret_cast<const int8_t*>(codes.data()), depth, sum};
  }
};
CodedQuery encode_query(const float* query, int64_t head_dim, int64_t depth);

// One query, or up to kQueryLanes of them, which share each load of a key.
class QueryGroup {
 public:
  // queries: (depth) each, zero-padded.
  QueryGroup(std::vector<Query> queries,
             std::vector<float> values,
             const cpu::ScanKernels& kernels,
             int64_t depth);

  bool single() const { return queries_.size() == 1; }
  int64_t lanes() const { return single() ? 1 : cpu::kQueryLanes; }
  std::vector<Query>& queries() { return queries_; }
  const void* packed() const { return packed_.data(); }

 private:
  std::vector<Query> queries_;
  Scratch packed_;
};

}  // namespace reynard::knn

#pragma once
// One call of decode as its stages see it: pointers and sizes of the arguments, wherever the
// sequences come from, and what is formed of them once (queries in f32, sums of their gates).

#include "reynard/attention/cache.h"
#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/cpu/scratch.h"
#include "reynard/attention/page_kernels.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace reynard::attention::cpu {

constexpr int64_t kRunPages = 32;  // 2048 keys: enough work for a thread, enough runs at 16k keys

struct DecodeCall {
  const DecodeArguments& a;
  int64_t S, H, D;
  const std::vector<HostSequence> of_tensors;
  const std::vector<HostSequence>& sequences;
  int64_t G, group;
  at::Tensor wide_q;               // (S, H, D) f32
  std::vector<double> query_sums;  // (S, H)
  const double *sums, *masses;
  const float *norms, *logit_bound;
  const KernelTable& kernels;

  DecodeCall(const DecodeCall&) = delete;
  DecodeCall& operator=(const DecodeCall&) = delete;
  explicit DecodeCall(const DecodeArguments& arguments);

  template <class Value>
  static const Value* data(const at::Tensor& t) {
    return t.defined() ? t.const_data_ptr<Value>() : nullptr;
  }
  int64_t length(int64_t s) const { return sequences[s].length; }
  const int32_t* pages(int64_t s, int64_t g) const { return sequences[s].pages[g]; }
  const double* page_sums(int32_t page, int64_t h) const {
    return sums + (page * group + h % group) * kPageTokens;
  }
  double query_sum(int64_t s, int64_t h) const { return query_sums[s * H + h]; }
  const float* query(int64_t s, int64_t h) const {
    return wide_q.const_data_ptr<float>() + (s * H + h) * D;
  }
  int64_t first_key(int64_t s) const { return std::max<int64_t>(sequences[s].first_key, 0); }
  int64_t num_pages(int64_t s) const { return pages_for(length(s)); }
  // Of the kernel, for one worker.
  int64_t scratch_bytes() const { return Scratch::padded(kernels.decode_scratch_bytes(D, group)); }
  int64_t range_bytes() const { return group * static_cast<int64_t>(sizeof(KeyRange)); }
  bool pruned() const { return a.options.log_pruning_tolerance < 0 && sums != nullptr; }

  // Pages [begin, end) of (s, g); the caller sets ranges, and values where they are wanted.
  PageRun run(int64_t s, int64_t g, int64_t begin, int64_t end) const;
};

}  // namespace reynard::attention::cpu

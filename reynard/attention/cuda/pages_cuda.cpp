// The GPU's entries of page_kernels.h.

#include "reynard/attention/cache.h"
#include "reynard/attention/cuda/attention_cuda.h"
#include "reynard/attention/cuda/decode.h"
#include "reynard/attention/cuda/path.h"
#include "reynard/attention/operand_of.h"
#include "reynard/tensor/check.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <limits>

namespace reynard::attention::cuda {

static_assert(kPageKeys == kPageTokens);

namespace {

template <class Value>
const Value* pointer(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr<Value>() : nullptr;
}

// Kernels read 16 bytes at once; a contiguous view may begin anywhere.
at::Tensor aligned(const at::Tensor& t) {
  const bool is_aligned = !t.defined() || reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
  return is_aligned ? t : t.clone();
}

}  // namespace

DecodeOutput decode_pages(const DecodeArguments& a) {
  const c10::cuda::CUDAGuard device(a.q.device());
  constexpr int64_t kMostPairs = 65535;  // blocks of a grid in its second dimension
  tensor::check_value(a.q.size(0) * a.page_table.size(1) <= kMostPairs,
                      "attention_decode",
                      "sequences times key/value heads",
                      a.q.size(0) * a.page_table.size(1),
                      "at most 65535 in one call on a GPU");
  const at::Tensor q = aligned(a.q), keys = aligned(a.keys), values = aligned(a.values);
  const at::Tensor sums = aligned(a.sums);
  DecodeOutput result;
  result.out = at::empty(a.q.sizes(), a.q.options());
  result.lse = at::empty({a.q.size(0), a.q.size(1)}, a.q.options().dtype(at::kFloat));
  result.start = at::empty({a.q.size(0), a.q.size(1)}, a.q.options().dtype(at::kInt));
  if (a.q.numel() == 0) return result;
  if (a.page_table.size(2) == 0) {  // nothing to see, and no grid of 0 blocks
    result.out.zero_();
    result.lse.fill_(-std::numeric_limits<float>::infinity());
    result.start.zero_();
    return result;
  }
  DecodeTask task;
  task.S = static_cast<int>(a.q.size(0)), task.H = static_cast<int>(a.q.size(1));
  task.D = static_cast<int>(a.q.size(2));
  task.G = static_cast<int>(a.page_table.size(1)), task.N = static_cast<int>(a.page_table.size(2));
  task.element = element_of(q);
  task.q = q.const_data_ptr();
  task.keys = keys.const_data_ptr(), task.values = values.const_data_ptr();
  task.sums = pointer<double>(sums);
  task.page_table = pointer<int32_t>(a.page_table);
  task.lengths = pointer<int64_t>(a.lengths);
  task.first_key = pointer<int32_t>(a.first_key);
  task.scale = static_cast<float>(a.options.scale);
  task.log_tolerance = a.options.log_pruning_tolerance;
  task.tight = a.options.rule == PruningRule::kTight;
  task.norms = pointer<float>(a.norms), task.masses = pointer<double>(a.masses);
  task.logit_bound = pointer<float>(a.logit_bound);
  task.evicted_masses = pointer<double>(a.evicted_masses);
  task.evicted_norms = pointer<float>(a.evicted_norms);
  plan_runs(task, num_processors());
  task.out = result.out.mutable_data_ptr();
  task.lse = result.lse.mutable_data_ptr<float>();
  task.start = result.start.mutable_data_ptr<int32_t>();
  const at::Tensor scratch =
      at::empty({decode_scratch_bytes(task)}, a.q.options().dtype(at::kByte));
  decode(task, scratch.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream());
  return result;
}

void write_pages(const PageWrite& w) {
  const c10::cuda::CUDAGuard device(w.k.device());
  PageWriteTask task;
  task.S = static_cast<int>(w.num_sequences()), task.T = static_cast<int>(w.num_tokens());
  task.G = static_cast<int>(w.k.size(1)), task.D = static_cast<int>(w.k.size(2));
  task.H = task.G * static_cast<int>(w.sums.size(1));
  task.N = static_cast<int>(w.page_table.size(2));
  task.element = element_of(w.k);
  task.row_bytes = task.D * static_cast<int>(w.k.element_size());
  task.keys = w.keys.mutable_data_ptr(), task.values = w.values.mutable_data_ptr();
  task.sums = w.sums.mutable_data_ptr<double>(), task.masses = w.masses.mutable_data_ptr<double>();
  task.norms = w.norms.mutable_data_ptr<float>();
  task.page_table = w.page_table.const_data_ptr<int32_t>();
  task.lengths = w.lengths.const_data_ptr<int64_t>();
  task.k = w.k.const_data_ptr(), task.v = w.v.const_data_ptr();
  task.log_gate = pointer<float>(w.log_gate);
  task.given_sums = pointer<double>(w.token_sums);
  at::Tensor scratch;
  if (!task.given_sums && task.T > 1) {
    scratch = at::empty({task.S, task.H, task.T}, w.sums.options());
    task.token_sums = scratch.mutable_data_ptr<double>();
  }
  write_pages(task, c10::cuda::getCurrentCUDAStream());
}

PageRows read_pages(const at::Tensor& keys,
                    const at::Tensor& values,
                    const at::Tensor& ids,
                    int64_t /*head_dim*/) {
  return {keys.index_select(0, ids), values.index_select(0, ids)};
}

}  // namespace reynard::attention::cuda

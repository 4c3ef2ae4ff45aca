#include "reynard/attention/cpu/attention_cpu.h"

#include "reynard/attention/bias.h"

#include <ATen/Parallel.h>

#include <ATen/ops/empty.h>

#include <algorithm>

namespace reynard::attention::cpu {

namespace {

// Running sums along T, one (batch, head) row per step of the parallel loop.
template <class Scalar>
void running_sums(const at::Tensor& log_gate, at::Tensor& sums) {
  const int64_t B = log_gate.size(0), T = log_gate.size(1), H = log_gate.size(2);
  const Scalar* gates = log_gate.const_data_ptr<Scalar>();
  double* c = sums.mutable_data_ptr<double>();
  at::parallel_for(0, B * H, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const Scalar* in = gates + (row / H) * T * H + row % H;
      double sum = 0;
      for (int64_t t = 0; t < T; ++t) {
        sum += std::max(static_cast<double>(in[t * H]), kSmallestLogGate);
        c[row * T + t] = sum;
      }
    }
  });
}

template <class Scalar>
void reverse_sums(const at::Tensor& dsums,
                  const at::Tensor& log_gate,
                  const at::Tensor& first_key,
                  at::Tensor& dgate) {
  const int64_t B = log_gate.size(0), T = log_gate.size(1), H = log_gate.size(2);
  const Scalar* gates = log_gate.const_data_ptr<Scalar>();
  const double* dc = dsums.const_data_ptr<double>();
  Scalar* out = dgate.mutable_data_ptr<Scalar>();
  const int64_t Tq = first_key.defined() ? first_key.size(1) : 0;
  const int32_t* first = first_key.defined() ? first_key.const_data_ptr<int32_t>() : nullptr;
  at::parallel_for(0, B * H, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t b = row / H;
      double sum = 0;
      for (int64_t t = T - 1; t >= 0; --t) {
        const int64_t index = (b * T + t) * H + row % H;
        const int64_t query = t - (T - Tq);
        sum += dc[row * T + t];
        if (query >= 0 && first[b * Tq + query] >= t) {
          out[index] = 0;
          sum = 0;
        } else {
          const bool clamped = static_cast<double>(gates[index]) < kSmallestLogGate;
          out[index] = clamped ? Scalar(0) : static_cast<Scalar>(sum);
        }
      }
    }
  });
}

}  // namespace

at::Tensor gate_sums(const at::Tensor& log_gate) {
  at::Tensor sums = at::empty({log_gate.size(0), log_gate.size(2), log_gate.size(1)},
                              log_gate.options().dtype(at::kDouble));
  if (log_gate.scalar_type() == at::kDouble) {
    running_sums<double>(log_gate, sums);
  } else {
    running_sums<float>(log_gate, sums);
  }
  return sums;
}

at::Tensor gate_sums_backward(const at::Tensor& dsums,
                              const at::Tensor& log_gate,
                              const at::Tensor& first_key) {
  at::Tensor dgate = at::empty(log_gate.sizes(), log_gate.options());
  if (log_gate.scalar_type() == at::kDouble) {
    reverse_sums<double>(dsums, log_gate, first_key, dgate);
  } else {
    reverse_sums<float>(dsums, log_gate, first_key, dgate);
  }
  return dgate;
}

}  // namespace reynard::attention::cpu

#pragma once
// The running sums of the log gates in f64 and their gradient, a true reverse running sum (no
// subtraction of prefix sums). A fixed order of sums, that of a prefix whatever follows it.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reynard::attention::cuda {

struct GateScan {
  const void* log_gate = nullptr;  // (B, T, H)
  bool is_double = false;          // f64 gates; else f32
  int B = 0, T = 0, H = 0;
};

// Pieces of a row of T positions that are summed by themselves.
int gate_chunks(int T);

//   sums (B, H, T); totals (B, H, gate_chunks(T)) is scratch
void gate_sums(const GateScan& scan, double* totals, double* sums, cudaStream_t stream);

struct GateGradient {
  GateScan scan;
  const double* dsums = nullptr;       // (B, H, T)
  const int32_t* first_key = nullptr;  // (B, Tq) of the last Tq positions, or null
  int Tq = 0;
  void* dgate = nullptr;  // (B, T, H) of the dtype of the gates
};
int64_t gate_gradient_scratch_bytes(const GateScan& scan);
void gate_sums_backward(const GateGradient& gradient, void* scratch, cudaStream_t stream);

}  // namespace reynard::attention::cuda

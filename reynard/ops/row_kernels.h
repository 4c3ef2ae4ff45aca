#pragma once
// Row-wise loops of the operators in ops/: compiled once per instruction set of the CPU, and once
// for the GPU. Each function works on rows [begin, end), so that callers may split rows between
// threads; no result depends on the split. Plain data only: files that include this are compiled
// for one ISA. Elements are f32 or bf16 (its bits as uint16_t), arithmetic is f32.

#include <cstdint>

namespace reynard::ops {

// Rows whose sums of the weight's gradient are formed together, on every device.
inline constexpr int64_t kBlockRows = 32;

// y = x / sqrt(mean(x^2) + eps) * weight [* sigmoid(gate)] per group; x' = residual + x first when
// there is a residual.
struct NormForward {
  const void* x = nullptr;          // (N, groups * width) element
  const float* residual = nullptr;  // (N, groups * width) or null
  const void* gate = nullptr;       // (N, groups * width) element or null
  const float* weight = nullptr;    // (groups * width), or (width) when shared
  bool shared_weight = false;
  int64_t groups = 1;
  int64_t width = 0;
  double eps = 0;
  void* y = nullptr;             // (N, groups * width) element
  float* sum = nullptr;          // (N, groups * width): residual + x, with a residual
  float* inverse_rms = nullptr;  // (N, groups); CPU: or null
};

// Gradients of NormForward. With a residual, x is the f32 `sum` of the forward pass and d_sum is
// its own gradient.
struct NormBackward {
  const void* dy = nullptr;      // (N, groups * width) element
  const void* x = nullptr;       // element; null with a residual
  const float* sum = nullptr;    // f32, with a residual
  const float* d_sum = nullptr;  // f32 or null
  const void* gate = nullptr;    // element or null
  const float* weight = nullptr;
  bool shared_weight = false;
  int64_t groups = 1;
  int64_t width = 0;
  const float* inverse_rms = nullptr;
  void* dx = nullptr;           // element
  float* d_residual = nullptr;  // f32, with a residual
  void* d_gate = nullptr;       // element, with a gate
  // CPU: (groups * width), added to; GPU: a row of that for each block of kBlockRows, written.
  float* d_weight = nullptr;
};

// y_t = a_t x_{t-1} + (1 - a_t) x_t, a = sigmoid(logit), per head.
struct ShiftForward {
  const void* x = nullptr;            // (N, G, D) element
  const void* logit = nullptr;        // (N, G) element
  const int64_t* sequence = nullptr;  // CPU: (N), index of the sequence that starts here, or -1
  const int64_t* starts = nullptr;    // GPU: (num_starts), first tokens of the sequences
  int64_t num_starts = 0;
  const void* previous = nullptr;  // (S, G, D) element or null: zero
  int64_t heads = 0, width = 0;
  void* y = nullptr;  // (N, G, D) element
};

struct ShiftBackward {
  ShiftForward forward;
  int64_t num_tokens = 0;
  const void* dy = nullptr;  // (N, G, D) element
  void* dx = nullptr;        // (N, G, D) element
  void* d_logit = nullptr;   // (N, G) element
};

// out = act(gate) * x; row strides in elements.
struct GateRows {
  const void* x = nullptr;
  const void* gate = nullptr;
  int64_t x_stride = 0, gate_stride = 0;
  int64_t width = 0;
  bool silu = false;            // else sigmoid
  void* out = nullptr;          // (N, width); forward, and on the CPU backward or null
  const void* d_out = nullptr;  // (N, width); backward
  void* dx = nullptr;           // strides as x
  void* d_gate = nullptr;       // strides as gate
};

// Rotation of the pairs (j, j + D/2) by the angle of the token's position.
struct RotaryRows {
  const void* x = nullptr;             // (N, H, D) element
  const int64_t* positions = nullptr;  // (N); GPU: null, row n of the tables is token n's
  const float* cosine = nullptr;       // (positions, D/2)
  const float* sine = nullptr;
  bool inverse = false;
  int64_t heads = 0, width = 0;
  void* y = nullptr;  // (N, H, D) element
};

// Loss of each row of logits, and, in their place, its gradient (softmax - one-hot) * weight.
struct SoftmaxLossRows {
  void* logits = nullptr;            // (N, V) element; gradient on return if `gradient`
  const int64_t* targets = nullptr;  // (N)
  const float* weights = nullptr;    // (N)
  int64_t vocabulary = 0;
  int64_t stride = 0;  // elements from row to row
  bool gradient = false;
  float* loss = nullptr;  // (N): lse - logit[target], not weighted
};

// One AdamW step of a tensor: m = exp_avg, v = exp_avg_sq, g = gradient * scale,
// value = kept * value - rate * m / (sqrt(v) * root_scale + epsilon).
struct AdamWTensor {
  float *value = nullptr, *exp_avg = nullptr, *exp_avg_sq = nullptr;
  void* compute = nullptr;  // element, or null: the rounded new value
  const float* gradient = nullptr;
  int64_t first = 0, size = 0;  // elements before those of this tensor, and its own
  float kept = 1;               // 1 - learning rate * weight decay
  float beta1 = 0, beta2 = 0;
  float rate = 0;        // learning rate / (1 - beta1^t)
  float root_scale = 1;  // 1 / sqrt(1 - beta2^t)
  float epsilon = 0;
};

// The tensors of a step; their elements are counted through.
struct AdamWTask {
  const AdamWTensor* tensors = nullptr;  // in host memory
  int64_t num_tensors = 0;
  const float* gradient_scale = nullptr;  // one number; not finite: nothing changes
};

// The sum of each column of partial (rows, width) in f64, row by row in a fixed order.
struct ColumnSums {
  const float* partial = nullptr;
  int64_t rows = 0, width = 0;
  float* sums = nullptr;  // (width)
};

// Products of one input with several weights: y = x W^T.
struct FewRowsTask {
  static constexpr int kMostWeights = 8;  // of one launch
  struct Weight {
    const void* values = nullptr;  // (rows, width) aligned to 16 bytes: f32, or bf16 where x is
    bool is_f32 = false;
    bool y_is_f32 = false;  // else bf16; always where the values are
    int rows = 0;
    void* y = nullptr;  // (tokens, rows)
  };
  const void* x = nullptr;    // (tokens, width) aligned to 16 bytes
  int tokens = 0, width = 0;  // width: a multiple of 8
  Weight weights[kMostWeights];
  int num_weights = 0;
};

// log sigmoid(logit + bias).
struct LogGateRows {
  const float* logits = nullptr;  // (N, H)
  const float* bias = nullptr;    // (H)
  int64_t heads = 0;
  float* y = nullptr;  // (N, H)
};

struct RowKernels {
  void (*norm_forward)(const NormForward&, int64_t begin, int64_t end);
  void (*norm_backward)(const NormBackward&, int64_t begin, int64_t end);
  void (*shift_forward)(const ShiftForward&, int64_t begin, int64_t end);
  void (*shift_backward)(const ShiftBackward&, int64_t begin, int64_t end);
  void (*gate_forward)(const GateRows&, int64_t begin, int64_t end);
  void (*gate_backward)(const GateRows&, int64_t begin, int64_t end);
  void (*rotary)(const RotaryRows&, int64_t begin, int64_t end);
  void (*softmax_loss)(const SoftmaxLossRows&, int64_t begin, int64_t end);
  void (*adamw)(const AdamWTask&, int64_t begin, int64_t end);  // elements, not rows
  // GPU only; columns, tokens, rows.
  void (*column_sums)(const ColumnSums&, int64_t begin, int64_t end) = nullptr;
  void (*few_row_products)(const FewRowsTask&, int64_t begin, int64_t end) = nullptr;
  void (*log_gate)(const LogGateRows&, int64_t begin, int64_t end) = nullptr;
};

enum class Element { kF32, kBF16 };

// The tables of one instruction set of the CPU.
namespace cpu {
const RowKernels& row_kernels_avx512_bf16(Element element);
const RowKernels& row_kernels_avx512(Element element);
const RowKernels& row_kernels_avx2(Element element);
const RowKernels& row_kernels_portable(Element element);
}  // namespace cpu

}  // namespace reynard::ops

// The loops behind row_kernels.h, written once; row_kernels_<name>.cpp includes this with its
// compile options and REYNARD_ROW_KERNELS set. Nothing here may call into a library: an
// inline function compiled for one ISA could be the copy that the linker keeps.

#include "reynard/ops/row_kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace reynard::ops::cpu {

namespace {

#include "reynard/ops/cpu/row_vector.inl"

// Root-mean-square norms.

// Groups whose means are formed before any of them is used: a mean is a long chain of operations,
// and those of several groups overlap.
constexpr int64_t kGroupsTogether = 8;

// 1 / rms of groups [begin, end), and x + residual.
template <class T>
REYNARD_INLINE void inverse_norms(const NormForward& p,
                                  int64_t begin,
                                  int64_t end,
                                  float* inverse) {
  for (int64_t index = begin; index < end; ++index) {
    const int64_t offset = index * p.width;
    const T* x = static_cast<const T*>(p.x) + offset;
    Vector squares = {};
    for_vectors(p.width, REYNARD_VECTOR_BODY {
      Vector v = load(x + i, count);
      if (p.residual) {
        v += load(p.residual + offset + i, count);
        store(p.sum + offset + i, v, count);
      }
      squares += v * v;
    });
    // In f64: the backward pass cancels two terms that both carry this rounding.
    const double mean = static_cast<double>(sum_of(squares)) / static_cast<double>(p.width);
    inverse[index - begin] = static_cast<float>(1.0 / __builtin_sqrt(mean + p.eps));
  }
}

template <class T>
REYNARD_INLINE void normed_groups(const NormForward& p,
                                  int64_t begin,
                                  int64_t end,
                                  const float* inverses) {
  for (int64_t index = begin; index < end; ++index) {
    const int64_t offset = index * p.width;
    const T* x = static_cast<const T*>(p.x) + offset;
    const float* weight = p.weight + (p.shared_weight ? 0 : index % p.groups * p.width);
    const float inverse = inverses[index - begin];
    T* y = static_cast<T*>(p.y) + offset;
    for_vectors(p.width, REYNARD_VECTOR_BODY {
      const Vector v = p.residual ? load(p.sum + offset + i, count) : load(x + i, count);
      Vector out = v * inverse * load(weight + i, count);
      if (p.gate) out *= sigmoid_of(load(static_cast<const T*>(p.gate) + offset + i, count));
      store(y + i, out, count);
    });
  }
}

template <class T>
void norm_forward(const NormForward& p, int64_t begin, int64_t end) {
  const int64_t last = end * p.groups;
  for (int64_t index = begin * p.groups; index < last; index += kGroupsTogether) {
    const int64_t next = index + kGroupsTogether < last ? index + kGroupsTogether : last;
    float inverse[kGroupsTogether];
    inverse_norms<T>(p, index, next, inverse);
    normed_groups<T>(p, index, next, inverse);
    if (!p.inverse_rms) continue;
    for (int64_t i = index; i < next; ++i) p.inverse_rms[i] = inverse[i - index];
  }
}

// With n = x * inverse: dx = inverse * (g - n * mean(g * n)), g = dy * weight [* sigmoid(gate)].
// First the means of groups [begin, end), the gate's gradients and what is added to the weight's.
// open_gates: null, or where sigmoid(gate) is kept for input_gradients.
template <class T, class X>
REYNARD_INLINE void gradient_means(const NormBackward& p,
                                   const X* values,
                                   int64_t begin,
                                   int64_t end,
                                   float* means,
                                   float* open_gates) {
  for (int64_t index = begin; index < end; ++index) {
    const int64_t group = index % p.groups;
    const int64_t offset = index * p.width;
    const float* weight = p.weight + (p.shared_weight ? 0 : group * p.width);
    float* d_weight = p.d_weight + group * p.width;
    const T* dy = static_cast<const T*>(p.dy) + offset;
    const T* gate = p.gate ? static_cast<const T*>(p.gate) + offset : nullptr;
    const X* x = values + offset;
    const float inverse = p.inverse_rms[index];
    Vector products = {};
    for_vectors(p.width, REYNARD_VECTOR_BODY {
      const Vector n = load(x + i, count) * inverse;
      const Vector w = load(weight + i, count);
      Vector g = load(dy + i, count);
      if (gate) {
        const Vector open = sigmoid_of(load(gate + i, count));
        T* d_gate = static_cast<T*>(p.d_gate) + offset + i;
        store(d_gate, g * n * w * open * (1.0F - open), count);
        if (open_gates) store(open_gates + (index - begin) * p.width + i, open, count);
        g *= open;
      }
      store(d_weight + i, load(d_weight + i, count) + g * n, count);
      products += g * w * n;
    });
    means[index - begin] =
        static_cast<float>(static_cast<double>(sum_of(products)) / static_cast<double>(p.width));
  }
}

template <class T, class X>
REYNARD_INLINE void input_gradients(const NormBackward& p,
                                    const X* values,
                                    int64_t begin,
                                    int64_t end,
                                    const float* means,
                                    const float* open_gates) {
  for (int64_t index = begin; index < end; ++index) {
    const int64_t offset = index * p.width;
    const float* weight = p.weight + (p.shared_weight ? 0 : index % p.groups * p.width);
    const T* dy = static_cast<const T*>(p.dy) + offset;
    const T* gate = p.gate ? static_cast<const T*>(p.gate) + offset : nullptr;
    const X* x = values + offset;
    const float inverse = p.inverse_rms[index], mean = means[index - begin];
    for_vectors(p.width, REYNARD_VECTOR_BODY {
      const Vector n = load(x + i, count) * inverse;
      Vector g = load(dy + i, count) * load(weight + i, count);
      if (gate) {
        g *= open_gates ? load(open_gates + (index - begin) * p.width + i, count)
                        : sigmoid_of(load(gate + i, count));
      }
      Vector dx = (g - n * mean) * inverse;
      if (p.d_sum) dx += load(p.d_sum + offset + i, count);
      store(static_cast<T*>(p.dx) + offset + i, dx, count);
      if (p.d_residual) store(p.d_residual + offset + i, dx, count);
    });
  }
}

// Groups of more values form their gates twice.
constexpr int64_t kKeptGates = kGroupsTogether * 128;

template <class T, class X>
void norm_backward_rows(const NormBackward& p, const X* values, int64_t begin, int64_t end) {
  float means[kGroupsTogether], kept[kKeptGates];
  const bool keeps = p.gate && p.width <= kKeptGates / kGroupsTogether;
  float* const open_gates = keeps ? kept : nullptr;
  const int64_t last = end * p.groups;
  for (int64_t index = begin * p.groups; index < last; index += kGroupsTogether) {
    const int64_t next = index + kGroupsTogether < last ? index + kGroupsTogether : last;
    gradient_means<T>(p, values, index, next, means, open_gates);
    input_gradients<T>(p, values, index, next, means, open_gates);
  }
}

template <class T>
void norm_backward(const NormBackward& p, int64_t begin, int64_t end) {
  if (p.sum) {
    norm_backward_rows<T, float>(p, p.sum, begin, end);
  } else {
    norm_backward_rows<T, T>(p, static_cast<const T*>(p.x), begin, end);
  }
}

// Token shift.

inline float scalar(const float* p) {
  return *p;
}
inline float scalar(const BF16* p) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(*p) << 16);
}

// sigmoid(logit) of one index after the other: a vector of them at a time.
template <class T>
class ShiftWeights {
 public:
  ShiftWeights(const ShiftForward& p, int64_t end)
      : logits_(static_cast<const T*>(p.logit)), end_(end) {}

  // index: at least that of the call before, below `end`
  float at(int64_t index) {
    if (index >= next_) {
      store(lanes_, sigmoid_of(load(logits_ + index, end_ - index)));
      next_ = index + kLanes;
    }
    return lanes_[kLanes - (next_ - index)];
  }

 private:
  const T* logits_;
  int64_t end_, next_ = 0;
  float lanes_[kLanes];
};

// The row before token t of head h in its sequence; null: zero.
template <class T>
const T* row_before(const ShiftForward& p, int64_t t, int64_t head) {
  const int64_t token_width = p.heads * p.width;
  const int64_t sequence = p.sequence[t];
  if (sequence < 0) return static_cast<const T*>(p.x) + (t - 1) * token_width + head * p.width;
  if (!p.previous) return nullptr;
  return static_cast<const T*>(p.previous) + sequence * token_width + head * p.width;
}

template <class T>
void shift_forward(const ShiftForward& p, int64_t begin, int64_t end) {
  ShiftWeights<T> weights(p, end * p.heads);
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t head = 0; head < p.heads; ++head) {
      const int64_t offset = (t * p.heads + head) * p.width;
      const float a = weights.at(t * p.heads + head);
      const T* x = static_cast<const T*>(p.x) + offset;
      const T* before = row_before<T>(p, t, head);
      for_vectors(p.width, REYNARD_VECTOR_BODY {
        Vector y = (1.0F - a) * load(x + i, count);
        if (before) y += a * load(before + i, count);
        store(static_cast<T*>(p.y) + offset + i, y, count);
      });
    }
  }
}

// dx_t = (1 - a_t) dy_t + a_{t+1} dy_{t+1} where t + 1 goes on with the sequence.
template <class T>
void shift_backward(const ShiftBackward& p, int64_t begin, int64_t end) {
  const ShiftForward& f = p.forward;
  ShiftWeights<T> weights(f, end * f.heads), next_weights(f, p.num_tokens * f.heads);
  for (int64_t t = begin; t < end; ++t) {
    const bool goes_on = t + 1 < p.num_tokens && f.sequence[t + 1] < 0;
    for (int64_t head = 0; head < f.heads; ++head) {
      const int64_t index = t * f.heads + head;
      const int64_t offset = index * f.width;
      const float a = weights.at(index);
      const float a_next = goes_on ? next_weights.at(index + f.heads) : 0.0F;
      const T* dy = static_cast<const T*>(p.dy) + offset;
      const T* dy_next = dy + f.heads * f.width;
      const T* x = static_cast<const T*>(f.x) + offset;
      const T* before = row_before<T>(f, t, head);
      Vector products = {};
      for_vectors(f.width, REYNARD_VECTOR_BODY {
        const Vector g = load(dy + i, count);
        Vector step = -load(x + i, count);
        if (before) step += load(before + i, count);
        products += g * step;
        Vector dx = (1.0F - a) * g;
        if (goes_on) dx += a_next * load(dy_next + i, count);
        store(static_cast<T*>(p.dx) + offset + i, dx, count);
      });
      const float d_logit = sum_of(products) * a * (1.0F - a);
      store(static_cast<T*>(p.d_logit) + index, broadcast(d_logit), 1);
    }
  }
}

// Gates.

template <class T>
void gate_forward(const GateRows& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
    const T* gate = static_cast<const T*>(p.gate) + row * p.gate_stride;
    T* out = static_cast<T*>(p.out) + row * p.width;
    for_vectors(p.width, REYNARD_VECTOR_BODY {
      const Vector g = load(gate + i, count);
      const Vector open = sigmoid_of(g);
      store(out + i, (p.silu ? g * open : open) * load(x + i, count), count);
    });
  }
}

template <class T>
void gate_backward(const GateRows& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
    const T* gate = static_cast<const T*>(p.gate) + row * p.gate_stride;
    const T* d_out = static_cast<const T*>(p.d_out) + row * p.width;
    T* dx = static_cast<T*>(p.dx) + row * p.x_stride;
    T* d_gate = static_cast<T*>(p.d_gate) + row * p.gate_stride;
    T* out = p.out ? static_cast<T*>(p.out) + row * p.width : nullptr;
    for_vectors(p.width, REYNARD_VECTOR_BODY {
      const Vector g = load(gate + i, count);
      const Vector d = load(d_out + i, count);
      const Vector open = sigmoid_of(g);
      const Vector slope = open * (1.0F - open);
      const Vector value = load(x + i, count), act = p.silu ? g * open : open;
      if (out) store(out + i, act * value, count);
      store(dx + i, d * act, count);
      store(d_gate + i, d * value * (p.silu ? open + g * slope : slope), count);
    });
  }
}

// Rotary.

template <class T>
void rotary(const RotaryRows& p, int64_t begin, int64_t end) {
  const int64_t half = p.width / 2;
  const float sign = p.inverse ? -1.0F : 1.0F;
  for (int64_t t = begin; t < end; ++t) {
    const float* cosine = p.cosine + p.positions[t] * half;
    const float* sine = p.sine + p.positions[t] * half;
    for (int64_t head = 0; head < p.heads; ++head) {
      const int64_t offset = (t * p.heads + head) * p.width;
      const T* x = static_cast<const T*>(p.x) + offset;
      T* y = static_cast<T*>(p.y) + offset;
      for_vectors(half, REYNARD_VECTOR_BODY {
        const Vector c = load(cosine + i, count), s = sign * load(sine + i, count);
        const Vector a = load(x + i, count), b = load(x + half + i, count);
        store(y + i, a * c - b * s, count);
        store(y + half + i, b * c + a * s, count);
      });
    }
  }
}

// Cross entropy.

template <class T>
void softmax_loss(const SoftmaxLossRows& p, int64_t begin, int64_t end) {
  const int64_t whole = p.vocabulary / kLanes * kLanes;
  const int64_t rest = p.vocabulary - whole;
  for (int64_t row = begin; row < end; ++row) {
    T* x = static_cast<T*>(p.logits) + row * p.stride;
    Vector largest = broadcast(scalar(x));
    for (int64_t i = 0; i < whole; i += kLanes) {
      const Vector v = load(x + i);
      largest = v > largest ? v : largest;
    }
    float peak = max_of(largest);
    for (int64_t i = whole; i < p.vocabulary; ++i)
      peak = scalar(x + i) > peak ? scalar(x + i) : peak;
    Vector sums = {};
    for (int64_t i = 0; i < whole; i += kLanes) sums += exp_of(load(x + i) - peak);
    float total = sum_of(sums);
    if (rest > 0) {
      const Vector last = exp_of(load(x + whole, rest) - peak);
      for (int64_t i = 0; i < rest; ++i) total += last[i];
    }
    const int64_t target = p.targets[row];
    const float log_total = __builtin_logf(total);
    p.loss[row] = log_total - (scalar(x + target) - peak);
    if (!p.gradient) continue;
    const float weight = p.weights[row];
    const float target_gradient =
        weight * (exp_of(broadcast(scalar(x + target) - peak))[0] / total - 1.0F);
    const float scale = weight / total;
    for_vectors(p.vocabulary, REYNARD_VECTOR_BODY {
      store(x + i, exp_of(load(x + i, count) - peak) * scale, count);
    });
    store(x + target, broadcast(target_gradient), 1);
  }
}

// AdamW.

REYNARD_INLINE Vector square_root(Vector v) {
  for (int64_t i = 0; i < kLanes; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
}

template <class T>
void adamw(const AdamWTensor& p, float scale, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t count = end - i;
    const Vector g = load(p.gradient + i, count) * scale;
    Vector m = load(p.exp_avg + i, count), s = load(p.exp_avg_sq + i, count);
    m += (1.0F - p.beta1) * (g - m);
    s = p.beta2 * s + (1.0F - p.beta2) * g * g;
    const Vector root = square_root(s) * p.root_scale + p.epsilon;
    const Vector value = p.kept * load(p.value + i, count) - p.rate * m / root;
    store(p.exp_avg + i, m, count);
    store(p.exp_avg_sq + i, s, count);
    store(p.value + i, value, count);
    if (p.compute) store(static_cast<T*>(p.compute) + i, value, count);
  }
}

template <class T>
void adamw(const AdamWTask& task, int64_t begin, int64_t end) {
  const float scale = *task.gradient_scale;
  if (!__builtin_isfinite(scale)) return;
  for (int64_t i = 0; i < task.num_tensors; ++i) {
    const AdamWTensor& tensor = task.tensors[i];
    const int64_t from = begin > tensor.first ? begin - tensor.first : 0;
    const int64_t to = end - tensor.first < tensor.size ? end - tensor.first : tensor.size;
    if (from < to) adamw<T>(tensor, scale, from, to);
  }
}

template <class T>
constexpr RowKernels kTable = {&norm_forward<T>,
                               &norm_backward<T>,
                               &shift_forward<T>,
                               &shift_backward<T>,
                               &gate_forward<T>,
                               &gate_backward<T>,
                               &rotary<T>,
                               &softmax_loss<T>,
                               &adamw<T>};

}  // namespace

const RowKernels& REYNARD_ROW_KERNELS(Element element) {
  return element == Element::kF32 ? kTable<float> : kTable<BF16>;
}

}  // namespace reynard::ops::cpu

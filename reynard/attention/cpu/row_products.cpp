#include "reynard/attention/cpu/attention_cpu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace reynard::attention::cpu {

namespace {

// In eight running sums, which the compiler keeps in vectors.
template <class T>
double dot(const T* x, const T* y, int64_t count) {
  constexpr int64_t kSums = 8;
  double sums[kSums] = {};
  int64_t d = 0;
  for (; d + kSums <= count; d += kSums) {
    for (int64_t s = 0; s < kSums; ++s) {
      sums[s] += static_cast<double>(static_cast<float>(x[d + s])) * static_cast<float>(y[d + s]);
    }
  }
  for (; d < count; ++d) {
    sums[0] += static_cast<double>(static_cast<float>(x[d])) * static_cast<float>(y[d]);
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

template <class T>
void fill(const at::Tensor& x, const at::Tensor& y, at::Tensor& products) {
  const int64_t Tq = x.size(1), H = x.size(2), D = x.size(3);
  const T* px = x.const_data_ptr<T>();
  const T* py = y.const_data_ptr<T>();
  double* to = products.data_ptr<double>();
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, D));
  at::parallel_for(0, x.size(0) * Tq, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t b = row / Tq, i = row % Tq;
      for (int64_t h = 0; h < H; ++h) {
        to[(b * H + h) * Tq + i] = dot(px + b * x.stride(0) + i * x.stride(1) + h * x.stride(2),
                                       py + b * y.stride(0) + i * y.stride(1) + h * y.stride(2),
                                       D);
      }
    }
  });
}

}  // namespace

at::Tensor row_products(const at::Tensor& dout, const at::Tensor& out) {
  at::Tensor products =
      at::empty({out.size(0), out.size(2), out.size(1)}, out.options().dtype(at::kDouble));
  switch (out.scalar_type()) {
    case at::kFloat:
      fill<float>(dout, out, products);
      break;
    case at::kBFloat16:
      fill<at::BFloat16>(dout, out, products);
      break;
    case at::kHalf:
      fill<at::Half>(dout, out, products);
      break;
    default:
      TORCH_INTERNAL_ASSERT(false, "row_products: dtype ", out.scalar_type());
  }
  return products;
}

}  // namespace reynard::attention::cpu

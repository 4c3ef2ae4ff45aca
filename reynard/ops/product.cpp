#include "reynard/ops/product.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>

namespace reynard::ops {

namespace {

bool widens_on_gpu(const at::Tensor& factor, at::ScalarType out) {
  const at::ScalarType dtype = factor.scalar_type();
  return factor.is_cuda() && out == at::kFloat && (dtype == at::kBFloat16 || dtype == at::kHalf);
}

}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b, at::ScalarType out) {
  return widens_on_gpu(a, out) ? at::mm(a, b, out) : at::mm(a, b).to(out);
}

void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  if (sum.scalar_type() == a.scalar_type()) {
    sum.addmm_(a, b);
  } else if (widens_on_gpu(a, sum.scalar_type())) {
    at::addmm_out(sum, sum, a, b, sum.scalar_type());
  } else {
    sum += at::mm(a, b);
  }
}

at::Tensor exact_product(const at::Tensor& x, const at::Tensor& w) {
  if (!(x.is_cuda() && x.scalar_type() == at::kBFloat16)) {
    return at::mm(x.to(w.scalar_type()), w.t());
  }
  const at::Tensor high = w.to(at::kBFloat16);
  const at::Tensor rest = w - high;
  const at::Tensor middle = rest.to(at::kBFloat16);
  const at::Tensor low = (rest - middle).to(at::kBFloat16);
  const int64_t O = w.size(0);
  const at::Tensor parts = at::mm(x, at::cat({high, middle, low}).t(), at::kFloat);
  // The small parts first: nothing of them is lost.
  return (parts.narrow(1, 2 * O, O) + parts.narrow(1, O, O)) + parts.narrow(1, 0, O);
}

}  // namespace reynard::ops

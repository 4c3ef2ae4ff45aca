#include "reynard/ops/product.h"

#include "reynard/ops/few_row_products.h"
#include "reynard/tensor/cpu_features.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

namespace reynard::ops {

namespace {

bool widens_on_gpu(const at::Tensor& factor, at::ScalarType out) {
  const at::ScalarType dtype = factor.scalar_type();
  return factor.is_cuda() && out == at::kFloat && (dtype == at::kBFloat16 || dtype == at::kHalf);
}

// sum += x for bf16 x: `+=` would make a copy of x in f32 first, and a head of 50,000 tokens is
// large.
void add_widened(at::Tensor& sum, const at::Tensor& x) {
  const at::Tensor from = x.contiguous();
  const auto* values = from.const_data_ptr<at::BFloat16>();
  auto* sums = sum.mutable_data_ptr<float>();
  constexpr int64_t kGrain = int64_t{1} << 16;
  at::parallel_for(0, sum.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sums[i] += static_cast<float>(values[i]);
  });
}

bool is_block_sum(const SumOfProducts& sum) {
  return std::ranges::all_of(sum.terms, [&](const Factors& factors) {
    const auto& [a, b] = factors;
    return (sum.out == at::kFloat || sum.out == a.scalar_type()) && has_block_product(a, b);
  });
}

// Where a CPU has no instructions for bf16, the library multiplies it at a fraction of the speed of
// f32.
bool is_faster_in_f32(const at::Tensor& factor) {
  const tensor::CpuFeatures& cpu = tensor::cpu_features();
  const at::ScalarType dtype = factor.scalar_type();
  return factor.is_cpu() && (dtype == at::kBFloat16 || dtype == at::kHalf) && !cpu.avx512_bf16 &&
         !cpu.amx_bf16;
}

}  // namespace

at::Tensor library_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType out) {
  if (widens_on_gpu(a, out)) return at::mm(a, b, out);
  if (is_faster_in_f32(a)) return at::mm(a.to(at::kFloat), b.to(at::kFloat)).to(out);
  return at::mm(a, b).to(out);
}

std::vector<at::Tensor> sums_of_products(std::span<const SumOfProducts> sums) {
  std::vector<at::Tensor> results;
  std::vector<BlockSum> blocks;
  for (const SumOfProducts& sum : sums) {
    const auto& [a, b] = sum.terms[0];
    if (is_block_sum(sum)) {
      results.push_back(at::empty({a.size(0), b.size(1)}, a.options().dtype(sum.out)));
      blocks.push_back({.terms = sum.terms, .c = results.back()});
      continue;
    }
    results.push_back(product(a, b, sum.out));
    for (size_t i = 1; i < sum.terms.size(); ++i) {
      add_product(results.back(), sum.terms[i].a, sum.terms[i].b);
    }
  }
  block_products(blocks);
  return results;
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b, at::ScalarType out) {
  const SumOfProducts sum{.terms = {{a, b}}, .out = out};
  return is_block_sum(sum) ? sums_of_products({&sum, 1})[0] : library_product(a, b, out);
}

at::Tensor unrounded_product(const at::Tensor& a, const at::Tensor& b) {
  constexpr int64_t kWideColumns = 512;
  if (a.scalar_type() == at::kFloat || widens_on_gpu(a, at::kFloat) || has_block_product(a, b)) {
    return product(a, b, at::kFloat);
  }
  const at::Tensor wide = a.to(at::kFloat);
  at::Tensor c = at::empty({a.size(0), b.size(1)}, wide.options());
  for (int64_t column = 0; column < b.size(1); column += kWideColumns) {
    const int64_t count = std::min(kWideColumns, b.size(1) - column);
    c.narrow(1, column, count).copy_(at::mm(wide, b.narrow(1, column, count).to(at::kFloat)));
  }
  return c;
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  return product(a, b, a.scalar_type());
}

void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  const bool here = sum.scalar_type() == at::kFloat || sum.scalar_type() == a.scalar_type();
  if (here && sum.stride(1) == 1 && has_block_product(a, b)) {
    const BlockSum block{.terms = {{a, b}}, .c = sum, .add = true};
    block_products({&block, 1});
  } else if (is_faster_in_f32(a)) {
    if (sum.scalar_type() == at::kFloat) {
      sum.addmm_(a.to(at::kFloat), b.to(at::kFloat));
    } else {
      sum += library_product(a, b, at::kFloat);
    }
  } else if (sum.scalar_type() == a.scalar_type()) {
    sum.addmm_(a, b);
  } else if (widens_on_gpu(a, sum.scalar_type())) {
    at::addmm_out(sum, sum, a, b, sum.scalar_type());
  } else {
    const at::Tensor product = at::mm(a, b);
    const bool widened = sum.is_cpu() && sum.is_contiguous() && sum.scalar_type() == at::kFloat &&
                         product.scalar_type() == at::kBFloat16;
    if (widened) {
      add_widened(sum, product);
    } else {
      sum += product;
    }
  }
}

at::Tensor exact_product(const at::Tensor& x, const at::Tensor& w) {
  if (has_few_output_product(x, w)) return few_output_product(x, w);
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

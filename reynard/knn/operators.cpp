// torch.ops.reynard.knn_search: exact search for Python. queries (Q,D) f32 | bf16 | f16 and keys
// (N,D) f32 | bf16 may differ in dtype: both are searched as their f32 values. Scores have no
// gradients, and asking for some is an error: they go through the keys gathered by ids.

#include "reynard/knn/problem.h"
#include "reynard/knn/search.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <tuple>

namespace reynard::knn {

namespace {

std::tuple<at::Tensor, at::Tensor> knn_search(const at::Tensor& queries,
                                              const at::Tensor& keys,
                                              int64_t k) {
  SearchResult found = search(queries, keys, k);
  return {found.ids, found.scores};
}

std::tuple<at::Tensor, at::Tensor> knn_search_meta(const at::Tensor& queries,
                                                   const at::Tensor& keys,
                                                   int64_t k) {
  const auto symbolic = [](const at::Tensor& t) {
    return t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  };
  if (!symbolic(queries) && !symbolic(keys)) {
    const KeyRing ring = ring_of(keys, queries);
    check_search(queries.unsqueeze(0).unsqueeze(2), {&ring, 1}, k);
  }
  const auto best = [&](at::ScalarType dtype) {
    return queries.new_empty_symint({queries.sym_size(0), k}, queries.options().dtype(dtype));
  };
  return {best(at::kLong), best(at::kFloat)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(reynard, m) {
  m.def("knn_search(Tensor queries, Tensor keys, int k) -> (Tensor ids, Tensor scores)");
}
TORCH_LIBRARY_IMPL(reynard, CPU, m) {
  m.impl("knn_search", knn_search);
}
TORCH_LIBRARY_IMPL(reynard, CUDA, m) {
  m.impl("knn_search", knn_search);
}
TORCH_LIBRARY_IMPL(reynard, Meta, m) {
  m.impl("knn_search", knn_search_meta);
}
TORCH_LIBRARY_IMPL(reynard, Autograd, m) {
  m.impl("knn_search", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace reynard::knn

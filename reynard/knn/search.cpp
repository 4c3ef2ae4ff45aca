#include "reynard/knn/search.h"

#include "reynard/knn/gpu_search.h"
#include "reynard/knn/problem.h"
#include "reynard/knn/scan.h"
#include "reynard/knn/streamed_search.h"

namespace reynard::knn {

namespace {

using Search = SearchResult (*)(const at::Tensor&, std::span<const KeyRing>, int64_t);

SearchResult one_head(Search search, const at::Tensor& queries, const at::Tensor& keys, int64_t k) {
  const KeyRing ring = ring_of(keys, queries);
  const SearchResult found = search(queries.unsqueeze(0).unsqueeze(2), {&ring, 1}, k);
  return {found.ids.squeeze(2).squeeze(0), found.scores.squeeze(2).squeeze(0)};
}

}  // namespace

SearchResult search(const at::Tensor& queries, std::span<const KeyRing> rings, int64_t k) {
  const bool crosses_bus = !queries.is_cpu() && !rings.empty() && rings[0].keys.is_cpu();
  if (crosses_bus) return streamed_search(queries, rings, k);
  const Problem problem = make_problem(queries, rings, k);
  if (!problem.queries.is_cpu()) return gpu_search()(problem);
  SearchResult found = empty_result(problem);
  scan(problem, found);
  return found;
}

SearchResult search(const at::Tensor& queries, const at::Tensor& keys, int64_t k) {
  return one_head(search, queries, keys, k);
}

SearchResult plain_search(const at::Tensor& queries, const at::Tensor& keys, int64_t k) {
  return one_head(plain_search, queries, keys, k);
}

}  // namespace reynard::knn

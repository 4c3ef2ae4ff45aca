#include "reynard/knn/order.h"
#include "reynard/knn/problem.h"
#include "reynard/tensor/check.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace reynard::knn {

namespace {

template <class Element>
void search_one(const Problem& problem, int64_t row, int64_t t, int64_t head, SearchResult& out) {
  const KeyRows& rows = problem.keys_of(row);
  const int64_t dim = problem.head_dim();
  const int64_t key_head = head * problem.num_key_heads / problem.num_heads();
  const int64_t query = (row * problem.num_queries() + t) * problem.num_heads() + head;
  const float* q = problem.queries.const_data_ptr<float>() + query * dim;
  const auto* keys = static_cast<const Element*>(rows.data) + key_head * rows.head_stride;
  std::vector<Scored> all;
  for (const KeyRun& run : rows.runs) {
    for (int64_t i = 0; i < run.size; ++i) {
      const Element* key = keys + (run.slot + i) * rows.slot_stride;
      for (int64_t d = 0; d < dim; ++d) {
        if (!std::isfinite(to_float(key[d]))) fail_not_finite(row, key_head, run.id + i);
      }
      all.push_back({score(q, key, dim), run.id + i});
    }
  }
  std::sort(all.begin(), all.end(), before);
  const int64_t found = std::min<int64_t>(problem.k, static_cast<int64_t>(all.size()));
  for (int64_t i = 0; i < found; ++i) {
    out.ids.mutable_data_ptr<int64_t>()[query * problem.k + i] = all[i].id;
    out.scores.mutable_data_ptr<float>()[query * problem.k + i] = all[i].score;
  }
}

}  // namespace

SearchResult plain_search(const at::Tensor& queries, std::span<const KeyRing> rings, int64_t k) {
  tensor::check_value(
      queries.is_cpu(), "plain_search", "device of queries", queries.device().str(), "cpu");
  const Problem problem = make_problem(queries, rings, k);
  SearchResult out = empty_result(problem);
  const auto one = problem.bf16_keys ? search_one<BFloat16> : search_one<float>;
  for (int64_t row = 0; row < problem.batch(); ++row) {
    for (int64_t t = 0; t < problem.num_queries(); ++t) {
      for (int64_t head = 0; head < problem.num_heads(); ++head) one(problem, row, t, head, out);
    }
  }
  return out;
}

}  // namespace reynard::knn

#pragma once
// The scan behind search(): blocks of keys are scored approximately by the kernels in cpu/, what
// may be among the best k is kept with its error bound, and the kept keys are scored exactly.
// Scores of a block are all that is stored of them.

#include "reynard/knn/problem.h"

namespace reynard::knn {

// Fills the ids and scores, which come from empty_result().
void scan(const Problem& problem, const SearchResult& out);

}  // namespace reynard::knn

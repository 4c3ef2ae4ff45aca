#include "bench/sum_of_words.h"

#include "reynard/tensor/parallel.h"

#include <algorithm>
#include <atomic>

namespace reynard::bench {

uint64_t sum_of_words(const at::Tensor& x) {
  constexpr int64_t kTaskWords = 1 << 17;
  const auto* words = static_cast<const uint64_t*>(x.const_data_ptr());
  const auto num_words = static_cast<int64_t>(x.nbytes() / sizeof(uint64_t));
  std::atomic<uint64_t> total{0};
  tensor::run_tasks((num_words + kTaskWords - 1) / kTaskWords, [&](int64_t task, int64_t) {
    uint64_t sum = 0;
    const int64_t last = std::min(num_words, (task + 1) * kTaskWords);
    for (int64_t i = task * kTaskWords; i < last; ++i) sum += words[i];
    total += sum;
  });
  return total;
}

}  // namespace reynard::bench

#include "reynard/knn/key_codes.h"

#include "reynard/tensor/error.h"
#include "reynard/tensor/huge_pages.h"
#include "reynard/tensor/parallel.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace reynard::knn {

KeyCodes new_codes(int64_t num_heads, int64_t slots, int64_t head_dim) {
  const int64_t depth = (head_dim + kCodeStep - 1) / kCodeStep * kCodeStep;
  KeyCodes made{at::empty({num_heads, slots, depth}, at::kChar),
                at::empty({num_heads, slots}, at::kFloat)};
  tensor::advise_huge_pages(made.codes.data_ptr(), static_cast<int64_t>(made.codes.nbytes()));
  tensor::advise_huge_pages(made.scales.data_ptr(), static_cast<int64_t>(made.scales.nbytes()));
  made.codes.zero_();
  return made;
}

void encode_keys(const at::Tensor& keys, int64_t slot, KeyCodes& codes) {
  constexpr float kSmallest = 0x1p-126F;  // below it the division would lose digits
  constexpr float kMost = 127;
  const int64_t heads = keys.size(0), count = keys.size(1), dim = keys.size(2);
  const int64_t slots = codes.codes.size(1), depth = codes.codes.size(2);
  constexpr int64_t kTaskKeys = 4096;
  const int64_t head_tasks = (count + kTaskKeys - 1) / kTaskKeys;
  std::vector<float> largest(static_cast<size_t>(heads * head_tasks), 0.0F);
  tensor::run_tasks(heads * head_tasks, [&](int64_t task, int64_t /*worker*/) {
    const int64_t head = task / head_tasks, first = task % head_tasks * kTaskKeys;
    const int64_t size = std::min(kTaskKeys, count - first);
    const at::Tensor some = keys[head].narrow(0, first, size).to(at::kFloat).contiguous();
    const auto* key = some.const_data_ptr<float>();
    auto* code = codes.codes.mutable_data_ptr<int8_t>() + (head * slots + slot + first) * depth;
    auto* scales = codes.scales.mutable_data_ptr<float>() + head * slots + slot + first;
    for (int64_t i = 0; i < size; ++i, key += dim, code += depth) {
      float most = 0;
      for (int64_t d = 0; d < dim; ++d) {
        if (!std::isfinite(key[d])) {
          throw Error("knn: keys to be coded hold NaN or an infinity; expected finite numbers");
        }
        most = std::max(most, std::fabs(key[d]));
      }
      scales[i] = std::max(most / kMost, kSmallest);
      largest[static_cast<size_t>(task)] = std::max(largest[static_cast<size_t>(task)], scales[i]);
      for (int64_t d = 0; d < dim; ++d) {
        code[d] =
            static_cast<int8_t>(std::clamp(std::nearbyint(key[d] / scales[i]), -kMost, kMost));
      }
    }
  });
  for (const float scale : largest)
    codes.largest_scale = std::max<double>(codes.largest_scale, scale);
}

}  // namespace reynard::knn

#include "reynard/knn/key_codes.h"

#include "reynard/tensor/error.h"
#include "reynard/tensor/huge_pages.h"
#include "reynard/tensor/parallel.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace reynard::knn {

namespace {

// shifted: codes + 128 of one key, (depth).
void store_code(const uint8_t* shifted, int64_t depth, uint8_t* upper, uint8_t* lower) {
  constexpr int64_t kStepBytes = kCodeGroup * 4;
  for (int64_t step = 0; step < depth / 8; ++step) {
    const uint8_t* x = shifted + 8 * step;
    for (int64_t j = 0; j < 4; ++j) {
      upper[step * kStepBytes + j] = static_cast<uint8_t>(x[j] >> 4 | (x[4 + j] & 0xf0));
    }
  }
  for (int64_t d = 0; d < depth; d += kCodeStep) {
    for (int64_t j = 0; j < kCodeStep / 2; ++j) {
      const uint8_t first = shifted[d + j], second = shifted[d + kCodeStep / 2 + j];
      lower[d / 2 + j] = static_cast<uint8_t>((first & 0xf) | second << 4);
    }
  }
}

}  // namespace

KeyCodes new_codes(int64_t num_heads, int64_t slots, int64_t head_dim) {
  const int64_t depth = (head_dim + kCodeStep - 1) / kCodeStep * kCodeStep;
  const int64_t groups = (slots + kCodeGroup - 1) / kCodeGroup;
  KeyCodes made{at::empty({num_heads, groups, depth / 8, kCodeGroup, 4}, at::kByte),
                at::empty({num_heads, slots, depth / 2}, at::kByte),
                at::empty({num_heads, groups * kCodeGroup}, at::kFloat)};
  for (const at::Tensor& part : {made.upper, made.lower, made.scales}) {
    tensor::advise_huge_pages(part.data_ptr(), static_cast<int64_t>(part.nbytes()));
    part.zero_();
  }
  return made;
}

void encode_keys(const at::Tensor& keys, int64_t slot, KeyCodes& codes) {
  constexpr float kSmallest = 0x1p-126F;  // below it the division would lose digits
  constexpr float kMost = 127;
  const int64_t heads = keys.size(0), count = keys.size(1), dim = keys.size(2);
  const int64_t slots = codes.lower.size(1), depth = 2 * codes.lower.size(2);
  const int64_t padded = codes.scales.size(1);
  constexpr int64_t kTaskKeys = 4096;
  const int64_t head_tasks = (count + kTaskKeys - 1) / kTaskKeys;
  std::vector<float> largest(static_cast<size_t>(heads * head_tasks), 0.0F);
  tensor::run_tasks(heads * head_tasks, [&](int64_t task, int64_t /*worker*/) {
    const int64_t head = task / head_tasks, first = task % head_tasks * kTaskKeys;
    const int64_t size = std::min(kTaskKeys, count - first);
    const at::Tensor some = keys[head].narrow(0, first, size).to(at::kFloat).contiguous();
    const auto* key = some.const_data_ptr<float>();
    auto* upper = codes.upper.mutable_data_ptr<uint8_t>() + head * padded * depth / 2;
    auto* lower = codes.lower.mutable_data_ptr<uint8_t>() + head * slots * depth / 2;
    auto* scales = codes.scales.mutable_data_ptr<float>() + head * padded + slot + first;
    std::vector<uint8_t> shifted(static_cast<size_t>(depth), 0);
    for (int64_t i = 0; i < size; ++i, key += dim) {
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
        const float code = std::clamp(std::nearbyint(key[d] / scales[i]), -kMost, kMost);
        shifted[static_cast<size_t>(d)] = static_cast<uint8_t>(static_cast<int>(code) + 128);
      }
      const int64_t at = slot + first + i, lane = at % kCodeGroup;
      store_code(shifted.data(),
                 depth,
                 upper + (at - lane) * depth / 2 + lane * 4,
                 lower + at * depth / 2);
    }
  });
  for (const float scale : largest)
    codes.largest_scale = std::max<double>(codes.largest_scale, scale);
}

}  // namespace reynard::knn

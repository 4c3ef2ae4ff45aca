#include "reynard/evaluation/python_random.h"

#include "reynard/tensor/check.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace reynard::evaluation {

PythonRandom::PythonRandom(uint64_t seed) {
  const size_t size = state_.size();
  state_[0] = 19650218U;
  for (size_t i = 1; i < size; ++i) {
    state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + static_cast<uint32_t>(i);
  }
  std::vector<uint32_t> key{static_cast<uint32_t>(seed)};
  if (seed >> 32) key.push_back(static_cast<uint32_t>(seed >> 32));

  size_t i = 1;
  const auto advance = [&] {
    if (++i < size) return;
    state_[0] = state_[size - 1];
    i = 1;
  };
  for (size_t k = 0, j = 0; k < std::max(size, key.size()); ++k) {
    const uint32_t mixed = (state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525U;
    state_[i] = (state_[i] ^ mixed) + key[j] + static_cast<uint32_t>(j);
    advance();
    if (++j >= key.size()) j = 0;
  }
  for (size_t k = 0; k + 1 < size; ++k) {
    const uint32_t mixed = (state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941U;
    state_[i] = (state_[i] ^ mixed) - static_cast<uint32_t>(i);
    advance();
  }
  state_[0] = 0x80000000U;
}

void PythonRandom::refill() {
  const size_t size = state_.size();
  for (size_t i = 0; i < size; ++i) {
    const uint32_t y = (state_[i] & 0x80000000U) | (state_[(i + 1) % size] & 0x7fffffffU);
    state_[i] = state_[(i + 397) % size] ^ (y >> 1) ^ ((y & 1U) ? 0x9908b0dfU : 0U);
  }
  index_ = 0;
}

uint32_t PythonRandom::next() {
  if (index_ >= state_.size()) refill();
  uint32_t y = state_[index_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680U;
  y ^= (y << 15) & 0xefc60000U;
  return y ^ (y >> 18);
}

int64_t PythonRandom::up_to(int64_t last) {
  tensor::check_value(last >= 0, "random.randint", "last", last, ">= 0");
  const uint64_t count = static_cast<uint64_t>(last) + 1;
  const int bits = std::bit_width(count);
  // Python draws 32-bit words, lowest first, and keeps the high bits of the last one.
  const auto draw = [&]() -> uint64_t {
    if (bits <= 32) return next() >> (32 - bits);
    const uint64_t low = next();
    return low | (static_cast<uint64_t>(next() >> (64 - bits)) << 32);
  };
  uint64_t value = draw();
  while (value >= count) value = draw();
  return static_cast<int64_t>(value);
}

}  // namespace reynard::evaluation

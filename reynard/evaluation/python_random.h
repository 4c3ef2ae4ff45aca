#pragma once
// The integers that Python's `random` module draws, so that positions sampled by published scripts
// can be reproduced exactly.

#include <array>
#include <cstddef>
#include <cstdint>

namespace reynard::evaluation {

// Mersenne Twister 19937 seeded as `random.seed(seed)` does (init_by_array of the 32-bit digits).
class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);

  // The next 32-bit output of the generator.
  uint32_t next();

  // random.randint(0, last): both ends included, 0 <= last < 2^63.
  int64_t up_to(int64_t last);

 private:
  void refill();

  std::array<uint32_t, 624> state_{};
  size_t index_ = 624;
};

}  // namespace reynard::evaluation

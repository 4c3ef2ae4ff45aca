#pragma once
// Working memory of one kernel call. Fresh pages cost more than the arithmetic that fills them when
// much is pruned, so each thread that calls the operator keeps its last scratch for the next call
// while it is small, and large ones are backed by huge pages.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reynard::attention::cpu {

class Scratch {
 public:
  // Kept between calls at most.
  static constexpr int64_t kKeptBytes = int64_t{256} << 20;

  // Room for `bytes` in pieces, each rounded up to kAlignment by take(); contents are undefined.
  explicit Scratch(int64_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  static constexpr int64_t kAlignment = 4096;
  static int64_t padded(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  char* take(int64_t bytes);

 private:
  at::Tensor storage_;
  char* next_ = nullptr;
  int64_t left_ = 0;
};

}  // namespace reynard::attention::cpu

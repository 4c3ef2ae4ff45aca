#pragma once
// Division that rounds up, for kernels and what plans them.

#include "reynard/tensor/host_device.h"

#include <concepts>
#include <type_traits>

namespace reynard::tensor {

// a at least 0, b at least 1. Always inlined: files that are compiled for several instruction sets
// share no code.
template <std::integral Integer>
[[gnu::always_inline]] REYNARD_HOST_DEVICE constexpr Integer div_up(
    Integer a, std::type_identity_t<Integer> b) {
  return (a + b - 1) / b;
}

}  // namespace reynard::tensor

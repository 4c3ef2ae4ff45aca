#pragma once
// Bytes of the tensors on the CPU that a piece of code holds at once: counted where they are
// allocated, so that it is the same number in every run and on every machine.

#include <cstdint>
#include <functional>

namespace reynard::test {

// The most that tensors made by this thread inside `run` take at any moment.
int64_t peak_tensor_bytes(const std::function<void()>& run);

}  // namespace reynard::test

#pragma once
// How much memory this process has used at most.

#include <cstdint>

namespace reynard::evaluation {

// Largest resident set since the program began, in bytes (getrusage).
int64_t peak_memory_bytes();

}  // namespace reynard::evaluation

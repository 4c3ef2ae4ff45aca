#pragma once
// Waits for what other threads and programs do.

#include <chrono>
#include <functional>
#include <thread>

namespace reynard::test {

// Whether the predicate holds before the limit is over; it is asked every few milliseconds. The
// limit is only there to end a test that has failed: far more than a slow machine needs.
inline bool eventually(const std::function<bool()>& predicate,
                       std::chrono::milliseconds limit = std::chrono::minutes(2)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!predicate()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace reynard::test

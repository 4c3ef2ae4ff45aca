#pragma once
// Seeded mutations of files for tests that feed readers with nonsense: every run sees the same
// ones.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::test {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : state_(seed) {}

  // The text with one to a few changes: bytes flipped, inserted, removed or replaced, numbers made
  // huge, negative or fractional, pieces moved, the end cut off. words: texts that mean something
  // to the reader; they are put in too. end: only [0, end) is changed; npos: all.
  std::string mutate(std::string_view text,
                     const std::vector<std::string>& words = {},
                     size_t end = std::string_view::npos);

  uint64_t next();  // random bits
  size_t below(size_t n) { return static_cast<size_t>(next() % n); }

 private:
  uint64_t state_;
};

// Calls `attempt` with the attempt's number until `seconds` are over or it was called `most` times.
// $REYNARD_FUZZ_SECONDS sets another time.
void repeat_for(double seconds, int most, const std::function<void(uint64_t)>& attempt);

}  // namespace reynard::test

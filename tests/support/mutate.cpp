#include "tests/support/mutate.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>

namespace reynard::test {

namespace {

constexpr std::string_view kNumbers[] = {"0",
                                         "-1",
                                         "1",
                                         "2",
                                         "3",
                                         "7",
                                         "0.5",
                                         "1e308",
                                         "1e400",
                                         "-0.0",
                                         "4294967296",
                                         "9223372036854775807",
                                         "9223372036854775808",
                                         "18446744073709551615",
                                         "99999999999999999999999",
                                         "nan",
                                         "null",
                                         "true",
                                         "\"x\"",
                                         "[]",
                                         "{}"};

// Replaces one number of the text.
void change_number(std::string& text, size_t end, Mutator& random) {
  std::vector<size_t> starts;
  for (size_t i = 0; i < end; ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(text[i])) != 0;
    const bool inside = i > 0 && std::isdigit(static_cast<unsigned char>(text[i - 1])) != 0;
    if (digit && !inside) starts.push_back(i);
  }
  if (starts.empty()) return;
  const size_t begin = starts[random.below(starts.size())];
  size_t size = 0;
  while (begin + size < end && std::isdigit(static_cast<unsigned char>(text[begin + size]))) ++size;
  text.replace(begin, size, kNumbers[random.below(std::size(kNumbers))]);
}

}  // namespace

uint64_t Mutator::next() {  // splitmix64
  uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

std::string Mutator::mutate(std::string_view original,
                            const std::vector<std::string>& words,
                            size_t end) {
  std::string text(original);
  const size_t changes = 1 + below(4);
  for (size_t i = 0; i < changes && !text.empty(); ++i) {
    const size_t last = std::min(end, text.size());
    if (last == 0) break;
    const size_t at = below(last);
    const size_t size = std::min(1 + below(16), last - at);
    switch (below(9)) {
      case 0:
        text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:
        text[at] = static_cast<char>(next());
        break;
      case 2:
        text.insert(at, 1, static_cast<char>(next()));
        break;
      case 3:
        text.erase(at, size);
        break;
      case 4:
        text.insert(below(last), text.substr(at, size));
        break;
      case 5:
        text.resize(at);  // cut short
        break;
      case 6:
        if (!words.empty()) text.replace(at, size, words[below(words.size())]);
        break;
      default:
        change_number(text, last, *this);
    }
  }
  return text;
}

void repeat_for(double seconds, int most, const std::function<void(uint64_t)>& attempt) {
  if (const char* set = std::getenv("REYNARD_FUZZ_SECONDS")) {
    seconds = std::atof(set);
    most = 1 << 30;
  }
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < most; ++i) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (passed.count() > seconds) return;
    attempt(static_cast<uint64_t>(i));
  }
}

}  // namespace reynard::test

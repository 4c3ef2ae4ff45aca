#include "reynard/config/nearest_key.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace reynard::config {

namespace {

// Insertions, deletions, substitutions and swaps of neighbours that turn a into b.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::size_t columns = b.size() + 1;
  std::vector<std::size_t> table((a.size() + 1) * columns);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& {
    return table[i * columns + j];
  };
  for (std::size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (std::size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({substituted, at(i - 1, j) + 1, at(i, j - 1) + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      }
    }
  }
  return at(a.size(), b.size());
}

std::string_view leaf(std::string_view path) {
  return path.substr(path.rfind('.') + 1);
}

// "runs[3].name" and "runs[].name" are the same key.
std::string without_indices(std::string_view path) {
  std::string out;
  bool inside = false;
  for (const char c : path) {
    if (c == ']') inside = false;
    if (!inside) out += c;
    if (c == '[') inside = true;
  }
  return out;
}

}  // namespace

std::string nearest_key(const std::string& path, const std::vector<std::string>& known) {
  constexpr std::size_t kLongestKey = 200;  // hostile keys must not cost quadratic time
  if (path.size() > kLongestKey) return {};
  const std::string plain = without_indices(path);
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, leaf(plain).size() / 3) + 1;
  std::size_t best_slips = 0;
  for (const std::string& key : known) {
    // The right name in the wrong section is as near as one slip, but not nearer.
    const std::size_t slips = edit_distance(plain, key);
    const std::size_t distance = leaf(key) == leaf(plain) ? 1 : slips;
    const bool breaks_tie = !best.empty() && distance == best_distance && slips < best_slips;
    if (distance < best_distance || breaks_tie) {
      best_distance = distance;
      best_slips = slips;
      best = key;
    }
  }
  return best;
}

}  // namespace reynard::config

#include "reynard/config/config.h"

#include <fmt/format.h>

#include <algorithm>

namespace reynard::config {

namespace {

std::string explanation(const KeyInfo& key) {
  return key.rule.empty() ? key.help : fmt::format("{} ({})", key.help, key.rule);
}

}  // namespace

std::string help_text(const std::vector<KeyInfo>& keys) {
  constexpr std::size_t kColumn = 36;  // of the explanation, behind two blanks
  std::string out;
  for (const KeyInfo& key : keys) {
    std::string setting = fmt::format("{} = {}", key.path, key.default_value);
    if (setting.size() > kColumn - 2) setting += fmt::format("\n  {:{}}", "", kColumn);
    out += fmt::format("  {:<{}}{}; {}\n", setting, kColumn, key.type, explanation(key));
  }
  return out;
}

}  // namespace reynard::config

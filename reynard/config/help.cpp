#include "reynard/config/config.h"

#include <fmt/format.h>

#include <algorithm>

namespace reynard::config {

namespace {

std::string explanation(const KeyInfo& key) {
  return key.rule.empty() ? key.help : fmt::format("{} ({})", key.help, key.rule);
}

std::string escaped_bars(std::string text) {
  for (std::size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) {
    text.insert(at, 1, '\\');
  }
  return text;
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

std::string help_markdown(const std::vector<KeyInfo>& keys) {
  std::string out = "| key | type | default | meaning |\n|---|---|---|---|\n";
  for (const KeyInfo& key : keys) {
    const std::string shown =
        key.default_value.empty() ? "" : fmt::format("`{}`", escaped_bars(key.default_value));
    out += fmt::format("| `{}` | {} | {} | {} |\n",
                       key.path,
                       escaped_bars(key.type),
                       shown,
                       escaped_bars(explanation(key)));
  }
  return out;
}

}  // namespace reynard::config

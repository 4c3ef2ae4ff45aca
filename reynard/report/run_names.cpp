#include "reynard/report/run_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

namespace reynard::report {

namespace {

// "a.b=1,seed=0 (sf)": the settings a.b=1 and seed=0, and the mark (sf).
struct SweepName {
  std::vector<std::string> settings;  // empty: the name is no list of settings
  std::string mark;
};

// Whether a setting begins here: a dotted key and "=".
bool begins_setting(const std::string& text, size_t begin) {
  size_t end = begin;
  const auto in_key = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; };
  while (end < text.size() && in_key(text[end])) ++end;
  return end > begin && end < text.size() && text[end] == '=';
}

SweepName parsed(const std::string& name) {
  if (!begins_setting(name, 0)) return {};
  const size_t mark = name.ends_with(')') ? name.rfind(" (") : std::string::npos;
  const std::string list = name.substr(0, mark);
  SweepName sweep;
  size_t begin = 0;
  for (size_t i = 1; i <= list.size(); ++i) {
    // Commas also stand within values.
    if (i < list.size() && !(list[i] == ',' && begins_setting(list, i + 1))) continue;
    sweep.settings.push_back(list.substr(begin, i - begin));
    begin = i + 1;
  }
  if (mark != std::string::npos) sweep.mark = name.substr(mark + 2, name.size() - mark - 3);
  return sweep;
}

std::string key_of(const std::string& setting) {
  return setting.substr(0, setting.find('='));
}

std::string last_part(const std::string& key) {
  return key.substr(key.rfind('.') + 1);  // npos + 1: the whole
}

}  // namespace

ShortNames short_names(const std::vector<std::string>& names) {
  std::vector<SweepName> sweep;
  std::map<std::string, size_t> counts;                 // names with the setting
  std::map<std::string, std::set<std::string>> of_end;  // keys with the same last part
  size_t num_sweep = 0;
  for (const std::string& name : names) {
    sweep.push_back(parsed(name));
    num_sweep += sweep.back().settings.empty() ? 0 : 1;
    const auto& settings = sweep.back().settings;
    for (const std::string& setting : std::set<std::string>(settings.begin(), settings.end())) {
      ++counts[setting];
      of_end[last_part(key_of(setting))].insert(key_of(setting));
    }
  }
  if (num_sweep < 2) return {names, ""};
  ShortNames result;
  std::vector<std::string> shared;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto& [settings, mark] = sweep[i];
    std::vector<std::string> kept;
    for (const std::string& setting : settings) {
      if (counts[setting] == num_sweep) {
        if (std::ranges::find(shared, setting) == shared.end()) shared.push_back(setting);
        continue;
      }
      const std::string key = key_of(setting);
      const bool is_clear = of_end[last_part(key)].size() == 1;
      kept.push_back(is_clear ? setting.substr(key.size() - last_part(key).size()) : setting);
    }
    std::string name = fmt::format("{}", fmt::join(kept, ","));
    if (!mark.empty()) name = name.empty() ? mark : fmt::format("{} ({})", name, mark);
    result.names.push_back(settings.empty() ? names[i] : name);
  }
  const std::set<std::string> different(result.names.begin(), result.names.end());
  if (different.size() < names.size() || different.contains("")) return {names, ""};
  result.shared = fmt::format("{}", fmt::join(shared, ","));
  return result;
}

std::vector<std::string> wrapped(const std::string& text, size_t most) {
  std::vector<std::string> lines{""};
  size_t width = 0;        // characters of the last line
  size_t break_at = 0;     // bytes of it up to where it may be broken; 0: nowhere
  size_t after_break = 0;  // characters behind that
  for (const char c : text) {
    const bool begins_character = (static_cast<unsigned char>(c) & 0xc0) != 0x80;  // UTF-8
    if (begins_character && width == most) {
      std::string rest = break_at > 0 ? lines.back().substr(break_at) : "";
      if (break_at > 0) lines.back().resize(break_at);
      if (lines.back().ends_with(' ')) lines.back().pop_back();
      width = break_at > 0 ? after_break : 0;
      lines.push_back(std::move(rest));
      break_at = 0;
    }
    lines.back() += c;
    width += begins_character ? 1 : 0;
    after_break += begins_character ? 1 : 0;
    if (std::string_view(" ,/:_").find(c) != std::string_view::npos) {
      break_at = lines.back().size();
      after_break = 0;
    }
  }
  return lines;
}

}  // namespace reynard::report

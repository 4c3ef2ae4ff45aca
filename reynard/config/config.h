#pragma once
// Reads, writes and describes config structs (see fields.h for how one is declared):
//
//   const auto experiment = config::read_toml<Experiment>("quickstart.toml", overrides);
//   write_file("run/experiment.toml", config::to_toml(experiment));
//
// Reading throws one reynard::Error that lists every mistake, a line each. Writing and reading back
// gives the same values bit for bit.

#include "reynard/config/reader.h"
#include "reynard/config/tree.h"
#include "reynard/config/writer.h"

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::config {

// Every key of T with its default, in the order of the field list.
template <Section T>
std::vector<KeyInfo> describe() {
  return describe_section(T{});
}

// Reads a tree. defaults: the values of keys that the tree does not have; path: the dotted key of
// the tree in the file, for messages, when it is only a section of it.
template <Section T>
T from_table(const Table& table,
             const std::string& source,
             T defaults = {},
             const std::string& path = "") {
  Problems problems(source);
  std::vector<UnknownKey> unknown;
  T value = std::move(defaults);
  read_section(table, ReadPlace{path, any_value, problems, unknown}, value);
  if (!unknown.empty()) {
    std::vector<std::string> known;
    for (const KeyInfo& info : describe<T>()) known.push_back(key(path, info.path));
    add_unknown_keys(unknown, known, problems);
  }
  problems.throw_if_any();
  return value;
}

// text: TOML; source: its name in messages; overrides: "--section.key=value", each key once,
// applied last.
template <Section T>
T from_toml(std::string_view text,
            const std::string& source,
            std::span<const std::string> overrides = {}) {
  Table table = parse_toml(text, source);
  for (const std::string& argument : overrides) apply_override(table, argument);
  return from_table<T>(table, source);
}

template <Section T>
T read_toml(const std::filesystem::path& file, std::span<const std::string> overrides = {}) {
  return from_toml<T>(read_config_file(file), file.string(), overrides);
}

template <Section T>
T from_json(std::string_view text, const std::string& source) {
  return from_table<T>(parse_json(text, source), source);
}

// Keys whose values differ, as "section.key: 1 -> 2", in the order of the field list. What is in
// lists of sections is not compared.
template <Section T>
std::vector<std::string> differences(const T& before, const T& after) {
  const std::vector<KeyInfo> old_keys = describe_section(before);
  const std::vector<KeyInfo> new_keys = describe_section(after);
  const auto shown = [](const std::string& value) { return value.empty() ? "unset" : value; };
  std::vector<std::string> found;
  for (size_t i = 0; i < old_keys.size(); ++i) {
    const std::string &was = old_keys[i].default_value, &is = new_keys[i].default_value;
    if (was != is) found.push_back(old_keys[i].path + ": " + shown(was) + " -> " + shown(is));
  }
  return found;
}

template <Section T>
std::string to_toml(const T& value) {
  return print_toml(write_section(value));
}

template <Section T>
std::string to_json(const T& value) {
  return print_json(write_section(value));
}

// The keys as text for a terminal: one line each, grouped by section.
std::string help_text(const std::vector<KeyInfo>& keys);

}  // namespace reynard::config

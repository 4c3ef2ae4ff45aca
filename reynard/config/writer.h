#pragma once
// Struct -> tree, and struct -> list of its keys. Used through config.h.

#include "reynard/config/reader.h"

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace reynard::config {

// One key as help shows it.
struct KeyInfo {
  std::string path;           // "model.num_heads"
  std::string type;           // "integer", "number", "none | full | fixed", "list of integer"
  std::string default_value;  // as in TOML; empty: not set
  std::string help;
  std::string rule;                   // "> 0"; empty: none
  std::string default_override = {};  // default_value as "--path=TEXT" takes it
};

template <Section T>
Table write_section(const T& value);

// A node without a value is left out: an unset optional.
template <class T>
Node write_any(const T& value) {
  Node node;
  if constexpr (Section<T>) {
    node.value = write_section(value);
  } else if constexpr (NamedEnum<T>) {
    node.value = std::string(name_of(value));
  } else if constexpr (IsOptional<T>::value) {
    if (value) return write_any(*value);
  } else if constexpr (IsVector<T>::value) {
    std::vector<Node> items;
    for (const auto& item : value) {
      items.push_back(write_any(static_cast<typename T::value_type>(item)));
    }
    node.value = std::move(items);
  } else {
    node.value = value;
  }
  return node;
}

template <Section T>
Table write_section(const T& value) {
  Table table;
  T::fields(
      value,
      [&](std::string_view name, const auto& field, std::string_view, const Rule& = any_value) {
        Node node = write_any(field);
        if (!std::holds_alternative<std::monostate>(node.value)) {
          table.add(std::string(name), std::move(node));
        }
      });
  return table;
}

template <class T>
void record_value(Problems& problems, const std::string& path, const std::string& where, T& value) {
  const Node node = write_any(value);
  const bool unset = std::holds_alternative<std::monostate>(node.value);
  problems.set_value(path, where, unset ? "unset" : value_text(node));
}

template <class T>
std::string type_text() {
  if constexpr (IsOptional<T>::value) {
    return type_text<typename T::value_type>();
  } else if constexpr (IsVector<T>::value) {
    return "list of " + type_text<typename T::value_type>();
  } else if constexpr (NamedEnum<T>) {
    std::string text;
    for (const auto& [item, name] : enum_names(T{})) {
      text += (text.empty() ? "" : " | ") + std::string(name);
    }
    return text;
  } else if constexpr (std::is_same_v<T, bool>) {
    return "bool";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return "integer";
  } else if constexpr (std::is_same_v<T, double>) {
    return "number";
  } else if constexpr (Section<T>) {
    return "section";
  } else {
    static_assert(std::is_same_v<T, std::string>, "not a type of a config field");
    return "string";
  }
}

template <Section T>
std::vector<KeyInfo> describe_section(const T& value, const std::string& path = "");

template <class T>
std::vector<KeyInfo> describe_field(const T& value, KeyInfo info) {
  if constexpr (Section<T>) {
    return describe_section(value, info.path);
  } else if constexpr (IsOptional<T>::value && Section<typename IsOptional<T>::Inner>) {
    return describe_section(typename T::value_type{}, info.path);
  } else if constexpr (IsVector<T>::value && Section<typename IsVector<T>::Inner>) {
    return describe_section(typename T::value_type{}, info.path + "[]");
  } else {
    info.type = type_text<T>();
    const Node node = write_any(value);
    if (!std::holds_alternative<std::monostate>(node.value)) {
      info.default_value = value_text(node);
      info.default_override = override_text(node);
    }
    return {std::move(info)};
  }
}

template <Section T>
std::vector<KeyInfo> describe_section(const T& value, const std::string& path) {
  std::vector<KeyInfo> keys;
  T::fields(value,
            [&](std::string_view name,
                const auto& field,
                std::string_view help,
                const Rule& rule = any_value) {
              const std::vector<KeyInfo> found = describe_field(
                  field, {key(path, name), "", "", std::string(help), std::string(rule.text)});
              keys.insert(keys.end(), found.begin(), found.end());
            });
  return keys;
}

}  // namespace reynard::config

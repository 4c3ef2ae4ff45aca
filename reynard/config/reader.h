#pragma once
// Tree -> struct. Every mistake goes into one list: unknown keys, wrong types, broken rules, and
// the cross-field problems of `check`. Used through config.h.

#include "reynard/config/fields.h"
#include "reynard/config/tree.h"

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace reynard::config {

// A struct with a field list.
template <class T>
concept Section = std::is_class_v<T> && requires(T& value) {
  T::fields(value, [](std::string_view, auto&, std::string_view, const Rule& = any_value) {});
};

template <class T>
concept Checked = requires(const T& value, Problems& problems, const std::string& path) {
  value.check(problems, path);
};

template <class T>
concept NamedEnum = std::is_enum_v<T> && requires(T value) {
  { enum_names(value) } -> std::convertible_to<EnumNames<T>>;
};

template <class T>
struct IsOptional : std::false_type {
  using Inner = void;
};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {
  using Inner = T;
};
template <class T>
struct IsVector : std::false_type {
  using Inner = void;
};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {
  using Inner = T;
};

// A key of the text that no field has; suggestions are made when all fields are known.
struct UnknownKey {
  std::string path;
  std::string where;
  bool is_section = false;
};

// Where one value is read from and to whom mistakes are told.
struct ReadPlace {
  std::string path;
  Rule rule;
  Problems& problems;
  std::vector<UnknownKey>& unknown;
};

// false: the value has the wrong type or breaks its rule; a problem was added, `value` is
// unchanged.
bool read_value(const Node& node, const ReadPlace& place, bool& value);
bool read_value(const Node& node, const ReadPlace& place, int64_t& value);
bool read_value(const Node& node, const ReadPlace& place, double& value);
bool read_value(const Node& node, const ReadPlace& place, std::string& value);

// The index of the name that the node gives, or -1 after adding a problem.
int64_t read_name(const Node& node,
                  const ReadPlace& place,
                  const std::vector<std::string_view>& names);
// The items of a list; from the command line "[1, 2]" or "1,2". nullopt after adding a problem.
std::optional<std::vector<Node>> read_list(const Node& node, const ReadPlace& place);
// The table of a section, nullptr after adding a problem.
const Table* read_table(const Node& node, const ReadPlace& place);
void add_wrong_type(const Node& node, const ReadPlace& place, std::string_view expected);
// The command line's "--key=" and JSON's null: no value.
bool is_absent(const Node& node);

template <Section T>
void read_section(const Table& table, const ReadPlace& place, T& value);

template <class T>
bool read_any(const Node& node, const ReadPlace& place, T& value) {
  if constexpr (Section<T>) {
    const Table* table = read_table(node, place);
    if (!table) return false;
    read_section(*table, place, value);
    return true;
  } else if constexpr (NamedEnum<T>) {
    const EnumNames<T> names = enum_names(T{});
    std::vector<std::string_view> texts;
    for (const auto& [item, text] : names) texts.push_back(text);
    const int64_t index = read_name(node, place, texts);
    if (index >= 0) value = names[static_cast<std::size_t>(index)].first;
    return index >= 0;
  } else if constexpr (IsOptional<T>::value) {
    if (is_absent(node)) {
      value.reset();
      return true;
    }
    typename T::value_type inner{};
    if (!read_any(node, place, inner)) return false;
    value = std::move(inner);
    return true;
  } else if constexpr (IsVector<T>::value) {
    const auto items = read_list(node, place);
    if (!items) return false;
    T list;
    bool good = true;
    for (std::size_t i = 0; i < items->size(); ++i) {
      typename T::value_type item{};
      const ReadPlace inner{
          place.path + "[" + std::to_string(i) + "]", place.rule, place.problems, place.unknown};
      good = read_any((*items)[i], inner, item) && good;
      list.push_back(std::move(item));
    }
    if (good) value = std::move(list);
    return good;
  } else {
    return read_value(node, place, value);
  }
}

// Tells `problems` the value that a key kept or was given, for cross-field messages.
template <class T>
void record_value(Problems& problems, const std::string& path, const std::string& where, T& value);

// The field visitor that reads.
class Reader {
 public:
  Reader(const Table& table, const ReadPlace& place) : table_(table), place_(place) {}

  template <class T>
  void operator()(std::string_view name,
                  T& value,
                  std::string_view /*help*/,
                  const Rule& rule = any_value) {
    known_.emplace_back(name);
    const ReadPlace place{key(place_.path, name), rule, place_.problems, place_.unknown};
    const Node* node = table_.find(name);
    if (node) {
      if (!read_any(*node, place, value)) place_.problems.set_unread(place.path);
    } else if constexpr (Section<T>) {
      read_section(Table{}, place, value);  // its rules hold for defaults too
    }
    if constexpr (!Section<T>) {
      record_value(place_.problems, place.path, node ? node->where : std::string(), value);
    }
  }

  void note_unknown_keys();

 private:
  const Table& table_;
  const ReadPlace& place_;
  std::vector<std::string> known_;
};

template <Section T>
void read_section(const Table& table, const ReadPlace& place, T& value) {
  Reader reader(table, place);
  T::fields(value, reader);
  reader.note_unknown_keys();
  if constexpr (Checked<T>) static_cast<const T&>(value).check(place.problems, place.path);
}

// Adds one problem per unknown key, with the nearest of the known keys.
void add_unknown_keys(const std::vector<UnknownKey>& unknown,
                      const std::vector<std::string>& known,
                      Problems& problems);

}  // namespace reynard::config

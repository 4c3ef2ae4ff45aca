#pragma once
// One field list per config struct serves TOML, JSON, the command line, --help and error messages:
//
//   struct OptimizerConfig {
//     double learning_rate = 1e-3;
//     static void fields(auto& self, auto&& field) {
//       field("learning_rate", self.learning_rate, "peak learning rate", config::positive);
//     }
//   };
//
// A field's type is bool, int64_t, double, std::string, an enum with an `enum_names` overload, a
// nested config struct, or std::optional / std::vector of these. A rule on a list or an optional
// holds for each value in it. Cross-field rules go into an optional
//   void check(config::Problems& problems, const std::string& path) const;
// where path is the dotted key of the struct, empty at the top: name a field with
// config::key(path, "num_heads"). Fields that could not be read have their defaults there; what
// check says of them, or with their names, is left out.
//
// This header is all that a config struct needs; config.h reads, writes and describes such structs.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reynard::config {

// What a number must satisfy; the text is used in messages: "must be {text}". Infinity and NaN
// satisfy no rule.
struct Rule {
  double min = -1.7976931348623157e308;
  double max = 1.7976931348623157e308;
  bool min_open = false;  // true: strictly greater than min
  std::string_view text;  // empty: no rule
};

inline constexpr Rule any_value{};
inline constexpr Rule positive{0, 1.7976931348623157e308, true, "> 0"};
inline constexpr Rule non_negative{0, 1.7976931348623157e308, false, ">= 0"};
inline constexpr Rule non_positive{-1.7976931348623157e308, 0, false, "<= 0"};
inline constexpr Rule fraction{0, 1, false, "between 0 and 1"};
inline constexpr Rule finite{
    -1.7976931348623157e308, 1.7976931348623157e308, false, "a finite number"};

// The dotted key of a field: key("model", "num_heads") is "model.num_heads".
std::string key(std::string_view path, std::string_view name);

// Text of a file to be shown: control characters as \x1b, those of writing direction as \u202e.
std::string printable(std::string_view text);

// Collects every mistake of a file, so that all are reported together.
class Problems {
 public:
  // source: the file's name, shown where a line is not known.
  explicit Problems(std::string source = {}) : source_(std::move(source)) {}

  // path: dotted key ("model.num_heads"); where: "file.toml:12" or "--model.num_heads", may be
  // empty. message: what is wrong with it ("must be > 0").
  void add(std::string_view where, std::string_view path, std::string_view message);
  // Adds a cross-field problem; the place and the value are looked up from the path:
  // add("model.num_heads", "must divide model.hidden_size = 64") gives
  // "file.toml:12: model.num_heads = 7; must divide model.hidden_size = 64".
  void add(std::string_view path, std::string_view message);
  bool empty() const { return lines_.empty(); }
  std::size_t size() const { return lines_.size(); }
  const std::vector<std::string>& lines() const { return lines_; }
  // Throws reynard::Error with one line per problem, if there are any.
  void throw_if_any() const;

  // A value that could not be read: cross-field problems that name it would only confuse.
  void set_unread(std::string path) { unread_.push_back(std::move(path)); }
  // Says where a key was read (empty: it kept its default) and the value it has now.
  void set_value(std::string path, std::string where, std::string value);
  // Says what the file calls a key; cross-field problems then name it so, the last name given.
  void set_name(std::string path, std::string name) { names_[std::move(path)] = std::move(name); }
  bool has_name(std::string_view path) const { return names_.contains(path); }

 private:
  struct Seen {
    std::string path;
    std::string where;
    std::string value;
  };
  std::string source_;
  std::vector<std::string> lines_;
  // Whether a cross-field problem is about a value that could not be read.
  bool names_unread(std::string_view path, std::string_view message) const;
  std::string with_names_of_file(std::string_view text) const;

  std::vector<Seen> seen_;
  std::map<std::string, std::string, std::less<>> names_;  // path -> what the file calls it
  std::vector<std::string> unread_;
};

// An enum E is a field type when `enum_names(E)` (found by argument-dependent lookup, the argument
// only selects the type) returns its values with their names, in the order shown in help.
template <class E>
using EnumNames = std::vector<std::pair<E, std::string_view>>;

// The name of a value; empty for one that is not listed.
template <class E>
std::string_view name_of(E value) {
  for (const auto& [item, name] : enum_names(value)) {
    if (item == value) return name;
  }
  return {};
}

// The value of a name, or nothing.
template <class E>
std::optional<E> value_named(std::string_view name) {
  for (const auto& [item, text] : enum_names(E{})) {
    if (text == name) return item;
  }
  return {};
}

}  // namespace reynard::config

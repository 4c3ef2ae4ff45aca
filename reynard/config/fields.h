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
// nested config struct, or std::optional / std::vector of these. Cross-field rules go into an
// optional
//   void check(config::Problems& problems, const std::string& path) const;

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reynard::config {

// What a number must satisfy; the text is used in messages: "must be {text}".
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

// Collects every mistake of a file, so that all are reported together.
class Problems {
 public:
  // path: dotted key ("model.num_heads"); where: "file.toml:12" or "--model.num_heads", may be
  // empty.
  void add(std::string_view where, std::string_view path, std::string_view message);
  // Adds a cross-field problem; its line is looked up from the path when the file is known.
  void add(std::string_view path, std::string_view message) { add({}, path, message); }
  bool empty() const { return lines_.empty(); }
  // Throws reynard::Error with one line per problem, if there are any.
  void throw_if_any() const;

  void set_where(std::string path, std::string where);  // file and line of a key that was read

 private:
  std::vector<std::string> lines_;
  std::vector<std::pair<std::string, std::string>> where_;
};

// An enum E is a field type when `enum_names(E)` (found by argument-dependent lookup, the argument
// only selects the type) returns its values with their names, in the order shown in help.
template <class E>
using EnumNames = std::vector<std::pair<E, std::string_view>>;

}  // namespace reynard::config

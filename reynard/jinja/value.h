#pragma once
// The values of a chat template while it runs: Python's, as far as templates use them. Texts, lists
// and maps are shared and never changed, but for the fields of a namespace.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace reynard::jinja {

struct Statement;
struct Scope;  // of a template that runs

// Longest text that a template may make, in bytes.
constexpr std::size_t kMaxText = std::size_t{256} << 20U;
// Bytes that an item of a list or a map counts as, beside what is in it.
constexpr int64_t kItemBytes = 1024;
// to += text. Throws reynard::Error, before it allocates, where that is longer than kMaxText.
void append_text(std::string& to, std::string_view text);

class Value {
 public:
  struct Undefined {};
  struct None {};
  using List = std::vector<Value>;
  using Map = std::vector<std::pair<std::string, Value>>;  // in the order of insertion
  struct Namespace {
    Map fields;
  };
  struct Function {
    std::string name;
    const Statement* macro = nullptr;  // nothing: built in
    std::weak_ptr<Scope> around = {};  // what the macro sees beside its parameters
  };

  Value() = default;
  Value(None none) : data_(none) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::string value);
  Value(const char* value) : Value(std::string(value)) {}
  // Throw reynard::Error for lists and maps that are too deep inside each other.
  Value(List value);
  Value(Map value);
  Value(Function value) : data_(std::move(value)) {}
  Value(std::shared_ptr<Namespace> value) : data_(std::move(value)), holds_namespace_(true) {}

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  // Null unless the value is of this type.
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const std::string* text() const;
  const List* list() const;
  const Map* map() const;  // of a namespace: its fields
  const Function* function() const { return std::get_if<Function>(&data_); }
  std::shared_ptr<Namespace> space() const;
  // Booleans count as 0 and 1.
  bool is_number() const { return boolean() || integer() || real(); }
  double as_real() const;

  // It is one, or one is inside: such a value must not become a field of a namespace.
  bool holds_namespace() const { return holds_namespace_; }

  // Bytes of a text; of a list or a map those of its items, each with what is in it, as if nothing
  // were shared; of a namespace those of its fields alone. 0 for all others.
  int64_t weight() const;

  bool is_true() const;
  // "a string", "a list", ... for messages.
  std::string_view type_name() const;

 private:
  void hold(const Value& inner, std::size_t key_bytes);

  std::variant<Undefined,
               None,
               bool,
               int64_t,
               double,
               std::shared_ptr<const std::string>,
               std::shared_ptr<const List>,
               std::shared_ptr<const Map>,
               std::shared_ptr<Namespace>,
               Function>
      data_;
  int64_t weight_ = 0;
  int32_t depth_ = 0;  // of lists and maps inside each other
  bool holds_namespace_ = false;
};

bool equal(const Value& a, const Value& b);
// As {{ }} writes it. Throws reynard::Error for lists, maps and functions.
std::string to_text(const Value& value);
struct JsonOptions {
  int64_t indent = -1;        // below 0: on one line
  bool ensure_ascii = false;  // other characters as escapes
};
// As Python's json.dumps. Throws as append_text() does.
std::string to_json(const Value& value, const JsonOptions& options);
// The value under a key; undefined where there is none.
Value find(const Value::Map& map, std::string_view key);
// Sets it; a key that is not there yet comes last.
void put(Value::Map& map, std::string key, Value value);
// A text as its characters (UTF-8 code points; bytes that are none stand alone), and their number.
std::vector<std::string_view> characters(std::string_view text);
int64_t num_characters(std::string_view text);

}  // namespace reynard::jinja

#include "reynard/jinja/template.h"

#include "reynard/jinja/budget.h"
#include "reynard/jinja/builtins.h"
#include "reynard/jinja/operators.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <utility>

namespace reynard::jinja {

namespace {

using Node = Expression::Kind;

constexpr int64_t kKeyBytes = 64;  // what comparing a key of a map counts as
constexpr int64_t kMaxRange = 100'000;
constexpr int64_t kMaxCalls = 10;  // of macros inside each other

constexpr std::array<std::string_view, 5> kFunctions = {
    "raise_exception", "strftime_now", "namespace", "range", "dict"};

enum class Flow { kNext, kBreak, kContinue };

std::string time_now(const std::string& format) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 256> text{};
  if (format.size() > 64) throw Error("strftime_now: the format is too long");
  return {text.data(), std::strftime(text.data(), text.size(), format.c_str(), &local)};
}

}  // namespace

// Names that statements set, within those around them.
struct Scope {
  std::map<std::string, Value, std::less<>> names = {};
  std::shared_ptr<Scope> outer = {};
};

namespace {

class Run {
 public:
  explicit Run(const Value::Map& variables) {
    for (const auto& [name, value] : variables) set(name, value);
  }

  std::string text(const std::vector<Statement>& statements) {
    execute(statements);
    return std::move(out_);
  }

 private:
  void spend(int64_t bytes) { budget_.spend(bytes); }
  // Lists and maps are shared: only what makes one or goes through it costs its length.
  void spend_items(const Value& value) { budget_.spend_items(value); }
  void write(const std::string& text) {
    spend(std::ssize(text));
    append_text(out_, text);
  }

  void set(const std::string& name, Value value) {
    scope_->names.insert_or_assign(name, std::move(value));
  }
  void open_scope() { scope_ = std::make_shared<Scope>(Scope{.outer = scope_}); }
  void close_scope() { scope_ = scope_->outer; }

  Flow execute_inside(const std::vector<Statement>& statements) {
    open_scope();
    const Flow flow = execute(statements);
    close_scope();
    return flow;
  }

  Flow execute(const std::vector<Statement>& statements) {
    for (const Statement& statement : statements) {
      const Flow flow = execute(statement);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow execute(const Statement& statement) {
    spend(0);
    switch (statement.kind) {
      case Statement::Kind::kText:
        write(statement.text);
        break;
      case Statement::Kind::kPrint:
        at(statement.line, [&] { write(to_text(evaluate(*statement.value))); });
        break;
      case Statement::Kind::kSet:
        at(statement.line, [&] { assign(statement, evaluate(*statement.value)); });
        break;
      case Statement::Kind::kSetBlock: {
        std::string outer = std::exchange(out_, {});
        execute_inside(statement.body);
        const std::string inner = std::exchange(out_, std::move(outer));
        at(statement.line, [&] { assign(statement, inner); });
        break;
      }
      case Statement::Kind::kBlock:
        return execute_inside(statement.body);
      case Statement::Kind::kFor:
        return loop(statement);
      case Statement::Kind::kIf: {
        bool holds = false;
        at(statement.line, [&] { holds = evaluate(*statement.value).is_true(); });
        return execute(holds ? statement.body : statement.otherwise);
      }
      case Statement::Kind::kMacro:
        set(statement.text, Value::Function{statement.text, &statement, scope_});
        break;
      case Statement::Kind::kBreak:
        return Flow::kBreak;
      case Statement::Kind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  // Errors inside say the line, once.
  template <class Work>
  void at(int64_t line, Work work) {
    try {
      work();
    } catch (const Error& error) {
      const std::string what = error.what();
      if (what.starts_with("line ")) throw;
      throw Error(fmt::format("line {}: {}", line, what));
    }
  }

  void assign(const Statement& target, const Value& value) {
    if (!target.text.empty()) {
      const auto space = lookup(target.names[0]).space();
      if (!space) throw Error(fmt::format("{} is no namespace", target.names[0]));
      if (value.holds_namespace()) throw Error("a namespace cannot hold a namespace");
      put(space->fields, target.text, value);
      return;
    }
    bind(target.names, value);
  }

  void bind(const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) return set(names[0], value);
    const Value::List items = items_of(value, budget_);
    if (items.size() != names.size()) throw Error("a list has another number of items than names");
    for (std::size_t i = 0; i < names.size(); ++i) set(names[i], items[i]);
  }

  // A break or continue that is meant for the loop around it.
  Flow loop(const Statement& statement) {
    Value::List items;
    at(statement.line, [&] { items = items_of(evaluate(*statement.value), budget_); });
    if (statement.condition) {
      std::erase_if(items, [&](const Value& item) {
        open_scope();
        bool keeps = false;
        at(statement.line, [&] {
          bind(statement.names, item);
          keeps = evaluate(*statement.condition).is_true();
        });
        close_scope();
        return !keeps;
      });
    }
    bool is_through = false;  // the body, once: Jinja's else is for loops of which it never was
    const auto count = std::ssize(items);
    for (int64_t i = 0; i < count; ++i) {
      spend(0);
      const auto index = static_cast<std::size_t>(i);
      open_scope();
      at(statement.line, [&] { bind(statement.names, items[index]); });
      set("loop",
          Value::Map{{"index", i + 1},
                     {"index0", i},
                     {"revindex", count - i},
                     {"revindex0", count - i - 1},
                     {"first", i == 0},
                     {"last", i + 1 == count},
                     {"length", count},
                     {"depth", int64_t{1}},  // of recursive loops, which there are none of
                     {"depth0", int64_t{0}},
                     {"previtem", i > 0 ? items[index - 1] : Value()},
                     {"nextitem", i + 1 < count ? items[index + 1] : Value()}});
      const Flow flow = execute(statement.body);
      close_scope();
      is_through |= flow == Flow::kNext;
      if (flow == Flow::kBreak) break;
    }
    return is_through ? Flow::kNext : execute_inside(statement.otherwise);
  }

  Value lookup(std::string_view name) const {
    for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->outer.get()) {
      const auto found = scope->names.find(name);
      if (found != scope->names.end()) return found->second;
    }
    if (std::ranges::find(kFunctions, name) != kFunctions.end()) {
      return Value::Function{std::string(name)};
    }
    return {};
  }

  Value evaluate(const Expression& e) {
    Value value = value_of(e);
    spend(value.text() ? std::ssize(*value.text()) : 0);
    if (makes_values(e.kind)) spend_items(value);
    return value;
  }

  // What an operator, filter, test, method or slice may go through.
  Value evaluate_items(const Expression& e) {
    Value value = evaluate(e);
    spend_items(value);
    return value;
  }

  Value filtered(const Expression& e) {
    const bool looks_inside = e.name != "length" && e.name != "count";
    const Expression& input = *e.operands[0];
    const Value value = looks_inside ? evaluate_items(input) : evaluate(input);
    return apply_filter(e.name, value, arguments(e, 1), budget_);
  }

  // Rather than to share those that are there.
  static bool makes_values(Node kind) {
    return kind != Node::kLiteral && kind != Node::kName && kind != Node::kAttribute &&
           kind != Node::kItem && kind != Node::kChoice;
  }

  Value value_of(const Expression& e) {
    const auto operand = [&](std::size_t i) { return evaluate(*e.operands[i]); };
    switch (e.kind) {
      case Node::kLiteral:
        return e.literal;
      case Node::kName:
        return lookup(e.name);
      case Node::kList:
      case Node::kMap:
        return collection(e);
      case Node::kAttribute:
        return attribute(operand(0), e.name);
      case Node::kItem:
        return item_of(operand(0), operand(1));
      case Node::kSlice:
        return slice(e);
      case Node::kCall:
        return call(e);
      case Node::kMethod:
        return call_method(e.name, operand(0), arguments(e, 1), budget_);
      case Node::kFilter:
        return filtered(e);
      case Node::kTest:
        return apply_test(e.name,
                          e.operands.size() > 1 ? evaluate_items(*e.operands[0]) : operand(0),
                          arguments(e, 1));
      case Node::kUnary: {
        const Value value = operand(0);
        if (e.name == "not") return !value.is_true();
        return e.name == "-" ? arithmetic("-", int64_t{0}, value) : value;
      }
      case Node::kBinary:
        return binary(e);
      case Node::kChoice:
        return operand(operand(0).is_true() ? 1 : 2);
    }
    return {};
  }

  Value collection(const Expression& e) {
    if (e.kind == Node::kList) {
      Value::List list;
      for (const ExpressionPtr& item : e.operands) list.push_back(evaluate(*item));
      return list;
    }
    Value::Map map;
    for (std::size_t i = 0; i < e.operands.size(); i += 2) {
      const Value key = evaluate(*e.operands[i]);
      if (!key.text()) {
        throw Error(
            fmt::format("a key of a map is {}; only strings are supported", key.type_name()));
      }
      spend(std::ssize(map) * kKeyBytes);  // the keys that it is compared with
      put(map, *key.text(), evaluate(*e.operands[i + 1]));
    }
    return map;
  }

  static Value attribute(const Value& object, const std::string& name) {
    if (object.is_undefined()) {
      throw Error(fmt::format("{:?} of what is undefined is asked for", name));
    }
    return object.map() ? find(*object.map(), name) : Value();
  }

  Value slice(const Expression& e) {
    const Value object = evaluate_items(*e.operands[0]);
    std::array<Value, 3> parts;
    for (std::size_t i = 0; i < 3; ++i) {
      if (e.operands[i + 1]) parts[i] = evaluate(*e.operands[i + 1]);
    }
    const bool is_text = object.text() != nullptr;
    if (!is_text && !object.list()) {
      throw Error(fmt::format("{} has no slices", object.type_name()));
    }
    if (is_text) return slice(*object.text(), parts);
    const Value::List& items = *object.list();
    Value::List list;
    for (const int64_t i : slice_of(std::ssize(items), parts[0], parts[1], parts[2])) {
      list.push_back(items[static_cast<std::size_t>(i)]);
    }
    return list;
  }

  std::string slice(const std::string& text, const std::array<Value, 3>& parts) {
    constexpr int64_t kPlaceBytes = sizeof(std::string_view) + sizeof(int64_t);
    spend(num_characters(text) * kPlaceBytes);
    const std::vector<std::string_view> all = characters(text);
    std::string out;
    for (const int64_t i : slice_of(std::ssize(all), parts[0], parts[1], parts[2])) {
      out += all[static_cast<std::size_t>(i)];
    }
    return out;
  }

  Value binary(const Expression& e) {
    const std::string& op = e.name;
    const Value a = evaluate(*e.operands[0]);
    if (op == "and") return a.is_true() ? evaluate(*e.operands[1]) : a;
    if (op == "or") return a.is_true() ? a : evaluate(*e.operands[1]);
    const Value b = evaluate(*e.operands[1]);
    spend_items(a), spend_items(b);
    if (op == "==") return equal(a, b);
    if (op == "!=") return !equal(a, b);
    if (op == "in") return contains(b, a);
    if (op == "<") return is_less(a, b);
    if (op == ">") return is_less(b, a);
    if (op == "<=") return !is_less(b, a);
    if (op == ">=") return !is_less(a, b);
    if (op == "~") return joined(to_text(a), to_text(b));
    if (op == "+" && a.text() && b.text()) return joined(*a.text(), *b.text());
    if (op == "+" && a.list() && b.list()) {
      Value::List list = *a.list();
      list.insert(list.end(), b.list()->begin(), b.list()->end());
      return list;
    }
    return arithmetic(op, a, b);
  }

  static std::string joined(std::string a, const std::string& b) {
    append_text(a, b);
    return a;
  }

  Arguments arguments(const Expression& e, std::size_t first) {
    Arguments out;
    for (std::size_t i = first; i < e.operands.size(); ++i) {
      out.positional.push_back(evaluate_items(*e.operands[i]));
    }
    for (const auto& [name, value] : e.named) out.named.emplace_back(name, evaluate(*value));
    return out;
  }

  Value call(const Expression& e) {
    const Value callee = lookup(e.name);
    if (!callee.function()) throw Error(fmt::format("{:?} is no function", e.name));
    const Arguments given = arguments(e, 0);
    if (callee.function()->macro != nullptr) return call_macro(*callee.function(), given);
    const std::string& name = callee.function()->name;
    if (name == "raise_exception") throw Error(to_text(given.at(0)));
    if (name == "strftime_now") return time_now(to_text(given.at(0)));
    if (name == "range") return range(given);
    Value::Map fields;
    if (!given.positional.empty()) {
      const Value& map = given.positional.front();
      if (!map.map()) throw Error(fmt::format("{}: expected a map, or names with values", name));
      fields = *map.map();
    }
    const int64_t named = std::ssize(given.named);
    spend(named * (std::ssize(fields) + named) *
          kKeyBytes);  // the keys that they are compared with
    for (const auto& [field, value] : given.named) put(fields, field, value);
    if (name == "dict") return fields;
    return std::make_shared<Value::Namespace>(Value::Namespace{std::move(fields)});
  }

  static Value range(const Arguments& given) {
    std::vector<int64_t> parts;
    for (const Value& part : given.positional) {
      if (!part.integer()) throw Error("range: an argument is no integer");
      parts.push_back(*part.integer());
    }
    if (parts.empty() || parts.size() > 3) throw Error("range: expected 1 to 3 arguments");
    const int64_t begin = parts.size() > 1 ? parts[0] : 0;
    const int64_t end = parts.size() > 1 ? parts[1] : parts[0];
    const int64_t step = parts.size() > 2 ? parts[2] : 1;
    const int64_t limit = kMaxRange;
    const bool is_small = std::max({begin, end, step}) <= limit &&
                          std::min({begin, end, step}) >= -limit && step != 0;
    if (!is_small) throw Error("range: a number is too large, or the step is 0");
    Value::List list;
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) list.emplace_back(i);
    return list;
  }

  // A macro sees its parameters, defaults those before them too, and what is around its definition.
  Value call_macro(const Value::Function& function, const Arguments& given) {
    const Statement& macro = *function.macro;
    spend(std::ssize(given.named) * std::ssize(macro.names));  // names that are compared
    check_arguments(macro, given);
    if (++calls_ > kMaxCalls) throw Error("macros call each other too often");
    const std::shared_ptr<Scope> around = function.around.lock();
    if (!around) {
      throw Error(
          fmt::format("the macro {} belongs to a part of the template that has ended", macro.text));
    }
    const std::shared_ptr<Scope> caller = std::exchange(scope_, around);
    open_scope();
    for (std::size_t i = 0; i < macro.names.size(); ++i) {
      set(macro.names[i], given.at(i, macro.names[i]));
    }
    for (std::size_t i = given.positional.size(); i < macro.names.size(); ++i) {
      const bool is_given = names_argument(given, macro.names[i]);
      if (!is_given && macro.defaults[i]) set(macro.names[i], evaluate(*macro.defaults[i]));
    }
    std::string outer = std::exchange(out_, {});
    execute(macro.body);
    scope_ = caller;
    --calls_;
    return std::exchange(out_, std::move(outer));
  }

  static bool names_argument(const Arguments& given, const std::string& name) {
    return std::ranges::find(given.named, name, &Value::Map::value_type::first) !=
           given.named.end();
  }

  static void check_arguments(const Statement& macro, const Arguments& given) {
    const std::size_t num_given = given.positional.size();
    const auto fail = [&](const std::string& argument) {
      throw Error(fmt::format("the macro {} takes no argument {}", macro.text, argument));
    };
    if (num_given > macro.names.size()) fail(fmt::format("{}", macro.names.size() + 1));
    for (const auto& [name, value] : given.named) {
      const auto place = std::ranges::find(macro.names, name) - macro.names.begin();
      if (place >= std::ssize(macro.names) || place < std::ssize(given.positional)) {
        fail(fmt::format("{:?}", name));
      }
    }
  }

  std::shared_ptr<Scope> scope_ = std::make_shared<Scope>();
  std::string out_;
  Budget budget_;
  int64_t calls_ = 0;
};

}  // namespace

std::string Template::render(const Value::Map& variables) const {
  return Run(variables).text(statements_);
}

}  // namespace reynard::jinja

#include "reynard/jinja/expression_parser.h"

#include "reynard/jinja/builtins.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <initializer_list>
#include <memory>
#include <system_error>
#include <utility>

namespace reynard::jinja {

namespace {

using Kind = Token::Kind;
using Node = Expression::Kind;

class Parser {
 public:
  explicit Parser(TokenReader& reader) : reader_(reader) {}

  // a, b, c is a list.
  ExpressionPtr tuple() {
    ExpressionPtr first = expression();
    if (!reader_.at_operator(",")) return first;
    ExpressionPtr list = node(Node::kList, first->line);
    add(*list, std::move(first));
    while (reader_.take_operator(",")) add(*list, expression());
    return list;
  }

  ExpressionPtr expression() {
    const TokenReader::Depth depth(reader_);
    ExpressionPtr value = choice_free();
    while (reader_.is(Kind::kName, "if")) {
      const int64_t line = reader_.take().line;
      ExpressionPtr condition = choice_free();
      ExpressionPtr otherwise =
          reader_.take_if(Kind::kName, "else") ? expression() : literal(line, Value());
      value = node_of(
          Node::kChoice, line, "", std::move(condition), std::move(value), std::move(otherwise));
    }
    return value;
  }

  ExpressionPtr choice_free() {
    return binary({"or"}, [this] { return binary({"and"}, [this] { return negation(); }); });
  }

 private:
  static ExpressionPtr node(Node kind, int64_t line, std::string name = {}) {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->line = line;
    made->name = std::move(name);
    return made;
  }
  static void count_height(Expression& parent, const ExpressionPtr& child) {
    if (!child) return;
    parent.height = std::max(parent.height, child->height + 1);
    if (parent.height > kMaxDepth) {
      throw Error(fmt::format("line {}: more than {} levels", parent.line, kMaxDepth));
    }
  }
  static void add(Expression& parent, ExpressionPtr child) {
    count_height(parent, child);
    parent.operands.push_back(std::move(child));
  }
  template <class... Operands>
  static ExpressionPtr node_of(Node kind, int64_t line, std::string name, Operands... operands) {
    ExpressionPtr made = node(kind, line, std::move(name));
    (add(*made, std::move(operands)), ...);
    return made;
  }
  static ExpressionPtr literal(int64_t line, Value value) {
    ExpressionPtr made = node(Node::kLiteral, line);
    made->literal = std::move(value);
    return made;
  }

  // Operators of one rank, from the left. Names are operators too.
  template <class Operand>
  ExpressionPtr binary(std::initializer_list<std::string_view> operators, Operand operand) {
    ExpressionPtr left = operand();
    while ((reader_.next().kind == Kind::kOperator || reader_.next().kind == Kind::kName) &&
           std::ranges::find(operators, reader_.next().text) != operators.end()) {
      const Token& op = reader_.take();
      ExpressionPtr right = operand();
      left = node_of(Node::kBinary, op.line, op.text, std::move(left), std::move(right));
    }
    return left;
  }

  ExpressionPtr negation() {
    const TokenReader::Depth depth(reader_);
    if (!reader_.is(Kind::kName, "not")) return comparison();
    const int64_t line = reader_.take().line;
    return node_of(Node::kUnary, line, "not", negation());
  }

  ExpressionPtr comparison() {
    ExpressionPtr left = sum();
    for (bool compared = false; true; compared = true) {
      const Token& op = reader_.next();
      const bool not_in = reader_.is(Kind::kName, "not") && reader_.next(1).text == "in";
      const bool compares =
          op.kind == Kind::kOperator && (op.text == "==" || op.text == "!=" || op.text == "<" ||
                                         op.text == ">" || op.text == "<=" || op.text == ">=");
      if (!compares && !not_in && !reader_.is(Kind::kName, "in")) return left;
      // Python's a < b < c is a < b and b < c.
      if (compared) TokenReader::fail_at(op, "compares a comparison; put one of them in brackets");
      reader_.take();
      if (not_in) reader_.take();
      ExpressionPtr right = sum();
      left = node_of(
          Node::kBinary, op.line, not_in ? "in" : op.text, std::move(left), std::move(right));
      if (not_in) left = node_of(Node::kUnary, op.line, "not", std::move(left));
    }
  }

  ExpressionPtr sum() {
    return binary({"+", "-"}, [this] {
      return binary({"~"}, [this] {
        return binary({"*", "/", "//", "%"}, [this] { return unary(/*with_filters=*/true); });
      });
    });
  }

  ExpressionPtr unary(bool with_filters) {
    const TokenReader::Depth depth(reader_);
    ExpressionPtr value;
    if (reader_.at_operator("-") || reader_.at_operator("+")) {
      const Token& op = reader_.take();
      value = node_of(Node::kUnary, op.line, op.text, unary(/*with_filters=*/false));
    } else {
      value = postfix(primary());
    }
    return with_filters ? filters_and_tests(std::move(value)) : std::move(value);
  }

  ExpressionPtr primary() {
    const Token& token = reader_.take();
    switch (token.kind) {
      case Kind::kString: {
        std::string text = token.text;
        while (reader_.next().kind == Kind::kString) text += reader_.take().text;
        return literal(token.line, std::move(text));
      }
      case Kind::kInteger:
      case Kind::kReal:
        return number(token);
      case Kind::kName:
        return name(token);
      default:
        break;
    }
    if (token.text == "(") return in_brackets(token.line);
    if (token.text == "[") {
      ExpressionPtr list = node(Node::kList, token.line);
      while (!reader_.take_operator("]")) {
        if (!list->operands.empty()) reader_.expect(Kind::kOperator, ",");
        if (reader_.take_operator("]")) break;
        add(*list, expression());
      }
      return list;
    }
    if (token.text == "{") return map(token.line);
    TokenReader::fail_at(token, "is unexpected; expected a value");
  }

  static ExpressionPtr number(const Token& token) {
    const char* const end = token.text.data() + token.text.size();
    if (token.kind == Kind::kReal) {
      double value = 0;
      std::from_chars(token.text.data(), end, value);
      return literal(token.line, value);
    }
    int64_t value = 0;
    if (std::from_chars(token.text.data(), end, value).ec != std::errc()) {
      TokenReader::fail_at(token, "is too large");
    }
    return literal(token.line, value);
  }

  static ExpressionPtr name(const Token& token) {
    const std::string& text = token.text;
    if (text == "true" || text == "True") return literal(token.line, true);
    if (text == "false" || text == "False") return literal(token.line, false);
    if (text == "none" || text == "None") return literal(token.line, Value::None());
    return node(Node::kName, token.line, text);
  }

  // (a), or the list (a, b).
  ExpressionPtr in_brackets(int64_t line) {
    if (reader_.take_operator(")")) return node(Node::kList, line);
    ExpressionPtr value = expression();
    if (reader_.at_operator(",")) {
      value = node_of(Node::kList, line, "", std::move(value));
      while (reader_.take_operator(",") && !reader_.at_operator(")")) add(*value, expression());
    }
    reader_.expect(Kind::kOperator, ")");
    return value;
  }

  ExpressionPtr map(int64_t line) {
    ExpressionPtr made = node(Node::kMap, line);
    while (!reader_.take_operator("}")) {
      if (!made->operands.empty()) reader_.expect(Kind::kOperator, ",");
      if (reader_.take_operator("}")) break;
      const Token& token = reader_.next();
      ExpressionPtr key = expression();
      if (key->kind == Node::kLiteral && !key->literal.text()) {
        TokenReader::fail_at(token, "is a key of a map; only strings are supported");
      }
      add(*made, std::move(key));
      reader_.expect(Kind::kOperator, ":");
      add(*made, expression());
    }
    return made;
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    while (true) {
      const int64_t line = reader_.next().line;
      if (reader_.take_operator(".")) {
        const Token& token = reader_.take();
        if (token.kind != Kind::kName && token.kind != Kind::kInteger) {
          TokenReader::fail_at(token, "is unexpected; expected a name");
        }
        const bool of_loop = value->kind == Node::kName && value->name == "loop";
        if (of_loop && (token.text == "cycle" || token.text == "changed")) {
          TokenReader::fail_at(token, "is no supported name of loop");
        }
        if (!reader_.at_operator("(")) {
          value = node_of(Node::kAttribute, line, token.text, std::move(value));
          continue;
        }
        if (!is_method(token.text)) TokenReader::fail_at(token, "is no supported method");
        value = node_of(Node::kMethod, line, token.text, std::move(value));
        arguments(*value);
      } else if (reader_.at_operator("[")) {
        value = item(std::move(value));
      } else if (reader_.at_operator("(")) {
        if (value->kind != Node::kName)
          TokenReader::fail_at(reader_.next(), "is unexpected: this cannot be called");
        value = node(Node::kCall, line, value->name);
        arguments(*value);
      } else {
        return value;
      }
    }
  }

  ExpressionPtr item(ExpressionPtr value) {
    const int64_t line = reader_.take().line;
    ExpressionPtr parts[3];
    std::size_t count = 0;
    bool is_slice = false;
    while (true) {
      if (!reader_.at_operator(":") && !reader_.at_operator("]")) parts[count] = expression();
      if (!reader_.at_operator(":") || count == 2) break;
      reader_.take();
      is_slice = true;
      ++count;
    }
    reader_.expect(Kind::kOperator, "]");
    if (is_slice) {
      return node_of(Node::kSlice,
                     line,
                     "",
                     std::move(value),
                     std::move(parts[0]),
                     std::move(parts[1]),
                     std::move(parts[2]));
    }
    if (!parts[0]) throw Error(fmt::format("line {}: an index is missing", line));
    return node_of(Node::kItem, line, "", std::move(value), std::move(parts[0]));
  }

  void arguments(Expression& call) {
    reader_.expect(Kind::kOperator, "(");
    bool first = true;
    while (!reader_.take_operator(")")) {
      if (!first) reader_.expect(Kind::kOperator, ",");
      first = false;
      if (reader_.take_operator(")")) break;
      if (reader_.next().kind == Kind::kName && reader_.next(1).kind == Kind::kOperator &&
          reader_.next(1).text == "=") {
        std::string key = reader_.take().text;
        reader_.take();
        ExpressionPtr value = expression();
        count_height(call, value);
        call.named.emplace_back(std::move(key), std::move(value));
      } else {
        add(call, expression());
      }
    }
  }

  ExpressionPtr filters_and_tests(ExpressionPtr value) {
    while (true) {
      if (reader_.take_operator("|")) {
        const Token& filter = reader_.next();
        const std::string text = reader_.expect_name();
        if (!is_filter(text)) TokenReader::fail_at(filter, "is no supported filter");
        value = node_of(Node::kFilter, filter.line, text, std::move(value));
        if (reader_.at_operator("(")) arguments(*value);
      } else if (reader_.take_if(Kind::kName, "is")) {
        value = test(std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr test(ExpressionPtr value) {
    const bool negated = reader_.take_if(Kind::kName, "not");
    const Token& token = reader_.next();
    std::string text = reader_.expect_name();
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
    if (!is_test(text)) TokenReader::fail_at(token, "is no supported test");
    if (reader_.is(Kind::kName, "is")) {
      TokenReader::fail_at(reader_.next(), "tests a test; put one of them in brackets");
    }
    value = node_of(Node::kTest, token.line, text, std::move(value));
    const bool wants_value = text == "in" || text == "eq" || text == "equalto" || text == "ne";
    if (reader_.at_operator("(")) {
      arguments(*value);
    } else if (wants_value) {
      add(*value, postfix(primary()));
    }
    return negated ? node_of(Node::kUnary, token.line, "not", std::move(value)) : std::move(value);
  }

  TokenReader& reader_;
};

}  // namespace

ExpressionPtr parse_expression(TokenReader& reader) {
  return Parser(reader).expression();
}

ExpressionPtr parse_operand(TokenReader& reader) {
  return Parser(reader).choice_free();
}

ExpressionPtr parse_tuple(TokenReader& reader) {
  return Parser(reader).tuple();
}

}  // namespace reynard::jinja

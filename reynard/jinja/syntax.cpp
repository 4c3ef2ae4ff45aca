#include "reynard/jinja/syntax.h"

#include "reynard/jinja/expression_parser.h"
#include "reynard/jinja/token_reader.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>

namespace reynard::jinja {

namespace {

using Kind = Token::Kind;

class TemplateParser {
 public:
  explicit TemplateParser(std::string_view source) : reader_(tokens_of(source)) {}

  std::vector<Statement> whole() {
    std::vector<Statement> statements = block({});
    if (reader_.next().kind != Kind::kEnd) {
      TokenReader::fail_at(reader_.next(), "is unexpected");
    }
    return statements;
  }

 private:
  // Statements up to one of these tags, which stays.
  std::vector<Statement> block(std::initializer_list<std::string_view> ends) {
    const TokenReader::Depth depth(reader_);
    std::vector<Statement> statements;
    while (reader_.next().kind != Kind::kEnd) {
      const Token& token = reader_.next();
      if (token.kind == Kind::kText) {
        statements.push_back({.kind = Statement::Kind::kText, .line = token.line});
        statements.back().text = reader_.take().text;
      } else if (token.text == "{{") {
        reader_.take();
        statements.push_back({.kind = Statement::Kind::kPrint, .line = token.line});
        statements.back().value = parse_expression(reader_);
        reader_.expect(Kind::kClose, "}}");
      } else {
        const std::string& tag = reader_.next(1).text;
        if (std::ranges::find(ends, tag) != ends.end()) return statements;
        reader_.take();
        statement(statements);
      }
    }
    if (ends.size() > 0) {
      throw Error(fmt::format("line {}: {:?} is missing", reader_.next().line, *(ends.end() - 1)));
    }
    return statements;
  }
  void end_tag() { reader_.expect(Kind::kClose, "%}"); }
  void end_block(std::string_view name) {
    reader_.expect(Kind::kOpen, "{%");
    reader_.expect(Kind::kName, name);
    end_tag();
  }

  // Of a tag that is no loop, nor part of one that it stands in.
  std::vector<Statement> body_of(std::string_view end) {
    const int64_t outer = std::exchange(num_loops_, 0);
    std::vector<Statement> body = block({end});
    num_loops_ = outer;
    end_block(end);
    return body;
  }

  void statement(std::vector<Statement>& out) {
    const Token& tag = reader_.take();
    if (tag.text == "set") return out.push_back(set_statement(tag.line));
    if (tag.text == "for") return out.push_back(for_statement(tag.line));
    if (tag.text == "if") return out.push_back(if_statement(tag.line));
    if (tag.text == "macro") return out.push_back(macro_statement(tag.line));
    if (tag.text == "break" || tag.text == "continue") {
      if (num_loops_ == 0) TokenReader::fail_at(tag, "is outside of a loop");
      end_tag();
      const bool breaks = tag.text == "break";
      out.push_back({.kind = breaks ? Statement::Kind::kBreak : Statement::Kind::kContinue,
                     .line = tag.line});
      return;
    }
    if (tag.text == "generation") {  // marks what training counts; it writes its content
      end_tag();
      out.push_back({.kind = Statement::Kind::kBlock, .line = tag.line});
      out.back().body = body_of("endgeneration");
      return;
    }
    TokenReader::fail_at(tag, "is no supported tag");
  }

  // a, b or (a, b) or name.field
  std::vector<std::string> targets() {
    const bool in_brackets = reader_.take_operator("(");
    std::vector<std::string> names = {reader_.expect_name()};
    while (reader_.take_operator(",")) names.push_back(reader_.expect_name());
    if (in_brackets) reader_.expect(Kind::kOperator, ")");
    return names;
  }

  Statement set_statement(int64_t line) {
    Statement set{.kind = Statement::Kind::kSet, .line = line};
    set.names = targets();
    if (set.names.size() == 1 && reader_.take_operator("."))
      set.text = reader_.expect_name();  // the field
    if (reader_.take_operator("=")) {
      set.value = parse_tuple(reader_);
      end_tag();
      return set;
    }
    end_tag();
    set.kind = Statement::Kind::kSetBlock;
    set.body = body_of("endset");
    return set;
  }

  Statement for_statement(int64_t line) {
    Statement loop{.kind = Statement::Kind::kFor, .line = line};
    loop.names = targets();
    reader_.expect(Kind::kName, "in");
    loop.value = parse_operand(reader_);
    if (reader_.take_if(Kind::kName, "if")) loop.condition = parse_expression(reader_);
    end_tag();
    ++num_loops_;
    loop.body = block({"else", "endfor"});
    --num_loops_;
    reader_.expect(Kind::kOpen, "{%");
    if (reader_.take_if(Kind::kName, "else")) {
      end_tag();
      loop.otherwise = block({"endfor"});
      reader_.expect(Kind::kOpen, "{%");
    }
    reader_.expect(Kind::kName, "endfor");
    end_tag();
    return loop;
  }

  Statement if_statement(int64_t line) {
    const TokenReader::Depth depth(reader_);
    Statement branch{.kind = Statement::Kind::kIf, .line = line};
    branch.value = parse_operand(reader_);
    end_tag();
    branch.body = block({"elif", "else", "endif"});
    reader_.expect(Kind::kOpen, "{%");
    const Token& tag = reader_.take();
    if (tag.text == "elif") {
      branch.otherwise.push_back(if_statement(tag.line));  // takes the endif
      return branch;
    }
    end_tag();
    if (tag.text == "else") {
      branch.otherwise = block({"endif"});
      end_block("endif");
    }
    return branch;
  }

  Statement macro_statement(int64_t line) {
    Statement macro{.kind = Statement::Kind::kMacro, .line = line};
    macro.text = reader_.expect_name();
    reader_.expect(Kind::kOperator, "(");
    while (!reader_.take_operator(")")) {
      if (!macro.names.empty()) reader_.expect(Kind::kOperator, ",");
      macro.names.push_back(reader_.expect_name());
      macro.defaults.push_back(reader_.take_operator("=") ? parse_expression(reader_) : nullptr);
    }
    end_tag();
    macro.body = body_of("endmacro");
    return macro;
  }

  TokenReader reader_;
  int64_t num_loops_ = 0;  // around what is read, whose break it may be
};

}  // namespace

std::vector<Statement> parse(std::string_view source) {
  return TemplateParser(source).whole();
}

}  // namespace reynard::jinja

#pragma once
// Walks over a template's tokens for the parser, and counts what is inside each other.

#include "reynard/jinja/lexer.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reynard::jinja {

// Templates are files of others: brackets, blocks and chains of operators end here, not with the
// stack. Published ones have fewer than 30.
constexpr int64_t kMaxDepth = 100;

class TokenReader {
 public:
  using Kind = Token::Kind;

  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // Counts what is inside each other, as long as it lives.
  struct Depth {
    explicit Depth(TokenReader& reader) : reader_(reader) {
      if (++reader_.depth_ > kMaxDepth) {
        throw Error(fmt::format("line {}: more than {} levels", reader_.next().line, kMaxDepth));
      }
    }
    ~Depth() { --reader_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    TokenReader& reader_;
  };

  const Token& next(std::size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  const Token& take() {
    const Token& token = next();
    at_ = std::min(at_ + 1, tokens_.size() - 1);
    return token;
  }
  [[noreturn]] static void fail_at(const Token& token, const std::string& what) {
    const std::string name = token.kind == Kind::kEnd ? "the end" : fmt::format("{:?}", token.text);
    throw Error(fmt::format("line {}: {} {}", token.line, name, what));
  }
  bool is(Kind kind, std::string_view text) const {
    return next().kind == kind && next().text == text;
  }
  bool take_if(Kind kind, std::string_view text) {
    if (!is(kind, text)) return false;
    take();
    return true;
  }
  void expect(Kind kind, std::string_view text) {
    if (!take_if(kind, text)) fail_at(next(), fmt::format("is unexpected; expected {:?}", text));
  }
  std::string expect_name() {
    if (next().kind != Kind::kName) fail_at(next(), "is unexpected; expected a name");
    return take().text;
  }
  bool at_operator(std::string_view text) const { return is(Kind::kOperator, text); }
  bool take_operator(std::string_view text) { return take_if(Kind::kOperator, text); }

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int64_t depth_ = 0;
};

}  // namespace reynard::jinja

#include "reynard/jinja/lexer.h"

#include "reynard/jinja/letters.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

namespace reynard::jinja {

namespace {

bool is_name_start(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_';
}
bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}
bool is_name_part(char c) {
  return is_name_start(c) || is_digit(c);
}

std::string utf8_of(uint32_t code) {
  std::string out;
  const auto tail = [&](unsigned shift) {
    out += static_cast<char>(0x80U | ((code >> shift) & 0x3fU));
  };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0U | (code >> 6U));
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0U | (code >> 12U));
    tail(6), tail(0);
  } else {
    out += static_cast<char>(0xf0U | (code >> 18U));
    tail(12), tail(6), tail(0);
  }
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const std::size_t tag = next_tag();
      add_text(tag);
      if (tag == source_.size()) break;
      const char kind = source_[tag + 1];
      at_ = tag + 2;
      if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
      if (kind == '#') {
        const std::size_t end = source_.find("#}", at_);
        if (end == std::string::npos) fail("the comment has no end");
        close(end, '#');
      } else {
        read_tag(kind);
      }
    }
    add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("line {}: {}", line_at(at_), what));
  }
  int64_t line_at(std::size_t position) const {
    return 1 + std::count(source_.begin(),
                          source_.begin() +
                              static_cast<std::ptrdiff_t>(std::min(position, source_.size())),
                          '\n');
  }
  void add(Token::Kind kind, std::string text) {
    // Lines are counted on from the last token.
    line_ += std::count(source_.begin() + static_cast<std::ptrdiff_t>(counted_),
                        source_.begin() + static_cast<std::ptrdiff_t>(std::max(counted_, at_)),
                        '\n');
    counted_ = std::max(counted_, at_);
    tokens_.push_back({kind, std::move(text), line_});
  }

  std::size_t next_tag() const {
    for (std::size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] != '{') continue;
      const char next = source_[i + 1];
      if (next == '%' || next == '{' || next == '#') return i;
    }
    return source_.size();
  }

  // The text up to a tag, less what the tags around it take.
  void add_text(std::size_t end) {
    std::string text = source_.substr(at_, end - at_);
    if (end < source_.size()) {
      const char sign = end + 2 < source_.size() ? source_[end + 2] : '\0';
      if (sign == '-') {
        text.resize(without_blanks_behind(text).size());
      } else if (sign != '+' && source_[end + 1] != '{') {
        const std::size_t line = text.rfind('\n') + 1;  // 0 where there is none
        const bool begins_line = line > 0 || line_starts_;
        if (begins_line && without_blanks_before(std::string_view(text).substr(line)).empty()) {
          text.erase(line);
        }
      }
    }
    if (!text.empty()) add(Token::Kind::kText, text);
  }

  // Behind a tag whose closing mark is at `end`; its sign stands before it.
  void close(std::size_t end, char kind) {
    const char sign = end > 0 ? source_[end - 1] : '\0';
    at_ = end + 2;
    const std::size_t begin = at_;
    if (sign == '-') {
      skip_blanks();
    } else if (sign != '+' && kind != '}' && at_ < source_.size() && source_[at_] == '\n') {
      ++at_;
    }
    line_starts_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  void skip_blanks() {
    at_ = source_.size() - without_blanks_before(std::string_view(source_).substr(at_)).size();
  }

  void read_tag(char kind) {
    const char closing = kind == '{' ? '}' : '%';
    add(Token::Kind::kOpen, kind == '{' ? "{{" : "{%");
    int64_t open_brackets = 0;
    while (true) {
      skip_blanks();
      if (at_ >= source_.size()) fail("the tag has no end");
      const std::size_t sign = source_[at_] == '-' || source_[at_] == '+' ? 1 : 0;
      const std::string_view rest = std::string_view(source_).substr(at_ + sign, 2);
      if (open_brackets == 0 && rest.size() == 2 && rest[0] == closing && rest[1] == '}') {
        add(Token::Kind::kClose, closing == '}' ? "}}" : "%}");
        close(at_ + sign, closing);
        return;
      }
      const char c = source_[at_];
      if (c == '\'' || c == '"') {
        read_string(c);
      } else if (is_digit(c)) {
        read_number();
      } else if (is_name_start(c)) {
        const std::size_t begin = at_;
        while (at_ < source_.size() && is_name_part(source_[at_])) ++at_;
        add(Token::Kind::kName, source_.substr(begin, at_ - begin));
      } else {
        open_brackets += read_operator();
      }
    }
  }

  void read_number() {
    const std::size_t begin = at_;
    while (at_ < source_.size() && is_digit(source_[at_])) ++at_;
    const bool is_real =
        at_ + 1 < source_.size() && source_[at_] == '.' && is_digit(source_[at_ + 1]);
    if (is_real) {
      ++at_;
      while (at_ < source_.size() && is_digit(source_[at_])) ++at_;
    }
    add(is_real ? Token::Kind::kReal : Token::Kind::kInteger, source_.substr(begin, at_ - begin));
  }

  // Returns +1 for an opening bracket, -1 for a closing one.
  int64_t read_operator() {
    constexpr std::array<std::string_view, 25> kOperators = {
        "==", "!=", "<=", ">=", "//", "**", "<", ">", "=", "+", "-", "*", "/",
        "%",  "~",  "(",  ")",  "[",  "]",  "{", "}", ",", ".", ":", "|"};
    for (const std::string_view op : kOperators) {
      if (!std::string_view(source_).substr(at_).starts_with(op)) continue;
      at_ += op.size();
      add(Token::Kind::kOperator, std::string(op));
      if (op == "(" || op == "[" || op == "{") return 1;
      return op == ")" || op == "]" || op == "}" ? -1 : 0;
    }
    fail(fmt::format("{:?} is unexpected", source_.substr(at_, 1)));
  }

  void read_string(char quote) {
    std::string text;
    for (++at_; at_ < source_.size() && source_[at_] != quote; ++at_) {
      if (source_[at_] == '\\') {
        text += read_escape();
      } else {
        text += source_[at_];
      }
    }
    if (at_ >= source_.size()) fail("the string has no end");
    ++at_;
    add(Token::Kind::kString, std::move(text));
  }

  // at_ is at the backslash, then at the last character of the escape.
  std::string read_escape() {
    if (at_ + 1 >= source_.size()) fail("the string has no end");
    const char next = source_[++at_];
    constexpr std::string_view kNames = "ntrfvab\\'\"";
    constexpr std::string_view kMeanings = "\n\t\r\f\v\a\b\\'\"";
    if (next == '\n') return "";  // the string goes on in the next line
    if (next == 'N') fail(fmt::format("the escape {:?} is not supported", "\\N"));
    if (next == 'x') return read_hex_escape(2);
    if (next == 'u') return read_hex_escape(4);
    if (next == 'U') return read_hex_escape(8);
    if (next >= '0' && next <= '7') return read_octal_escape();
    const std::size_t which = kNames.find(next);
    if (which == std::string_view::npos) return {'\\', next};
    return {kMeanings[which]};
  }

  // at_ is before the digits, then at the last of them.
  std::string read_hex_escape(std::size_t num_digits) {
    uint32_t code = 0;
    const char* const begin = source_.data() + at_ + 1;
    const bool whole =
        at_ + num_digits < source_.size() &&
        std::from_chars(begin, begin + num_digits, code, 16).ptr == begin + num_digits;
    if (!whole) fail("an escape in a string is not whole");
    at_ += num_digits;
    const bool is_surrogate = code >= 0xd800 && code < 0xe000;
    if (is_surrogate || code > 0x10ffff) fail("an escape is no character");
    return utf8_of(code);
  }

  // at_ is at the first of up to three digits, then at the last of them.
  std::string read_octal_escape() {
    const char* const begin = source_.data() + at_;
    const std::size_t most = std::min<std::size_t>(3, source_.size() - at_);
    uint32_t code = 0;
    at_ += static_cast<std::size_t>(std::from_chars(begin, begin + most, code, 8).ptr - begin) - 1;
    return utf8_of(code);
  }

  std::string source_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0, counted_ = 0;
  int64_t line_ = 1;
  bool line_starts_ = true;  // the text to come begins a line
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) {
  std::string text;
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool is_return = source[i] == '\r';
    if (is_return && i + 1 < source.size() && source[i + 1] == '\n') continue;
    text += is_return ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  return Lexer(std::move(text)).run();
}

}  // namespace reynard::jinja

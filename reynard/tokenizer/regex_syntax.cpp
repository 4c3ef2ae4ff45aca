// Oniguruma's syntax -> PCRE2's.

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/character_set.h"
#include "reynard/tokenizer/regex.h"
#include "reynard/tokenizer/unicode.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

namespace reynard::tokenizer {

namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kHexDigits = "0123456789abcdefABCDEF";

// Word characters too where \w and \b stand outside [...]: ²³¹¼½¾.
constexpr const char* kLatin1Numbers = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

struct Escape {
  std::string members;  // as they stand in [...]; empty: taken over as it is
  bool negated = false;
  std::size_t length = 2;             // of the escape in the pattern
  std::optional<char32_t> character;  // that \x stands for
  bool known = true;
};

Escape property_escape(std::string_view pattern) {  // pattern begins with \p or \P
  Escape escape;
  const std::size_t close = pattern.find('}');
  // Without a brace \p is the letter there.
  if (pattern.substr(2, 1) != "{" || close == std::string_view::npos) {
    escape.length = std::min<std::size_t>(3, pattern.size());
    escape.known = false;
    return escape;
  }
  std::string_view name = pattern.substr(3, close - 3);
  escape.length = close + 1;
  escape.negated = pattern[1] == 'P';
  if (name.starts_with('^')) {
    escape.negated = !escape.negated;
    name.remove_prefix(1);
  }
  const std::optional<std::string> members = property_members(name);
  escape.known = members.has_value();
  escape.members = members.value_or("");
  return escape;
}

Escape character_escape(std::string_view pattern) {  // pattern begins with \x
  Escape escape;
  const bool braces = pattern.substr(2, 1) == "{";
  std::string_view digits = pattern.substr(braces ? 3 : 2, braces ? 8 : 2);
  digits = digits.substr(0, std::min(digits.find_first_not_of(kHexDigits), digits.size()));
  uint32_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  escape.length = digits.size() + (braces ? 4 : 2);
  escape.known = !digits.empty() && (!braces || pattern.substr(escape.length - 1, 1) == "}");
  escape.character = value;
  return escape;
}

Escape read_escape(std::string_view pattern) {
  Escape escape;
  const char c = pattern.size() > 1 ? pattern[1] : '\0';
  const std::string_view behind = pattern.substr(std::min<std::size_t>(2, pattern.size()), 1);
  escape.negated = c == 'S' || c == 'D' || c == 'H' || c == 'W';
  switch (c) {
    case 'p':
    case 'P':
      return property_escape(pattern);
    case 'x':
      return character_escape(pattern);
    case 's':
    case 'S':
      escape.members = space_members();
      break;
    case 'd':
    case 'D':
      escape.members = digit_members();
      break;
    case 'h':
    case 'H':  // hexadecimal digits there, horizontal spaces here
      escape.members = "0-9a-fA-F";
      break;
    case 'v':  // all vertical spaces here
      escape.members = "\\x{b}";
      break;
    case 'w':
    case 'W':
      escape.members = word_members();
      break;
    case 'o':
      if (behind == "{") escape.length = std::min(pattern.find('}'), pattern.size() - 1) + 1;
      break;
    case 'V':
    case 'Q':
    case 'E':  // letters there, operators here
    case 'X':  // of another version of Unicode
      escape.known = false;
      break;
    case 'g':  // \g1 is a reference here, \g<1> a call in both
      escape.known = behind == "<" || behind == "'";
      escape.length = escape.known ? 2 : std::min<std::size_t>(3, pattern.size());
      break;
    case 'N':
      escape.known = behind != "{";
      escape.length = escape.known ? 2 : 3;
      break;
    default:
      break;
  }
  return escape;
}

// {n}, {n,}, {,m} or {n,m}
struct Interval {
  std::string_view low, high;
  bool comma = false;
  std::size_t length = 0;  // in the pattern; 0: the brace stands for itself
};

Interval read_interval(std::string_view pattern) {  // pattern begins with {
  const auto digits_at = [&](std::size_t at) {
    const std::size_t end = std::min(pattern.find_first_not_of("0123456789", at), pattern.size());
    return pattern.substr(at, end - at);
  };
  Interval interval;
  interval.low = digits_at(1);
  std::size_t at = 1 + interval.low.size();
  interval.comma = pattern.substr(at, 1) == ",";
  if (interval.comma) {
    interval.high = digits_at(at + 1);
    at += 1 + interval.high.size();
  }
  const bool bounded = !interval.low.empty() || !interval.high.empty();
  if (bounded && pattern.substr(at, 1) == "}") interval.length = at + 1;
  return interval;
}

// Reads a pattern from left to right and writes what means the same to PCRE2.
class Translation {
 public:
  explicit Translation(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (in_set_) {
        set_member();
      } else if (c == '[') {
        set_begin();
      } else if (c == '(') {
        group_begin();
      } else if (c == '{') {
        interval();
      } else if (c == ')') {
        if (options_.size() > 1) options_.pop_back();
        take(1);
      } else if (options_.back().extended && c == '#') {
        at_ = std::min(pattern_.find('\n', at_), pattern_.size());
        check_skipped();
      } else {
        literal();
      }
    }
    return std::move(out_);
  }

 private:
  std::string_view rest() const { return pattern_.substr(at_); }
  void take(std::size_t length) {
    out_ += pattern_.substr(at_, length);
    at_ += length;
  }
  [[noreturn]] void refuse(std::string_view what) const {
    throw Error(
        fmt::format("the regular expression {:?} uses {}, which is not supported", pattern_, what));
  }

  void escape() {
    const Escape escape = read_escape(rest());
    const std::string_view text = rest().substr(0, escape.length);
    const char c = text.size() > 1 ? text[1] : '\0';
    const bool caseless = options_.back().caseless;
    if (!escape.known) refuse(text);
    if (caseless) check_octal(text);
    if (escape.character && caseless) return character(*escape.character, text);
    if (in_set_) {
      if (escape.members.empty()) return take(escape.length);
      plain_set_ = false;
      out_ += !escape.negated ? escape.members
              : c == 'S'      ? "\\S\\x{180e}"
                              : other_members(escape.members);
      at_ += escape.length;
      return;
    }
    before_ = '\0';
    if (c == 'b' || c == 'B') {
      const std::string word = fmt::format("[{}{}]", word_members(), kLatin1Numbers);
      const bool ends = c == 'b';
      out_ += fmt::format(
          "(?:(?<={0})(?{1}{0})|(?<!{0})(?{2}{0}))", word, ends ? '!' : '=', ends ? '=' : '!');
    } else if (!escape.members.empty()) {  // without regard to (?i), which is for sets there
      out_ += fmt::format("{}[{}{}{}]{}",
                          caseless ? "(?-i:" : "",
                          escape.negated ? "^" : "",
                          escape.members,
                          c == 'w' || c == 'W' ? kLatin1Numbers : "",
                          caseless ? ")" : "");
    } else {
      return take(escape.length);
    }
    at_ += escape.length;
  }

  void set_begin() {
    before_ = '\0';
    in_set_ = true;
    plain_set_ = true;
    set_at_ = at_;
    take(rest().substr(1, 1) == "^" ? 2 : 1);
    set_members_at_ = out_.size();
    if (rest().substr(0, 1) == "]") out_ += "\\]", ++at_;
  }

  void set_member() {
    const char c = pattern_[at_];
    if (c == '[') refuse(rest().substr(0, 2) == "[:" ? "[:...:] inside [...]" : "[ inside [...]");
    if (rest().substr(0, 2) == "&&") refuse("&& inside [...]");
    if (c != ']') return literal();
    in_set_ = false;
    take(1);
    if (options_.back().caseless && !plain_set_) caseless_set();
  }

  // In (?i) a set has the other cases of its members and, unless it is negated, texts of several
  // characters that are one of them. PCRE2 knows that of single members only.
  void caseless_set() {
    const std::string_view set = pattern_.substr(set_at_, at_ - set_at_);
    std::optional<CaselessMembers> members;
    try {
      members = caseless_members(out_.substr(set_members_at_, out_.size() - 1 - set_members_at_));
    } catch (const Error&) {
      return;  // an error of the whole pattern, too
    }
    const bool repeated = rest().starts_with('+') || rest().starts_with('*');
    const bool exact = members && (set.starts_with("[^") || !members->several ||
                                   (members->several_of_members && repeated));
    if (!exact) refuse(fmt::format("{} in (?i)", set));
    out_.insert(out_.size() - 1, members->added);
  }

  void literal() {
    const CodePoint c = code_point_at(pattern_, at_);
    character(c.value, rest().substr(0, static_cast<std::size_t>(c.length)));
  }

  // Oniguruma's letters without regard to case are also those that fold to several: ss is ß, and
  // so it is over the brackets of a group.
  void character(char32_t c, std::string_view text) {
    const char letter = c < 0x80 ? static_cast<char>(c) : '\0';
    if (c >= 0x80) plain_set_ = false;
    if (options_.back().caseless) {
      if (c >= 0x80 && has_case(c)) refuse(fmt::format("{} in (?i)", text));
      for (const std::string_view pair : {"ff", "fi", "fl", "ss", "st"}) {
        const bool same = (before_ | 0x20) == pair[0] && (letter | 0x20) == pair[1];
        if (same && !in_set_) refuse(fmt::format("{}{} in (?i)", before_, letter));
      }
    }
    const bool skipped = options_.back().extended && (c == ' ' || (c >= '\t' && c <= '\r'));
    take(text.size());
    if (skipped) return check_skipped();
    before_ = in_set_ ? '\0' : letter;
  }

  // Behind what is skipped ? and + quantify there, and belong to the quantifier before it here.
  void check_skipped() const {
    if (!in_set_ && rest().find_first_of("?+*{") == 0)
      refuse("a quantifier behind what is skipped");
  }

  void check_octal(std::string_view text) const {
    const std::size_t end = std::min(rest().find_first_not_of(kDigits, 1), rest().size());
    if (text.starts_with("\\o")) refuse(fmt::format("{} in (?i)", text));
    if (end > 2 || text == "\\0") refuse(fmt::format("{} in (?i)", rest().substr(0, end)));
  }

  // Of a group, or of options: (?im-x: ...) and (?im-x).
  void group_begin() {
    if (rest().starts_with("(?#")) return comment();
    const std::string_view inside = rest().substr(std::min<std::size_t>(2, rest().size()));
    const std::size_t end =
        std::min(inside.find_first_not_of("-abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
                 inside.size());
    const bool group = inside.substr(end, 1) == ":";
    const bool has_options =
        rest().substr(0, 2) == "(?" && (group || (end > 0 && inside.substr(end, 1) == ")"));
    if (!has_options) {
      options_.push_back(options_.back());
      before_ = '\0';
      return take(1);
    }
    const std::string_view whole = rest().substr(0, 2 + end + 1);
    // There it holds for what follows up to the end of the group, with all its alternatives.
    if (!group && at_ > 0) refuse(fmt::format("{} behind the beginning", whole));
    Options options = options_.back();
    bool on = true;
    out_ += "(?";
    for (const char c : inside.substr(0, end)) {
      if (c == '-') on = false;
      if (c == 'i') options.caseless = on;
      if (c == 'x') options.extended = on;
      if (c != '-' && c != 'i' && c != 'm' && c != 'x') refuse(whole);
      if (c == 'x' && out_.ends_with('x')) continue;  // xx is another option here
      out_ += c == 'm' ? 's' : c;                     // the dot matches line ends
    }
    out_ += whole.back();
    at_ += whole.size();
    if (end > 0) before_ = '\0';
    if (group) {
      options_.push_back(options);
    } else {
      options_.back() = options;
    }
  }

  void comment() {
    std::size_t end = at_ + 3;
    while (end < pattern_.size() && pattern_[end] != ')') end += pattern_[end] == '\\' ? 2 : 1;
    if (end >= pattern_.size()) refuse("a comment without end");
    out_ += "(?#)";
    at_ = end + 1;
    check_skipped();
  }

  void interval() {
    const Interval interval = read_interval(rest());
    if (interval.length == 0) {
      out_ += "\\{";
      ++at_;
      return;
    }
    const bool once = interval.low == "1" && (!interval.comma || interval.high == "1");
    if (!once) before_ = '\0';
    const std::string_view text = rest().substr(0, interval.length);
    const std::string_view behind = rest().substr(interval.length, 2);
    // It makes an interval optional there, and lazy here.
    if (!interval.comma && behind.starts_with('?')) refuse(fmt::format("{}?", text));
    at_ += interval.length;
    if (!behind.starts_with('+')) {
      out_ += fmt::format("{{{}{}{}}}",
                          interval.low.empty() ? "0" : interval.low,
                          interval.comma ? "," : "",
                          interval.high);
      return;
    }
    // Not possessive there but a repeated group: (?:X{1,m})+ is X+.
    const std::size_t again = behind.find_first_of("?+*{", 1) == 1 ? 1 : 0;
    if (interval.low != "1" || interval.high == "0" || again) {
      refuse(fmt::format("{}{}", text, behind.substr(0, 1 + again)));
    }
    out_ += '+';
    ++at_;
  }

  struct Options {
    bool caseless = false;
    bool extended = false;
  };

  std::string_view pattern_;
  std::size_t at_ = 0;  // of the pattern
  std::string out_;
  bool in_set_ = false;                  // [...]
  bool plain_set_ = true;                // of ASCII characters
  std::size_t set_at_ = 0;               // of the pattern
  std::size_t set_members_at_ = 0;       // of out_
  char before_ = '\0';                   // the letter, if that is what the pattern had before
  std::vector<Options> options_ = {{}};  // of the pattern and the groups that are open
};

}  // namespace

std::string to_pcre2(std::string_view pattern) {
  return Translation(pattern).run();
}

}  // namespace reynard::tokenizer

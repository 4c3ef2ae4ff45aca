#include "reynard/tokenizer/split_pattern.h"

#include "reynard/tokenizer/unicode.h"

#include <array>

namespace reynard::tokenizer {

namespace {

// Quoted from the tokenizer.json files of the families (NOTICE names their sources).
constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Llama-3's in the spelling of tiktoken.
constexpr std::string_view kLlama3OtherRegex =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::array<CharClass, 128> make_ascii() {
  std::array<CharClass, 128> classes{};
  for (int c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool number = c >= '0' && c <= '9';
    const bool space = (c >= 9 && c <= 13) || c == ' ';
    classes[static_cast<std::size_t>(c)] = letter   ? CharClass::kLetter
                                           : number ? CharClass::kNumber
                                           : space  ? CharClass::kSpace
                                                    : CharClass::kOther;
  }
  return classes;
}
constexpr std::array<CharClass, 128> kAscii = make_ascii();

class Scanner {
 public:
  Scanner(std::string_view text, std::vector<std::string_view>& pieces)
      : text_(text), pieces_(pieces) {}

  void gpt2() {
    while (at_ < text_.size()) {
      const std::size_t begin = at_;
      at_ = end_of_gpt2_piece(begin);
      pieces_.push_back(text_.substr(begin, at_ - begin));
    }
  }

  void llama3(int max_digits) {
    while (at_ < text_.size()) {
      const std::size_t begin = at_;
      at_ = end_of_llama3_piece(begin, max_digits);
      pieces_.push_back(text_.substr(begin, at_ - begin));
    }
  }

 private:
  struct Char {
    CharClass kind = CharClass::kSpace;
    std::size_t length = 0;  // 0: the text ends here
  };

  Char look(std::size_t at) const {
    if (at >= text_.size()) return {};
    const auto byte = static_cast<unsigned char>(text_[at]);
    if (byte < 128) return {kAscii[byte], 1};
    const CodePoint c = code_point_at(text_, at);
    return {char_class(c.value), static_cast<std::size_t>(c.length)};
  }

  std::size_t end_of_run(std::size_t at, CharClass kind) const {
    while (true) {
      const Char c = look(at);
      if (c.length == 0 || c.kind != kind) return at;
      at += c.length;
    }
  }

  bool is_newline(std::size_t at) const {
    return at < text_.size() && (text_[at] == '\n' || text_[at] == '\r');
  }

  // "'s", "'ll", ...: the bytes behind the apostrophe, 0: none.
  std::size_t contraction(std::size_t at, bool any_case) const {
    const auto letter = [&](std::size_t i) {
      const char c = at + i < text_.size() ? text_[at + i] : '\0';
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    };
    const char a = letter(0);
    const char b = letter(1);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 1;
    if ((a == 'r' || a == 'v') && b == 'e') return 2;
    if (a == 'l' && b == 'l') return 2;
    // U+017F, the long s, is an s in any case.
    if (any_case && text_.substr(at, 2) == "\xc5\xbf") return 2;
    return 0;
  }

  // \s+(?!\S)|\s+ of a run of spaces: all but its last where a word follows.
  std::size_t end_of_spaces(std::size_t begin, std::size_t run_end) const {
    if (run_end == text_.size()) return run_end;
    const auto last =
        static_cast<std::size_t>(code_point_before(text_.substr(0, run_end), run_end).length);
    return run_end - last > begin ? run_end - last : run_end;
  }

  std::size_t end_of_gpt2_piece(std::size_t begin) const {
    if (text_[begin] == '\'') {
      const std::size_t length = contraction(begin + 1, false);
      if (length > 0) return begin + 1 + length;
    }
    const std::size_t word = begin + (text_[begin] == ' ' ? 1 : 0);
    const Char c = look(word);
    if (c.length > 0 && c.kind != CharClass::kSpace) return end_of_run(word + c.length, c.kind);
    return end_of_spaces(begin, end_of_run(begin, CharClass::kSpace));
  }

  std::size_t end_of_llama3_piece(std::size_t begin, int max_digits) const {
    if (text_[begin] == '\'') {
      const std::size_t length = contraction(begin + 1, true);
      if (length > 0) return begin + 1 + length;
    }
    const Char c = look(begin);
    if (c.kind == CharClass::kLetter) return end_of_run(begin + c.length, CharClass::kLetter);
    if (c.kind == CharClass::kNumber) {
      std::size_t end = begin + c.length;
      for (int i = 1; i < max_digits; ++i) {
        const Char digit = look(end);
        if (digit.length == 0 || digit.kind != CharClass::kNumber) break;
        end += digit.length;
      }
      return end;
    }
    const Char next = look(begin + c.length);
    if (next.length > 0 && next.kind == CharClass::kLetter && !is_newline(begin)) {
      return end_of_run(begin + c.length + next.length, CharClass::kLetter);
    }
    const bool after_space = text_[begin] == ' ';
    const Char& other = after_space ? next : c;
    if (other.length > 0 && other.kind == CharClass::kOther) {
      std::size_t end = end_of_run(begin + (after_space ? 1 : 0), CharClass::kOther);
      while (is_newline(end)) ++end;
      return end;
    }
    const std::size_t run_end = end_of_run(begin, CharClass::kSpace);
    const std::size_t newline = text_.substr(begin, run_end - begin).find_last_of("\r\n");
    if (newline != std::string_view::npos) return begin + newline + 1;
    return end_of_spaces(begin, run_end);
  }

  std::string_view text_;
  std::vector<std::string_view>& pieces_;
  std::size_t at_ = 0;
};

}  // namespace

std::string_view regex_of(SplitPattern pattern) {
  switch (pattern) {
    case SplitPattern::kGpt2:
      return kGpt2Regex;
    case SplitPattern::kLlama3:
      return kLlama3Regex;
    case SplitPattern::kQwen2:
      break;
  }
  return kQwen2Regex;
}

std::optional<SplitPattern> split_pattern_of(std::string_view regex) {
  if (regex == kGpt2Regex) return SplitPattern::kGpt2;
  if (regex == kLlama3Regex || regex == kLlama3OtherRegex) return SplitPattern::kLlama3;
  if (regex == kQwen2Regex) return SplitPattern::kQwen2;
  return std::nullopt;
}

void split_text(SplitPattern pattern,
                std::string_view text,
                std::vector<std::string_view>& pieces) {
  Scanner scanner(text, pieces);
  if (pattern == SplitPattern::kGpt2) {
    scanner.gpt2();
  } else {
    scanner.llama3(pattern == SplitPattern::kLlama3 ? 3 : 1);
  }
}

std::size_t last_word_end(std::string_view text) {
  for (std::size_t i = text.size(); i >= 2; --i) {
    const char c = text[i - 2];
    if (text[i - 1] == ' ' && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) return i - 1;
  }
  return 0;
}

}  // namespace reynard::tokenizer

#include "reynard/serving/text_offsets.h"

#include "reynard/tokenizer/utf8.h"

#include <algorithm>
#include <cstddef>
#include <optional>

namespace reynard::serving {

namespace {

// Bytes of tokens in a row that may be missing before they count as the text's own, and how far
// behind them the next token is looked for.
constexpr std::size_t kMaxMissing = 256;
constexpr std::size_t kReach = 32;

// Places of tokens, one after the other, in a text that a tokenizer has normalized; in bytes.
class Alignment {
 public:
  explicit Alignment(std::string_view text) : text_(text) {}

  void add(std::string_view token) {
    if (const std::optional<std::size_t> begin = find(token)) {
      // Missing ones do not begin behind it.
      for (auto i = begins_.end() - num_missing_; i != begins_.end(); ++i)
        *i = std::min(*i, *begin);
      begins_.push_back(*begin);
      expected_ = *begin + token.size();
      settle();
      return;
    }
    const std::size_t end = behind_blanks();
    expected_ = token.starts_with(' ') && end > expected_ ? end - 1 : end;
    begins_.push_back(expected_);
    expected_ = std::min(expected_ + token.size(), text_.size());
    ++num_missing_;
    if (expected_ - settled_ > kMaxMissing) settle();
  }
  // They never decrease.
  const std::vector<std::size_t>& begins() const { return begins_; }

 private:
  void settle() {
    settled_ = expected_;
    num_missing_ = 0;
  }
  bool stands_at(std::size_t place, std::string_view token) const {
    return place <= text_.size() && text_.substr(place).starts_with(token);
  }
  bool is_blank_at(std::size_t place) const {
    constexpr std::string_view kBlanks = " \t\n\r";
    return place < text_.size() && kBlanks.find(text_[place]) != std::string_view::npos;
  }
  std::size_t behind_blanks() const {
    std::size_t place = expected_;
    while (is_blank_at(place)) ++place;
    return place;
  }
  std::optional<std::size_t> find(std::string_view token) const {
    if (num_missing_ == 0) {
      std::size_t place = expected_;
      while (!stands_at(place, token) && is_blank_at(place)) ++place;
      return stands_at(place, token) ? std::optional(place) : std::nullopt;
    }
    if (token.empty()) return {};
    // Nearest to where it would be, had nothing been replaced by more or fewer bytes.
    const std::size_t back = expected_ - settled_;
    for (std::size_t far = 0; far <= std::max(kReach, back); ++far) {
      if (far <= back && stands_at(expected_ - far, token)) return expected_ - far;
      if (far <= kReach && stands_at(expected_ + far, token)) return expected_ + far;
    }
    return {};
  }

  std::string_view text_;
  std::vector<std::size_t> begins_;
  std::size_t expected_ = 0;        // where the next token would begin
  std::size_t settled_ = 0;         // behind the last one that was found
  std::ptrdiff_t num_missing_ = 0;  // since then
};

}  // namespace

int64_t TextOffsets::add(std::string_view bytes) {
  const std::string to_first = unfinished_ + std::string(bytes.substr(0, 1));
  const int64_t touched = tokenizer::num_characters(tokenizer::displayable(to_first));
  const int64_t begin = num_characters_ + std::max<int64_t>(0, touched - 1);
  unfinished_ += bytes;
  const std::size_t whole = tokenizer::whole_characters(unfinished_);
  num_characters_ +=
      tokenizer::num_characters(tokenizer::displayable(unfinished_.substr(0, whole)));
  unfinished_.erase(0, whole);
  return begin;
}

std::vector<int64_t> offsets_in(std::string_view text, std::span<const std::string> tokens) {
  std::vector<int64_t> offsets;
  std::string joined;
  for (const std::string& token : tokens) joined += token;
  joined.resize(tokenizer::whole_characters(joined));
  if (tokenizer::displayable(joined) == text) {
    TextOffsets exact;
    for (const std::string& token : tokens) offsets.push_back(exact.add(token));
    return offsets;
  }
  Alignment alignment(text);
  for (const std::string& token : tokens) alignment.add(token);
  int64_t num_begun = 0;  // characters whose first byte is among those looked at
  std::size_t looked_at = 0;
  for (const std::size_t begin : alignment.begins()) {
    for (; looked_at <= begin && looked_at < text.size(); ++looked_at) {
      const auto byte = static_cast<unsigned char>(text[looked_at]);
      if ((byte & 0xc0U) != 0x80U) ++num_begun;
    }
    offsets.push_back(begin < text.size() ? num_begun - 1 : num_begun);
  }
  return offsets;
}

}  // namespace reynard::serving

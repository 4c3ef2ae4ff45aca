#include "reynard/generation/token_bytes.h"

#include "reynard/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>

namespace reynard::generation {

namespace {

// Tokens before the newest that its text may depend on: a tokenizer may drop the blank before the
// first token of what it decodes, never that of a later one. A character has up to four tokens that
// are bytes, and up to twelve where it is an escaped surrogate pair.
constexpr std::size_t kContextTokens = 12;

}  // namespace

TokenBytes::TokenBytes(const tokenizer::Tokenizer& tokenizer,
                       bool keep_special,
                       std::span<const int64_t> before)
    : tokenizer_(&tokenizer), keep_special_(keep_special) {
  std::ranges::copy_if(
      before, std::back_inserter(window_), [this](int64_t token) { return has_text(token); });
  shorten_window();
}

std::string TokenBytes::add(int64_t token) {
  if (!has_text(token)) return "";
  if (window_.size() > 2 * kContextTokens) shorten_window();
  const tokenizer::DecodeOptions decoding{.keep_special = keep_special_, .raw_bytes = true};
  const std::string before = tokenizer_->decode(window_, decoding);
  window_.push_back(token);
  const std::string after = tokenizer_->decode(window_, decoding);
  return after.substr(std::min(before.size(), after.size()));
}

void TokenBytes::shorten_window() {
  if (window_.size() <= kContextTokens) return;
  const std::size_t surplus = window_.size() - kContextTokens;
  const auto kept =
      window_.begin() + static_cast<std::ptrdiff_t>(tokenizer_->whole_escapes(window_, surplus));
  window_.erase(window_.begin(), kept);
}

bool TokenBytes::has_text(int64_t token) const {
  return token >= 0 && token < tokenizer_->vocab_size();
}

std::string text_of_token(const tokenizer::Tokenizer& tokenizer, int64_t token) {
  if (token < 0 || token >= tokenizer.vocab_size()) return "";
  const std::array<int64_t, 2> twice = {token, token};
  const tokenizer::DecodeOptions decoding{.keep_special = true, .raw_bytes = true};
  const std::string first = tokenizer.decode(std::span(twice).first(1), decoding);
  const std::string both = tokenizer.decode(twice, decoding);
  return both.substr(std::min(first.size(), both.size()));
}

}  // namespace reynard::generation

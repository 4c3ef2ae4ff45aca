#include "reynard/generation/text_stream.h"

#include "reynard/tensor/check.h"
#include "reynard/tokenizer/tokenizer.h"
#include "reynard/tokenizer/utf8.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <utility>

namespace reynard::generation {

namespace {

// Tokens before the newest that its text may depend on: a tokenizer may drop the blank before the
// first token of what it decodes, never that of a later one. A character has up to four tokens that
// are bytes, and up to twelve where it is an escaped surrogate pair.
constexpr std::size_t kContextTokens = 12;

}  // namespace

TextStream::TextStream(const tokenizer::Tokenizer& tokenizer,
                       TextStreamOptions options,
                       std::span<const int64_t> before)
    : tokenizer_(&tokenizer), options_(std::move(options)), held_(options_.begun) {
  std::ranges::copy_if(
      before, std::back_inserter(window_), [this](int64_t token) { return has_text(token); });
  shorten_window();
  for (const std::string& text : options_.stop) {
    tensor::check_value(!text.empty(), "generate", "stop string", "\"\"", "at least one character");
  }
}

std::string TextStream::add(int64_t token) {
  if (stopped_ || !has_text(token)) return "";
  if (window_.size() > 2 * kContextTokens) shorten_window();
  const tokenizer::DecodeOptions decoding{.keep_special = options_.keep_special, .raw_bytes = true};
  const std::string before = tokenizer_->decode(window_, decoding);
  window_.push_back(token);
  const std::string after = tokenizer_->decode(window_, decoding);
  held_ += after.substr(std::min(before.size(), after.size()));
  const std::size_t stop = find_stop();
  if (stop != std::string::npos) {
    held_.resize(stop);
    stopped_ = true;
    return release(held_.size());
  }
  return release(num_certain());
}

void TextStream::shorten_window() {
  if (window_.size() <= kContextTokens) return;
  const std::size_t surplus = window_.size() - kContextTokens;
  const auto kept =
      window_.begin() + static_cast<std::ptrdiff_t>(tokenizer_->whole_escapes(window_, surplus));
  window_.erase(window_.begin(), kept);
}

bool TextStream::has_text(int64_t token) const {
  return token >= 0 && token < tokenizer_->vocab_size();
}

std::string TextStream::finish() {
  return release(held_.size());
}

std::string TextStream::release(std::size_t bytes) {
  const std::string text = tokenizer::displayable(std::string_view(held_).substr(0, bytes));
  held_.erase(0, bytes);
  return text;
}

std::size_t TextStream::find_stop() const {
  std::size_t first = std::string::npos;
  for (const std::string& text : options_.stop) first = std::min(first, held_.find(text));
  return first;
}

// Without the longest end that begins a stop string, and without an unfinished character.
std::size_t TextStream::num_certain() const {
  std::size_t certain = held_.size();
  for (const std::string& text : options_.stop) {
    for (std::size_t begin = held_.size() - std::min(held_.size(), text.size() - 1);
         begin < certain;
         ++begin) {
      if (std::string_view(text).starts_with(std::string_view(held_).substr(begin))) {
        certain = begin;
      }
    }
  }
  return tokenizer::whole_characters(std::string_view(held_).substr(0, certain));
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

#include "reynard/generation/text_stream.h"

#include "reynard/tensor/check.h"
#include "reynard/tokenizer/utf8.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace reynard::generation {

TextStream::TextStream(const tokenizer::Tokenizer& tokenizer,
                       TextStreamOptions options,
                       std::span<const int64_t> before)
    : bytes_(tokenizer, /*keep_special=*/false, before),
      options_(std::move(options)),
      held_(options_.begun) {
  for (const std::string& text : options_.stop) {
    tensor::check_value(!text.empty(), "generate", "stop string", "\"\"", "at least one character");
  }
}

std::string TextStream::add(int64_t token) {
  if (stopped_) return "";
  held_ += bytes_.add(token);
  const std::size_t stop = find_stop();
  if (stop != std::string::npos) {
    held_.resize(stop);
    stopped_ = true;
    return release(held_.size());
  }
  return release(num_certain());
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

}  // namespace reynard::generation

#include "reynard/tokenizer/normalizer.h"

#include "reynard/tokenizer/unicode.h"
#include "reynard/tokenizer/utf8.h"
#include "reynard/tokenizer/vocabulary.h"

#include <algorithm>

namespace reynard::tokenizer {

namespace {

template <class... Cases>
struct Match : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Match(Cases...) -> Match<Cases...>;

std::string strip(std::string_view text, const StripSpaces& sides) {
  while (sides.left && !text.empty()) {
    const CodePoint c = code_point_at(text, 0);
    if (!is_space(c.value)) break;
    text.remove_prefix(static_cast<std::size_t>(c.length));
  }
  while (sides.right && !text.empty()) {
    const CodePoint c = code_point_before(text, text.size());
    if (!is_space(c.value)) break;
    text.remove_suffix(static_cast<std::size_t>(c.length));
  }
  return std::string(text);
}

bool has_letter_or_space(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return c == ' ' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
}

}  // namespace

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  std::size_t at = 0;
  while (true) {
    const std::size_t found = text.find(from, at);
    if (found == std::string_view::npos) break;
    out += text.substr(at, found - at);
    out += to;
    at = found + from.size();
  }
  return out += text.substr(at);
}

std::string replace_all(std::string_view text, const Regex& from, std::string_view to) {
  std::string out;
  std::size_t at = 0;
  from.for_each_match(text, [&](std::size_t begin, std::size_t end) {
    out += text.substr(at, begin - at);
    out += to;
    at = end;
  });
  return out += text.substr(at);
}

std::string Normalizer::apply(std::string_view text, bool continues) const {
  std::string out(text);
  for (const NormalizerStep& step : steps_) {
    std::visit(
        Match{[&](const PrependText& prepend) {
                if (!out.empty() && !continues) out.insert(0, prepend.text);
              },
              [&](const ReplaceText& replace) { out = replace_all(out, replace.from, replace.to); },
              [&](const ReplaceMatches& replace) {
                out = replace_all(out, replace.from, replace.to);
              },
              [&](const UnicodeForm& form) { out = to_form(out, form); },
              [&](const StripSpaces& sides) { out = strip(out, sides); }},
        step);
  }
  return out;
}

bool Normalizer::keeps_word_ends() const {
  return std::all_of(steps_.begin(), steps_.end(), [](const NormalizerStep& step) {
    if (const auto* replace = std::get_if<ReplaceText>(&step)) {
      return (replace->from == " " && replace->to == kMetaspace) ||
             !has_letter_or_space(replace->from);
    }
    return !std::holds_alternative<ReplaceMatches>(step) &&
           !std::holds_alternative<StripSpaces>(step);
  });
}

bool Normalizer::keeps_newlines() const {
  return std::none_of(steps_.begin(), steps_.end(), [](const NormalizerStep& step) {
    return std::holds_alternative<ReplaceText>(step);  // it may take newlines or write spaces
  });
}

bool Normalizer::keeps_begin() const {
  return std::all_of(steps_.begin(), steps_.end(), [](const NormalizerStep& step) {
    if (const auto* strip = std::get_if<StripSpaces>(&step)) return !strip->left;
    if (const auto* replace = std::get_if<ReplaceText>(&step)) {
      return num_characters(replace->to) >= num_characters(replace->from);
    }
    return std::holds_alternative<UnicodeForm>(step);
  });
}

bool Normalizer::writes_metaspace() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const NormalizerStep& step) {
    const auto* replace = std::get_if<ReplaceText>(&step);
    return replace && replace->from == " ";
  });
}

std::optional<std::string_view> Normalizer::space() const {
  if (!keeps_word_ends()) return std::nullopt;
  std::string_view space = " ";
  for (const NormalizerStep& step : steps_) {
    const auto* replace = std::get_if<ReplaceText>(&step);
    if (!replace || replace->from.find(space) == std::string::npos) continue;
    if (space == kMetaspace) return std::nullopt;
    space = kMetaspace;
  }
  return space;
}

}  // namespace reynard::tokenizer

// Normalizers, pre-tokenizers and decoders of tokenizer.json.

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/tokenizer_json.h"
#include "reynard/tokenizer/unicode.h"

#include <fmt/format.h>

#include <map>
#include <string_view>

namespace reynard::tokenizer {

namespace {

using nlohmann::json;

constexpr int kMaxSequenceDepth = 16;  // of Sequence in Sequence

[[noreturn]] void unsupported(const JsonObject& object, std::string_view what) {
  object.fail(fmt::format("{} is not supported", what));
}

// Calls read(part) for each part of a Sequence.
template <class Read>
void for_each_part(const JsonObject& object, std::string_view key, int depth, const Read& read) {
  if (depth >= kMaxSequenceDepth) object.fail("Sequence is nested too deeply");
  const json& list = object.value(key);
  if (!list.is_array()) object.fail(fmt::format("\"{}\" must be a list", key));
  for (std::size_t i = 0; i < list.size(); ++i) {
    read(JsonObject(list[i], fmt::format("{}[{}]", object.where(), i)));
  }
}

// {"String": "..."} or {"Regex": "..."}
struct Pattern {
  bool is_regex = false;
  std::string text;
  Regex regex() const { return Regex(is_regex ? text : escape_for_regex(text)); }
};

Pattern read_pattern(const JsonObject& object) {
  const JsonObject pattern = object.object("pattern");
  if (pattern.has("Regex")) return {true, pattern.text("Regex")};
  if (!pattern.has("String")) pattern.fail("expected \"String\" or \"Regex\"");
  return {false, pattern.text("String")};
}

void add_normalizer(const JsonObject& object, Normalizer& normalizer, int depth) {
  static const std::map<std::string, UnicodeForm> forms = {{"NFC", UnicodeForm::kNfc},
                                                           {"NFD", UnicodeForm::kNfd},
                                                           {"NFKC", UnicodeForm::kNfkc},
                                                           {"NFKD", UnicodeForm::kNfkd}};
  const std::string type = object.type();
  if (type == "Sequence") {
    for_each_part(object, "normalizers", depth, [&](const JsonObject& part) {
      add_normalizer(part, normalizer, depth + 1);
    });
  } else if (const auto form = forms.find(type); form != forms.end()) {
    normalizer.add(form->second);
  } else if (type == "Prepend") {
    normalizer.add(PrependText{object.text("prepend")});
  } else if (type == "Strip") {
    normalizer.add(
        StripSpaces{object.flag_or("strip_left", true), object.flag_or("strip_right", true)});
  } else if (type == "Replace") {
    const Pattern pattern = read_pattern(object);
    const std::string content = object.text("content");
    if (pattern.is_regex || pattern.text.empty()) {
      normalizer.add(ReplaceMatches{pattern.regex(), content});
    } else {
      normalizer.add(ReplaceText{pattern.text, content});
    }
  } else {
    unsupported(object, fmt::format("the normalizer \"{}\"", type));
  }
}

SplitBehavior read_behavior(const JsonObject& object) {
  static const std::map<std::string, SplitBehavior> behaviors = {
      {"Isolated", SplitBehavior::kIsolated},
      {"Removed", SplitBehavior::kRemoved},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  const std::string name = object.text("behavior");
  const auto found = behaviors.find(name);
  if (found == behaviors.end()) unsupported(object, fmt::format("the behavior \"{}\"", name));
  return found->second;
}

void add_split(const JsonObject& object, PreTokenizer& splitter) {
  const Pattern pattern = read_pattern(object);
  const SplitBehavior behavior = read_behavior(object);
  const bool invert = object.flag_or("invert", false);
  const auto family = pattern.is_regex ? split_pattern_of(pattern.text) : std::nullopt;
  // The families' patterns match all of the text, so nothing is between matches.
  if (family &&
      (behavior == SplitBehavior::kIsolated || (behavior == SplitBehavior::kRemoved && invert))) {
    splitter.add(FamilySplit{*family});
  } else {
    splitter.add(RegexSplit{pattern.regex(), behavior, invert});
  }
}

std::string one_character(const JsonObject& object, std::string_view key) {
  const std::string text = object.text(key);
  if (text.empty() || static_cast<std::size_t>(code_point_at(text, 0).length) != text.size()) {
    object.fail(fmt::format("\"{}\" must be one character", key));
  }
  return text;
}

// "always" and "first" put the mark before a text.
std::string prepend_scheme(const JsonObject& object) {
  const std::string scheme = object.text_or(
      "prepend_scheme", object.flag_or("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    unsupported(object, fmt::format("the prepend_scheme \"{}\"", scheme));
  }
  return scheme;
}

void add_pre_tokenizer(const JsonObject& object, ReadPreTokenizer& read, int depth) {
  const std::string type = object.type();
  if (read.byte_level) unsupported(object, fmt::format("\"{}\" behind ByteLevel", type));
  if (type == "Sequence") {
    for_each_part(object, "pretokenizers", depth, [&](const JsonObject& part) {
      add_pre_tokenizer(part, read, depth + 1);
    });
  } else if (type == "ByteLevel") {
    if (object.flag_or("add_prefix_space", true)) read.splitter.add(PrefixSpace{});
    if (object.flag_or("use_regex", true)) read.splitter.add(FamilySplit{SplitPattern::kGpt2});
    read.byte_level = true;
  } else if (type == "Split") {
    add_split(object, read.splitter);
  } else if (type == "Digits") {
    read.splitter.add(DigitSplit{object.flag_or("individual_digits", false)});
  } else if (type == "Metaspace") {
    const std::string scheme = prepend_scheme(object);
    using Prepend = MetaspaceSplit::Prepend;
    read.splitter.add(MetaspaceSplit{.replacement = one_character(object, "replacement"),
                                     .prepend = scheme == "always"  ? Prepend::kAlways
                                                : scheme == "first" ? Prepend::kFirst
                                                                    : Prepend::kNever,
                                     .split = object.flag_or("split", true)});
  } else {
    unsupported(object, fmt::format("the pre-tokenizer \"{}\"", type));
  }
}

void add_decoder(const JsonObject& object, Decoder& decoder, int depth) {
  const std::string type = object.type();
  if (type == "Sequence") {
    for_each_part(object, "decoders", depth, [&](const JsonObject& part) {
      add_decoder(part, decoder, depth + 1);
    });
  } else if (type == "ByteLevel") {
    decoder.add(DecodeByteLevel{});
  } else if (type == "ByteFallback") {
    decoder.add(DecodeByteFallback{});
  } else if (type == "Fuse") {
    decoder.add(DecodeFuse{});
  } else if (type == "Replace") {
    const Pattern pattern = read_pattern(object);
    const std::string content = object.text("content");
    if (pattern.is_regex || pattern.text.empty()) {
      decoder.add(DecodeReplace{pattern.regex(), content});
    } else {
      decoder.add(DecodeReplaceText{pattern.text, content});
    }
  } else if (type == "Strip") {
    decoder.add(DecodeStrip{.content = one_character(object, "content"),
                            .start = object.whole_number("start", 0, 1 << 20),
                            .stop = object.whole_number("stop", 0, 1 << 20)});
  } else if (type == "Metaspace") {
    decoder.add(DecodeMetaspace{.replacement = one_character(object, "replacement"),
                                .drop_first = prepend_scheme(object) != "never"});
  } else {
    unsupported(object, fmt::format("the decoder \"{}\"", type));
  }
}

// A regular expression that cannot be used, and where it stands.
template <class Add>
void at_place(const JsonObject& object, const Add& add) {
  try {
    add();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    if (message.substr(0, object.where().size()) == object.where()) throw;
    object.fail(message);
  }
}

}  // namespace

Normalizer read_normalizer(const JsonObject& object) {
  Normalizer normalizer;
  at_place(object, [&] { add_normalizer(object, normalizer, 0); });
  return normalizer;
}

ReadPreTokenizer read_pre_tokenizer(const JsonObject& object) {
  ReadPreTokenizer read;
  at_place(object, [&] { add_pre_tokenizer(object, read, 0); });
  return read;
}

Decoder read_decoder(const JsonObject& object) {
  Decoder decoder;
  at_place(object, [&] { add_decoder(object, decoder, 0); });
  return decoder;
}

}  // namespace reynard::tokenizer

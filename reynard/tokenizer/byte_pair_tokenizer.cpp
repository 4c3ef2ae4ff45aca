#include "reynard/tokenizer/byte_pair_tokenizer.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/unicode.h"
#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>
#include <utility>

namespace reynard::tokenizer {

namespace {

// Texts are encoded in chunks of about this size: what a chunk needs then fits into the caches.
constexpr std::size_t kChunkBytes = 1 << 15;

}  // namespace

struct BytePairTokenizer::Scratch {
  Vocabulary::Scratch vocabulary;
  TextStore texts;
  std::vector<std::string_view> pieces;
};

std::size_t last_safe_place(std::string_view text, SafePlaces places) {
  const bool newlines = places == SafePlaces::kWordEndsAndNewlines;
  const auto is_space_at = [&](std::size_t i) { return is_space(code_point_at(text, i).value); };
  for (std::size_t i = text.size(); i >= 2; --i) {  // between text[i - 2] and text[i - 1]
    const char before = text[i - 2];
    const char behind = text[i - 1];
    if (behind == ' ' && is_ascii_letter(before)) return i - 1;
    if (newlines && before == '\n' && i >= 3 && (behind & 0xc0) != 0x80) {
      const bool alone = !is_space(code_point_before(text, i - 2).value);
      // A character that is cut off at the end might be a space.
      const bool whole = (behind & 0x80) == 0 || text.size() - (i - 1) >= 4;
      if (alone && whole && !is_space_at(i - 1)) return i - 1;
    }
  }
  return 0;
}

std::size_t chunk_size(const Tokenizer& tokenizer, std::string_view text) {
  // A chunk without a safe place grows until it has one.
  for (std::size_t some = kChunkBytes; some < text.size(); some *= 2) {
    const std::size_t safe = tokenizer.safe_prefix(text.substr(0, some));
    if (safe > 0) return safe;
  }
  return text.size();
}

void check_ids(std::span<const int64_t> ids, int64_t vocab_size, std::string_view name) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    throw Error(fmt::format(
        "decode: ids[{}] = {}; expected 0 ... {} ({} tokenizer)", i, ids[i], vocab_size - 1, name));
  }
}

BytePairTokenizer::BytePairTokenizer(BytePairParts parts)
    : parts_(std::move(parts)), vocabulary_(std::move(parts_.vocabulary)) {
  special_.resize(parts_.token_texts.size());
  for (const AddedToken& token : parts_.added_tokens) {
    const auto id = static_cast<std::size_t>(token.id);
    special_[id] = special_[id] || token.special;
    if (token.normalized) {
      // What it is found as is also what it is decoded to.
      parts_.token_texts[id] = parts_.normalizer.apply(token.content);
      normalized_tokens_.add(parts_.token_texts[id], token);
    } else {
      raw_tokens_.add(token.content, token);
    }
  }
  find_safe_places();
}

BytePairTokenizer::~BytePairTokenizer() = default;

void BytePairTokenizer::find_safe_places() {
  const Normalizer& normalizer = parts_.normalizer;
  const PreTokenizer& splitter = parts_.pre_tokenizer;
  const bool metaspace = normalizer.writes_metaspace();
  if (!normalizer.keeps_word_ends() || !splitter.keeps_word_ends()) return;
  if (!raw_tokens_.keeps_word_ends()) return;
  if (!normalized_tokens_.empty()) {
    const std::optional<std::string_view> space = normalizer.space();
    if (!space || !normalized_tokens_.keeps_word_ends(*space)) return;
  }
  cuts_at_word_ends_ =
      splitter.splits_at_word_ends(metaspace) || (metaspace && vocabulary_.splits_at_metaspace());
  cuts_after_newlines_ = cuts_at_word_ends_ && raw_tokens_.keeps_newlines() &&
                         normalized_tokens_.keeps_newlines() && normalizer.keeps_newlines() &&
                         !metaspace && splitter.splits_after_newlines();
}

std::size_t BytePairTokenizer::safe_prefix(std::string_view text) const {
  if (!cuts_at_word_ends_) return 0;
  return last_safe_place(
      text, cuts_after_newlines_ ? SafePlaces::kWordEndsAndNewlines : SafePlaces::kWordEnds);
}

std::vector<int32_t> BytePairTokenizer::encode_text(std::string_view text,
                                                    const EncodeOptions& options) const {
  if (!is_utf8(text)) return encode_text(displayable(text), options);
  std::unique_ptr<Scratch> scratch = scratches_.take();
  std::vector<int32_t> ids;
  if (options.add_template) ids = parts_.template_before;
  ids.reserve(ids.size() + text.size() / 4);
  for_each_chunk(*this, text, options.continues, [&](std::string_view chunk, bool continues) {
    EncodeOptions of_chunk = options;
    of_chunk.continues = continues;
    encode_chunk(chunk, of_chunk, ids, *scratch);
  });
  if (options.add_template) {
    ids.insert(ids.end(), parts_.template_after.begin(), parts_.template_after.end());
  }
  scratches_.give_back(std::move(scratch));
  return ids;
}

void BytePairTokenizer::encode_chunk(std::string_view text,
                                     const EncodeOptions& options,
                                     std::vector<int32_t>& ids,
                                     Scratch& scratch) const {
  bool first = !options.continues && !options.behind_token;
  raw_tokens_.split(text, [&](std::string_view part, int32_t id) {
    if (id >= 0) {
      ids.push_back(id);
    } else if (parts_.normalizer.empty() && normalized_tokens_.empty()) {
      encode_plain(part, !first, ids, scratch);
    } else {
      // Only text that goes on behind a cut is part of a longer one for the normalizer.
      const bool goes_on = options.continues && part.data() == text.data();
      const std::string normalized = parts_.normalizer.apply(part, goes_on);
      normalized_tokens_.split(normalized, [&](std::string_view inner, int32_t inner_id) {
        if (inner_id >= 0) {
          ids.push_back(inner_id);
        } else {
          encode_plain(inner, !first || inner.data() != normalized.data(), ids, scratch);
        }
      });
    }
    first = false;
  });
}

void BytePairTokenizer::encode_plain(std::string_view text,
                                     bool continues,
                                     std::vector<int32_t>& ids,
                                     Scratch& scratch) const {
  scratch.texts.clear();
  const std::string_view padded = scratch.texts.keep(text);
  parts_.pre_tokenizer.split(padded, !continues, scratch.texts, scratch.pieces);
  for (const std::string_view piece : scratch.pieces) {
    vocabulary_.encode(piece, ids, scratch.vocabulary);
  }
}

std::string BytePairTokenizer::decode_ids(std::span<const int64_t> ids,
                                          const DecodeOptions& options) const {
  check_ids(ids, vocab_size(), name());
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int64_t id : ids) {
    const auto index = static_cast<std::size_t>(id);
    if (special_[index] && !options.keep_special) continue;
    if (!parts_.token_texts[index].empty()) tokens.push_back(parts_.token_texts[index]);
  }
  if (!parts_.decoder) return fmt::format("{}", fmt::join(tokens, " "));
  return parts_.decoder->decode(std::move(tokens), options.raw_bytes);
}

}  // namespace reynard::tokenizer

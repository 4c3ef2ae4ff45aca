#include "reynard/tokenizer/sentencepiece.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/byte_pair_tokenizer.h"
#include "reynard/tokenizer/decoder.h"
#include "reynard/tokenizer/unicode.h"
#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>

namespace reynard::tokenizer {

namespace {

using Type = SentencePieceModel::Type;

bool is_plain(Type type) {
  return type == Type::kNormal || type == Type::kUserDefined;
}

constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

// The bytes of the character that the text begins with; 0: there is none.
std::size_t valid_character(std::string_view text) {
  const auto length = static_cast<std::size_t>(code_point_at(text, 0).length);
  return is_utf8(text.substr(0, length)) ? length : 0;
}

// Text that is joined to pieces starts as single characters, so each must be a piece itself.
void check_characters(const std::vector<RankedToken>& tokens, const std::string& where) {
  std::unordered_set<std::string_view> pieces;
  for (const RankedToken& token : tokens) pieces.insert(token.text);
  for (const RankedToken& token : tokens) {
    for (std::size_t i = 0; i < token.text.size();) {
      const auto length = static_cast<std::size_t>(code_point_at(token.text, i).length);
      const std::string_view character = token.text.substr(i, length);
      if (pieces.count(character) == 0) {
        throw Error(
            fmt::format("{}: the piece {:?} holds {:?}, which is no piece; this is not supported",
                        where,
                        token.text,
                        character));
      }
      i += length;
    }
  }
}

VocabularySpec vocabulary_of(const SentencePieceModel& model, const std::string& where) {
  VocabularySpec vocabulary;
  vocabulary.fuse_unknown = true;
  if (model.byte_fallback) vocabulary.byte_tokens.assign(256, -1);
  std::vector<RankedToken> ranked;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const auto& [text, score, type] = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (type == Type::kUnknown) vocabulary.unknown = id;
    if (type == Type::kByte && model.byte_fallback) {
      vocabulary.byte_tokens[static_cast<std::size_t>(byte_of_token(text))] = id;
    }
    if (is_plain(type)) vocabulary.tokens.push_back({text, id});
    if (type == Type::kNormal) ranked.push_back({text, id, -static_cast<double>(score)});
  }
  check_characters(ranked, where);
  vocabulary.merges = merges_of_ranked(ranked);
  return vocabulary;
}

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(SentencePieceModel model,
                                               const SentencePieceOptions& options,
                                               const std::string& where)
    : model_(std::move(model)),
      options_(options),
      space_(model_.escape_whitespaces ? kMetaspace : " "),
      characters_(model_.character_map, where),
      vocabulary_(vocabulary_of(model_, where)) {
  for (std::size_t i = 0; i < model_.pieces.size(); ++i) {
    const auto& [text, score, type] = model_.pieces[i];
    const auto id = static_cast<int64_t>(i);
    if (type == Type::kUserDefined) {
      if (text.find(kMetaspace) != std::string::npos || text.find(' ') != std::string::npos) {
        throw Error(fmt::format(
            "{}: user-defined pieces with spaces, like {:?}, are not supported", where, text));
      }
      user_defined_.add(text, {.content = text, .id = static_cast<int32_t>(i)});
    }
    if (type == Type::kControl && text == model_.bos_piece) bos_ = id;
    if (type == Type::kControl && text == model_.eos_piece) eos_ = id;
  }
  add_tokens();
  if ((options_.add_bos && !bos_) || (options_.add_eos && !eos_)) {
    throw Error(fmt::format("{}: has no piece that {} a text", where, bos_ ? "ends" : "begins"));
  }
}

// To decoding, special ones are control pieces and others user-defined ones.
void SentencePieceTokenizer::add_tokens() {
  for (const AddedToken& token : options_.added_tokens) {
    const auto id = static_cast<std::size_t>(token.id);
    if (id >= model_.pieces.size()) model_.pieces.resize(id + 1);
    model_.pieces[id].text = token.content;
    model_.pieces[id].type = token.special ? Type::kControl : Type::kUserDefined;
    added_tokens_.add(token.content, token);
  }
  for (std::size_t id = 0; id < model_.pieces.size(); ++id) {
    const std::string& text = model_.pieces[id].text;
    if (text.empty()) continue;
    if (text == options_.bos) bos_ = static_cast<int64_t>(id);
    if (text == options_.eos) eos_ = static_cast<int64_t>(id);
  }
}

std::size_t SentencePieceTokenizer::safe_prefix(std::string_view text) const {
  // Rules may reach from a letter to a space; words touch where "▁" is inside pieces.
  if (!characters_.empty() || !model_.escape_whitespaces) return 0;
  if (!vocabulary_.splits_at_metaspace() || !added_tokens_.keeps_word_ends()) return 0;
  return last_safe_place(text, SafePlaces::kWordEnds);
}

SentencePieceTokenizer::Replaced SentencePieceTokenizer::replaced_prefix(
    std::string_view text) const {
  if (const CharacterMap::Match rule = characters_.match(text); rule.length > 0) {
    return {rule.replacement, rule.length};
  }
  if (const std::size_t length = valid_character(text); length > 0) {
    return {text.substr(0, length), length};
  }
  return {kReplacementCharacter, 1};  // every byte that belongs to no character is one
}

std::string SentencePieceTokenizer::normalized(std::string_view text, bool continues) const {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  const bool one_space = model_.remove_extra_whitespaces;
  const bool copies = characters_.empty() && is_utf8(text);
  bool behind_space = one_space && !continues;
  bool begun = continues || !model_.add_dummy_prefix;
  const auto add_letters = [&](std::string_view letters) {
    if (!begun) out += space_;
    begun = true;
    behind_space = false;
    out += letters;
  };
  const auto add = [&](std::string_view normal) {
    if (normal.empty()) return;
    const bool ends_with_space = normal.ends_with(' ');
    while (!normal.empty()) {
      const std::size_t size = std::min(normal.find(' '), normal.size());
      if (size > 0) add_letters(normal.substr(0, size));
      if (size < normal.size() && !behind_space) add_letters(space_);
      normal.remove_prefix(std::min(size + 1, normal.size()));
    }
    behind_space = one_space && ends_with_space;  // only what the whole ends with counts
  };
  user_defined_.split(text, [&](std::string_view part, int32_t id) {
    if (id >= 0) return add(part);
    while (!part.empty()) {
      // What is only copied goes by words, and spaces one by one.
      const std::size_t word = std::clamp<std::size_t>(part.find(' '), 1, part.size());
      const Replaced next = copies ? Replaced{part.substr(0, word), word} : replaced_prefix(part);
      add(next.normal);
      part.remove_prefix(next.length);
    }
  });
  if (!begun && !one_space && !text.empty()) out += space_;
  const std::string_view space = space_;
  while (one_space && out.size() >= space.size() &&
         std::string_view(out).substr(out.size() - space.size()) == space) {
    out.resize(out.size() - space.size());
  }
  return out;
}

std::vector<int32_t> SentencePieceTokenizer::encode_text(std::string_view text,
                                                         const EncodeOptions& options) const {
  std::unique_ptr<Scratch> scratch = scratches_.take();
  std::vector<int32_t> ids;
  if (options.add_template && options_.add_bos) ids.push_back(static_cast<int32_t>(*bos_));
  ids.reserve(ids.size() + text.size() / 4);
  bool continues = options.continues || (options.behind_token && !options_.legacy);
  added_tokens_.split(text, [&](std::string_view part, int32_t id) {
    if (id >= 0) {
      ids.push_back(id);
    } else {
      for_each_chunk(*this, part, continues, [&](std::string_view chunk, bool goes_on) {
        encode_chunk(chunk, goes_on, ids, *scratch);
      });
    }
    continues = !options_.legacy;  // behind a token
  });
  if (options.add_template && options_.add_eos) ids.push_back(static_cast<int32_t>(*eos_));
  scratches_.give_back(std::move(scratch));
  return ids;
}

void SentencePieceTokenizer::encode_chunk(std::string_view text,
                                          bool continues,
                                          std::vector<int32_t>& ids,
                                          Scratch& scratch) const {
  std::string normal = normalized(text, continues);
  const std::size_t size = normal.size();
  normal.append(PieceCache::kPadding, '\0');
  user_defined_.split(std::string_view(normal).substr(0, size),
                      [&](std::string_view part, int32_t id) {
                        if (id >= 0) {
                          ids.push_back(id);
                        } else {
                          vocabulary_.encode(part, ids, scratch);
                        }
                      });
}

std::string SentencePieceTokenizer::decode_ids(std::span<const int64_t> ids,
                                               const DecodeOptions& options) const {
  check_ids(ids, vocab_size(), name());
  std::string text;
  std::string bytes;
  std::size_t num_special_bytes = 0;  // of the names in `text`
  const auto flush = [&] {
    if (options.raw_bytes) text += std::exchange(bytes, {});
    for (std::string_view rest = bytes; !rest.empty();) {
      const std::size_t length = valid_character(rest);
      text += length > 0 ? rest.substr(0, length) : kReplacementCharacter;
      rest.remove_prefix(std::max<std::size_t>(length, 1));
    }
    bytes.clear();
  };
  bool at_begin = true;
  bool mark_taken = false;
  for (const int64_t id : ids) {
    const auto& [piece, score, type] = model_.pieces[static_cast<std::size_t>(id)];
    if (type == Type::kByte) {
      bytes += static_cast<char>(byte_of_token(piece));
      continue;
    }
    flush();
    if (mark_taken || text.size() > num_special_bytes) at_begin = false;
    mark_taken = false;
    if (type == Type::kControl) {
      if (!options.keep_special) continue;
      text += piece;
      num_special_bytes += piece.size();
      continue;
    }
    if (type == Type::kUnknown) {
      text += model_.unknown_surface;
      continue;
    }
    std::string_view rest = piece;
    if (at_begin && (model_.add_dummy_prefix || model_.remove_extra_whitespaces) &&
        rest.substr(0, kMetaspace.size()) == kMetaspace) {
      rest.remove_prefix(kMetaspace.size());
      mark_taken = !model_.remove_extra_whitespaces;
    }
    text += replace_all(rest, kMetaspace, " ");
  }
  flush();
  return text;
}

}  // namespace reynard::tokenizer

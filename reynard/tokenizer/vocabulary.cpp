#include "reynard/tokenizer/vocabulary.h"

#include "reynard/tokenizer/unicode.h"

#include <algorithm>
#include <utility>

namespace reynard::tokenizer {

Vocabulary::Vocabulary(VocabularySpec spec)
    : merges_(spec.merges.size()),
      bytes_(spec.bytes),
      whole_pieces_first_(spec.whole_pieces_first),
      unknown_(spec.unknown),
      fuse_unknown_(spec.fuse_unknown),
      byte_tokens_(std::move(spec.byte_tokens)) {
  by_text_.reserve(spec.tokens.size());
  find_smallest(spec);
  look_for_boundaries(spec);
  for (const auto& [left, right, joined, rank] : spec.merges) {
    merges_.set(left, right, {.rank = rank, .joined = joined});
  }
  for (VocabularySpec::Token& token : spec.tokens) by_text_[std::move(token.text)] = token.id;
}

void Vocabulary::find_smallest(const VocabularySpec& spec) {
  by_byte_.fill(-1);
  for (const auto& [text, id] : spec.tokens) {
    if (text.empty()) continue;
    const auto first = static_cast<unsigned char>(text[0]);
    if (bytes_ || first < 0x80) {
      if (text.size() == 1) by_byte_[first] = id;
    } else if (const CodePoint c = code_point_at(text, 0);
               static_cast<std::size_t>(c.length) == text.size()) {
      by_character_[c.value] = id;
    }
  }
}

void Vocabulary::look_for_boundaries(const VocabularySpec& spec) {
  splits_at_metaspace_ = !bytes_ && by_character_.count(0x2581) > 0;
  const bool all_bytes =
      byte_tokens_.size() == 256 &&
      std::all_of(byte_tokens_.begin(), byte_tokens_.end(), [](int32_t id) { return id >= 0; });
  for (std::size_t c = 0; c < 0x80; ++c) {
    // Unknown characters may be fused with their neighbours.
    if (all_bytes || by_byte_[c] >= 0) boundaries_[c] = Boundary::kAlone;
  }
  for (const auto& [text, id] : spec.tokens) {
    if (text.size() > 1) {
      for (const char c : text) boundaries_[static_cast<unsigned char>(c)] = Boundary::kNone;
    }
    std::size_t first = 0;
    while (std::string_view(text).substr(first, kMetaspace.size()) == kMetaspace) {
      first += kMetaspace.size();
    }
    if (text.find(kMetaspace, first) != std::string::npos) splits_at_metaspace_ = false;
  }
  boundaries_[static_cast<unsigned char>(kMetaspace[0])] = Boundary::kMetaspace;
}

int32_t Vocabulary::find(std::string_view token) const {
  const auto found = by_text_.find(token);
  return found == by_text_.end() ? -1 : found->second;
}

bool Vocabulary::falls_back(std::string_view character, std::vector<int32_t>& ids) const {
  if (byte_tokens_.empty()) return false;
  const auto id_of = [&](char byte) { return byte_tokens_[static_cast<unsigned char>(byte)]; };
  if (std::any_of(character.begin(), character.end(), [&](char byte) { return id_of(byte) < 0; })) {
    return false;
  }
  for (const char byte : character) ids.push_back(id_of(byte));
  return true;
}

void Vocabulary::smallest_tokens(std::string_view piece, std::vector<int32_t>& ids) const {
  bool pending = false;  // an unknown character that may be joined by more
  for (std::size_t i = 0; i < piece.size();) {
    std::size_t length = 1;
    int32_t id = -1;
    const auto byte = static_cast<unsigned char>(piece[i]);
    if (bytes_ || byte < 0x80) {
      id = by_byte_[byte];
    } else {
      const CodePoint c = code_point_at(piece, i);
      length = static_cast<std::size_t>(c.length);
      const auto found = by_character_.find(c.value);
      if (found != by_character_.end()) id = found->second;
    }
    const std::string_view character = piece.substr(i, length);
    i += length;
    if (id >= 0) {
      if (pending) ids.push_back(unknown_);
      pending = false;
      ids.push_back(id);
    } else if (!falls_back(character, ids) && unknown_ >= 0) {
      if (pending && !fuse_unknown_) ids.push_back(unknown_);
      pending = true;
    }
  }
  if (pending) ids.push_back(unknown_);
}

void Vocabulary::encode_cached(std::string_view piece,
                               std::vector<int32_t>& ids,
                               Scratch& scratch) const {
  const bool cached = piece.size() <= PieceCache::kMaxBytes;
  PieceCache::Entry* entry = nullptr;
  if (cached) {
    const PieceCache::Place place = scratch.cache.find(piece);
    if (place.hit) {
      ids.insert(ids.end(), place.entry.ids, place.entry.ids + place.entry.num_ids);
      return;
    }
    entry = &place.entry;
  }
  std::vector<int32_t>& joined = scratch.ids;
  joined.clear();
  const int32_t whole = whole_pieces_first_ && !splits_at_metaspace_ ? find(piece) : -1;
  if (whole >= 0) {
    joined.push_back(whole);
  } else {
    smallest_tokens(piece, joined);
    joined.resize(join_pairs(merges_, joined));
  }
  if (entry) PieceCache::store(*entry, joined);
  ids.insert(ids.end(), joined.begin(), joined.end());
}

void Vocabulary::encode(std::string_view piece, std::vector<int32_t>& ids, Scratch& scratch) const {
  if (piece.empty()) return;
  if (!splits_at_metaspace_) return encode_cached(piece, ids, scratch);
  if (whole_pieces_first_) {
    if (const int32_t whole = find(piece); whole >= 0) {
      ids.push_back(whole);
      return;
    }
  }
  std::size_t begin = 0;
  const auto encode_up_to = [&](std::size_t end) {
    if (end > begin) encode_cached(piece.substr(begin, end - begin), ids, scratch);
    begin = end;
  };
  bool behind_mark = false;
  for (std::size_t i = 0; i < piece.size();) {
    const Boundary boundary = boundaries_[static_cast<unsigned char>(piece[i])];
    const bool mark =
        boundary == Boundary::kMetaspace && piece.substr(i, kMetaspace.size()) == kMetaspace;
    if (mark) {
      if (!behind_mark) encode_up_to(i);
      i += kMetaspace.size();
    } else if (boundary == Boundary::kAlone) {
      encode_up_to(i);
      smallest_tokens(piece.substr(i, 1), ids);
      begin = ++i;
    } else {
      ++i;
    }
    behind_mark = mark;
  }
  encode_up_to(piece.size());
}

std::vector<VocabularySpec::Pair> merges_of_ranked(const std::vector<RankedToken>& tokens) {
  std::unordered_map<std::string_view, const RankedToken*> by_text;
  by_text.reserve(tokens.size());
  for (const RankedToken& token : tokens) by_text[token.text] = &token;
  std::vector<const RankedToken*> order;
  order.reserve(tokens.size());
  for (const RankedToken& token : tokens) order.push_back(&token);
  std::stable_sort(order.begin(), order.end(), [](const RankedToken* a, const RankedToken* b) {
    return a->rank < b->rank;
  });
  std::vector<VocabularySpec::Pair> merges;
  int32_t rank = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const RankedToken* token = order[i];
    if (i > 0 && token->rank > order[i - 1]->rank) ++rank;
    for (std::size_t cut = 1; cut < token->text.size(); ++cut) {
      const auto left = by_text.find(token->text.substr(0, cut));
      if (left == by_text.end()) continue;
      const auto right = by_text.find(token->text.substr(cut));
      if (right == by_text.end()) continue;
      merges.push_back({left->second->id, right->second->id, token->id, rank});
    }
  }
  return merges;
}

}  // namespace reynard::tokenizer

#include "reynard/tokenizer/train_bpe.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/byte_alphabet.h"
#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <queue>

namespace reynard::tokenizer {

namespace {

// The bytes in the order of the characters that stand for them.
std::array<unsigned char, 256> bytes_by_character() {
  std::array<unsigned char, 256> bytes;
  std::iota(bytes.begin(), bytes.end(), 0);
  // UTF-8 sorts as the characters do.
  std::sort(bytes.begin(), bytes.end(), [](unsigned char a, unsigned char b) {
    const auto character = [](unsigned char byte) {
      return characters_of_bytes(std::string(1, static_cast<char>(byte)));
    };
    return character(a) < character(b);
  });
  return bytes;
}

uint64_t key_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}
int32_t left_of(uint64_t pair) {
  return static_cast<int32_t>(pair >> 32);
}
int32_t right_of(uint64_t pair) {
  return static_cast<int32_t>(pair & 0xffffffffU);
}

class Learner {
 public:
  explicit Learner(const PieceCounts& counts) {
    std::array<int32_t, 256> ids;
    const auto bytes = bytes_by_character();
    for (int32_t i = 0; i < 256; ++i) ids[bytes[static_cast<std::size_t>(i)]] = i;
    for (const auto& [piece, count] : counts.sorted()) {
      if (piece.size() < 2) continue;
      words_.push_back({tokens_.size(), piece.size(), count});
      for (const char c : piece) tokens_.push_back(ids[static_cast<unsigned char>(c)]);
    }
    for (uint32_t w = 0; w < words_.size(); ++w) {
      const Word& word = words_[w];
      for (std::size_t i = 0; i + 1 < word.size; ++i) {
        change(tokens_[word.begin + i], tokens_[word.begin + i + 1], w, word.count);
      }
    }
    offer_changed();
  }

  // Joins the best pair to the token `id` and returns it; nothing where none occurs often enough.
  std::optional<uint64_t> join_best(int32_t id, int64_t min_count) {
    while (!heap_.empty()) {
      const Candidate best = heap_.top();
      heap_.pop();
      const auto found = pairs_.find(best.pair);
      if (found == pairs_.end()) continue;
      if (found->second.count != best.count) {  // some of them were joined to others
        if (found->second.count > 0) heap_.push({found->second.count, best.pair});
        continue;
      }
      if (best.count < min_count) return std::nullopt;
      const std::vector<uint32_t> words = std::move(found->second.words);
      for (const uint32_t word : words) join(words_[word], word, best.pair, id);
      pairs_.erase(best.pair);
      offer_changed();
      return best.pair;
    }
    return std::nullopt;
  }

 private:
  struct Word {
    std::size_t begin;  // in tokens_
    std::size_t size;   // tokens left
    int64_t count;
  };
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> words;  // that hold it, or held it
    bool grew = false;
  };
  struct Candidate {
    int64_t count;
    uint64_t pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void change(int32_t left, int32_t right, uint32_t word, int64_t by) {
    const uint64_t key = key_of(left, right);
    Pair& pair = pairs_[key];
    pair.count += by;
    if (by <= 0) return;
    if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
    if (!pair.grew) grown_.push_back(key);
    pair.grew = true;
  }

  // Pairs that became more frequent; those that became rarer are found out when their turn comes.
  void offer_changed() {
    for (const uint64_t key : grown_) {
      const auto found = pairs_.find(key);
      if (found == pairs_.end()) continue;
      found->second.grew = false;
      if (found->second.count > 0) heap_.push({found->second.count, key});
    }
    grown_.clear();
  }

  void join(Word& word, uint32_t index, uint64_t pair, int32_t id) {
    int32_t* tokens = tokens_.data() + word.begin;
    std::size_t end = 0;  // of what is done
    for (std::size_t i = 0; i < word.size;) {
      if (i + 1 == word.size || key_of(tokens[i], tokens[i + 1]) != pair) {
        tokens[end++] = tokens[i++];
        continue;
      }
      change(left_of(pair), right_of(pair), index, -word.count);
      if (end > 0) {
        change(tokens[end - 1], left_of(pair), index, -word.count);
        change(tokens[end - 1], id, index, word.count);
      }
      if (i + 2 < word.size) {
        change(right_of(pair), tokens[i + 2], index, -word.count);
        change(id, tokens[i + 2], index, word.count);
      }
      tokens[end++] = id;
      i += 2;
    }
    word.size = end;
  }

  std::vector<int32_t> tokens_;
  std::vector<Word> words_;
  std::unordered_map<uint64_t, Pair> pairs_;
  std::priority_queue<Candidate> heap_;
  std::vector<uint64_t> grown_;
};

nlohmann::json splitter_json(SplitPattern pattern) {
  nlohmann::json byte_level = {{"type", "ByteLevel"},
                               {"add_prefix_space", false},
                               {"trim_offsets", true},
                               {"use_regex", pattern == SplitPattern::kGpt2}};
  if (pattern == SplitPattern::kGpt2) return byte_level;
  nlohmann::json split = {{"type", "Split"},
                          {"pattern", {{"Regex", regex_of(pattern)}}},
                          {"behavior", "Isolated"},
                          {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}};
}

}  // namespace

void PieceCounts::add(std::string_view text) {
  pieces_.clear();
  split_text(pattern_, text, pieces_);
  for (const std::string_view piece : pieces_) {
    const auto found = counts_.find(piece);
    if (found != counts_.end()) {
      ++found->second;
    } else {
      counts_.emplace(piece, 1);
    }
  }
}

void PieceCounts::add(const PieceCounts& other) {
  for (const auto& [piece, count] : other.counts_) counts_[piece] += count;
}

std::vector<std::pair<std::string_view, int64_t>> PieceCounts::sorted() const {
  std::vector<std::pair<std::string_view, int64_t>> all(counts_.begin(), counts_.end());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  return all;
}

Merges learn_merges(const PieceCounts& counts, const LearnOptions& options) {
  constexpr int64_t kReportEvery = 256;
  Learner learner(counts);
  Merges merges;
  for (int64_t i = 0; i < options.num_merges; ++i) {
    if (options.progress && i % kReportEvery == 0) options.progress(i, options.num_merges);
    const auto pair = learner.join_best(static_cast<int32_t>(256 + i), options.min_count);
    if (!pair) break;
    merges.emplace_back(left_of(*pair), right_of(*pair));
  }
  return merges;
}

void check_special_tokens(const std::vector<std::string>& special_tokens) {
  for (const std::string& token : special_tokens) {
    if (!is_utf8(token)) {
      throw Error(fmt::format("tokenizer train: --special {:?}: is not UTF-8", token));
    }
    const std::optional<std::string> bytes = bytes_of_characters(token);
    if (!bytes || bytes->size() != 1) continue;
    throw Error(fmt::format(
        "tokenizer train: --special {}: is the token of a byte; give another, such as <|{}|>",
        token,
        token));
  }
}

std::string bpe_tokenizer_json(const Merges& merges,
                               SplitPattern pattern,
                               const std::vector<std::string>& special_tokens) {
  using Json = nlohmann::json;
  check_special_tokens(special_tokens);
  std::vector<std::string> tokens;
  for (const unsigned char byte : bytes_by_character()) {
    tokens.push_back(characters_of_bytes(std::string(1, static_cast<char>(byte))));
  }
  Json pairs = Json::array();
  for (const auto& [left, right] : merges) {
    const std::string a = tokens[static_cast<std::size_t>(left)];
    const std::string b = tokens[static_cast<std::size_t>(right)];
    pairs.push_back(a + " " + b);
    tokens.push_back(a + b);
  }
  Json vocab = Json::object();
  for (std::size_t id = 0; id < tokens.size(); ++id) vocab[tokens[id]] = id;
  Json added = Json::array();
  for (const std::string& token : special_tokens) {
    if (vocab.contains(token)) {
      throw Error(fmt::format(
          "tokenizer train: --special {}: is a token that was learnt; give another, such as <|{}|>",
          token,
          token));
    }
    added.push_back({{"id", tokens.size() + added.size()},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", true},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  const Json file = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", splitter_json(pattern)},
                     {"post_processor", nullptr},
                     {"decoder", byte_level},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false},
                       {"vocab", vocab},
                       {"merges", pairs}}}};
  return file.dump() + "\n";
}

}  // namespace reynard::tokenizer

#include "reynard/tokenizer/added_token_list.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

namespace reynard::tokenizer {

namespace {

using nlohmann::json;

// Without its id. normalized: where the object does not say it.
AddedToken read_description(const JsonObject& object, bool normalized) {
  return {.content = object.text("content"),
          .id = -1,
          .single_word = object.flag_or("single_word", false),
          .lstrip = object.flag_or("lstrip", false),
          .rstrip = object.flag_or("rstrip", false),
          .normalized = object.flag_or("normalized", normalized),
          .special = object.flag_or("special", false)};
}

int32_t read_id(std::string_view digits, const JsonObject& token) {
  int32_t id = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
  if (error != std::errc{} || end != digits.data() + digits.size() || id < 0 ||
      id >= kMaxVocabulary) {
    token.fail(fmt::format("the id of {:?} is {:?}; expected 0 to {}",
                           token.text("content"),
                           digits.substr(0, 40),
                           kMaxVocabulary - 1));
  }
  return id;
}

// Gives the tokens of lists their ids, one list after the other.
class Placement {
 public:
  Placement(const TokenIds& vocabulary, std::vector<std::string>& token_texts)
      : vocabulary_(vocabulary),
        token_texts_(token_texts),
        next_(static_cast<int32_t>(vocabulary.size())) {}

  void add(const AddedTokenList& list) {
    for (const AddedToken& token : list.tokens) {
      if (token.content.empty()) continue;
      const auto known = places_.find(token.content);
      if (known == places_.end()) {
        add_unknown(token, list.where);
        continue;
      }
      AddedToken& other = placed_[known->second];
      const int32_t id = other.id;
      check_id(token, id, list.where);
      if (list.describes) {
        other = token;
        other.id = id;
      } else {
        other.special = other.special || token.special;
      }
    }
  }

  std::vector<AddedToken> take() { return std::move(placed_); }

 private:
  void add_unknown(const AddedToken& token, const std::string& where) {
    const auto in_vocabulary = vocabulary_.find(token.content);
    const bool has_id = in_vocabulary != vocabulary_.end();
    if (token.id < 0 && !has_id) return;
    const int32_t id = has_id ? in_vocabulary->second : next_++;
    check_id(token, id, where);
    const auto index = static_cast<std::size_t>(id);
    if (index >= token_texts_.size()) token_texts_.resize(index + 1);
    std::string& text = token_texts_[index];
    if (!text.empty() && text != token.content) {
      throw Error(fmt::format(
          "{}: {:?} has the id {}, which is that of {:?} too", where, token.content, id, text));
    }
    text = token.content;
    places_.emplace(token.content, placed_.size());
    placed_.push_back(token);
    placed_.back().id = id;
  }

  static void check_id(const AddedToken& token, int32_t id, const std::string& where) {
    if (token.id < 0 || token.id == id) return;
    throw Error(fmt::format(
        "{}: {:?} has the id {}, but would get {}: ids behind the vocabulary follow one by one",
        where,
        token.content,
        token.id,
        id));
  }

  const TokenIds& vocabulary_;
  std::vector<std::string>& token_texts_;
  int32_t next_;
  std::vector<AddedToken> placed_;
  std::unordered_map<std::string, std::size_t> places_;  // in placed_, by content
};

}  // namespace

AddedTokenList read_added_tokens(const JsonObject& file) {
  AddedTokenList list{.where = file.where() + ": added_tokens", .tokens = {}};
  if (!file.has("added_tokens")) return list;
  const json& entries = file.value("added_tokens");
  if (!entries.is_array()) file.fail("\"added_tokens\" must be a list");
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const JsonObject object(entries[i], fmt::format("{}[{}]", list.where, i));
    AddedToken token = read_description(object, /*normalized=*/true);
    token.id = static_cast<int32_t>(object.whole_number("id", 0, kMaxVocabulary - 1));
    list.tokens.push_back(std::move(token));
  }
  return list;
}

AddedTokenList read_added_tokens_decoder(const JsonObject& config,
                                         const std::unordered_set<std::string>& special) {
  const JsonObject entries = config.object("added_tokens_decoder");
  AddedTokenList list{.where = entries.where(), .tokens = {}};
  for (const auto& [id, entry] : config.value("added_tokens_decoder").items()) {
    const JsonObject object(entry, fmt::format("{}: {}", list.where, id.substr(0, 40)));
    AddedToken token = read_description(object, !object.flag_or("special", false));
    token.id = read_id(id, object);
    token.special = token.special || special.contains(token.content);
    list.tokens.push_back(std::move(token));
  }
  std::ranges::stable_sort(list.tokens, {}, &AddedToken::id);  // the order in which they get ids
  return list;
}

AddedTokenList read_added_token_ids(const json& contents,
                                    const std::string& where,
                                    const std::unordered_set<std::string>& special) {
  const JsonObject object(contents, where);
  AddedTokenList list{.where = where, .tokens = {}, .describes = false};
  for (const auto& [content, value] : contents.items()) {
    const int64_t id = object.whole_number(content, 0, kMaxVocabulary - 1);
    const bool is_special = special.contains(content);
    list.tokens.push_back({.content = content,
                           .id = static_cast<int32_t>(id),
                           .normalized = !is_special,
                           .special = is_special});
  }
  std::ranges::stable_sort(list.tokens, {}, &AddedToken::id);  // the order in which they get ids
  return list;
}

AddedToken read_named_token(const json& token, const std::string& where) {
  if (token.is_string()) {
    return {.content = token.get<std::string>(), .id = -1, .normalized = false, .special = true};
  }
  AddedToken read = read_description(JsonObject(token, where), /*normalized=*/false);
  read.special = true;
  return read;
}

std::vector<AddedToken> place_added_tokens(std::span<const AddedTokenList> lists,
                                           const TokenIds& vocabulary,
                                           std::vector<std::string>& token_texts) {
  Placement placement(vocabulary, token_texts);
  for (const AddedTokenList& list : lists) placement.add(list);
  return placement.take();
}

}  // namespace reynard::tokenizer

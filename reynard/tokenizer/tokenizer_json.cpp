#include "reynard/tokenizer/tokenizer_json.h"

#include "reynard/config/json_file.h"
#include "reynard/tokenizer/byte_alphabet.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace reynard::tokenizer {

namespace {

using nlohmann::json;

TokenIds read_ids(const JsonObject& model) {
  const JsonObject vocab = model.object("vocab");
  const json& entries = model.value("vocab");
  TokenIds ids;
  ids.reserve(entries.size());
  std::vector<bool> taken;
  for (const auto& [token, id] : entries.items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= kMaxVocabulary) {
      vocab.fail(fmt::format("the id of {:?} is {}; expected 0 to {}",
                             token,
                             config::ascii_json_text(id).substr(0, 40),
                             kMaxVocabulary - 1));
    }
    const auto index = id.get<std::size_t>();
    if (index >= taken.size()) taken.resize(index + 1);
    if (taken[index]) vocab.fail(fmt::format("two tokens have the id {}", index));
    taken[index] = true;
    ids[token] = static_cast<int32_t>(index);
  }
  return ids;
}

struct MergeText {
  std::string left;
  std::string right;
};

// ["a", "b"] or "a b"
MergeText read_merge(const json& merge, const JsonObject& model, std::size_t rank) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const std::size_t blank = text.find(' ');
    if (blank != std::string::npos && text.find(' ', blank + 1) == std::string::npos) {
      return {text.substr(0, blank), text.substr(blank + 1)};
    }
  }
  model.fail(fmt::format("merges[{}] is not a pair of tokens", rank));
}

std::vector<VocabularySpec::Pair> read_merges(const JsonObject& model, const TokenIds& ids) {
  const json& list = model.value("merges");
  if (!list.is_array()) model.fail("\"merges\" must be a list");
  if (list.size() > static_cast<std::size_t>(kMaxVocabulary)) model.fail("too many merges");
  std::vector<VocabularySpec::Pair> merges;
  merges.reserve(list.size());
  for (std::size_t rank = 0; rank < list.size(); ++rank) {
    const MergeText merge = read_merge(list[rank], model, rank);
    const auto id = [&](const std::string& token) {
      const auto found = ids.find(token);
      if (found == ids.end()) {
        model.fail(
            fmt::format("merges[{}] needs the token {:?}, which is not in vocab", rank, token));
      }
      return found->second;
    };
    merges.push_back({id(merge.left),
                      id(merge.right),
                      id(merge.left + merge.right),
                      static_cast<int32_t>(rank)});
  }
  return merges;
}

void refuse_unsupported(const JsonObject& model) {
  if (model.text_or("type", "BPE") != "BPE") {
    model.fail(fmt::format("the model \"{}\" is not supported; expected BPE", model.type()));
  }
  if (model.has("dropout") && model.value("dropout") != 0) {
    model.fail("\"dropout\" is not supported");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.text_or(key, "").empty()) model.fail(fmt::format("\"{}\" is not supported", key));
  }
}

std::vector<int32_t> read_byte_tokens(const TokenIds& ids) {
  std::vector<int32_t> tokens(256, -1);
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(fmt::format("<0x{:02X}>", byte));
    if (found != ids.end()) tokens[static_cast<std::size_t>(byte)] = found->second;
  }
  return tokens;
}

// The ids of [content, id] of the BERT-like processors.
int32_t read_token_id(const JsonObject& object, std::string_view key, std::size_t vocab_size) {
  const json& pair = object.value(key);
  if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number_integer() ||
      pair[1].get<int64_t>() < 0 || pair[1].get<int64_t>() >= static_cast<int64_t>(vocab_size)) {
    object.fail(fmt::format("\"{}\" must be a token and its id", key));
  }
  return pair[1].get<int32_t>();
}

void read_template(const JsonObject& processor, BytePairParts& parts) {
  const json& pieces = processor.value("single");
  if (!pieces.is_array()) processor.fail("\"single\" must be a list");
  bool behind_text = false;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const JsonObject piece(pieces[i], fmt::format("{}: single[{}]", processor.where(), i));
    if (piece.has("Sequence")) {
      if (behind_text || piece.object("Sequence").text("id") != "A") {
        piece.fail("expected the sequence A once");
      }
      behind_text = true;
      continue;
    }
    const std::string name = piece.object("SpecialToken").text("id");
    const JsonObject token = processor.object("special_tokens").object(name);
    const json& ids = token.value("ids");
    if (!ids.is_array()) token.fail("\"ids\" must be a list");
    for (const json& id : ids) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
          id.get<int64_t>() >= static_cast<int64_t>(parts.token_texts.size())) {
        token.fail("\"ids\" holds what is no id of the vocabulary");
      }
      (behind_text ? parts.template_after : parts.template_before).push_back(id.get<int32_t>());
    }
  }
  if (!behind_text) processor.fail("\"single\" has no sequence A");
}

void read_processor(const JsonObject& processor, BytePairParts& parts, bool nested) {
  const std::string type = processor.type();
  const bool is_first = parts.template_before.empty() && parts.template_after.empty();
  if (type == "Sequence" && !nested) {
    const json& list = processor.value("processors");
    if (!list.is_array()) processor.fail("\"processors\" must be a list");
    for (std::size_t i = 0; i < list.size(); ++i) {
      read_processor(JsonObject(list[i], fmt::format("{}[{}]", processor.where(), i)), parts, true);
    }
  } else if (type == "TemplateProcessing" && is_first) {
    read_template(processor, parts);
  } else if ((type == "RobertaProcessing" || type == "BertProcessing") && is_first) {
    parts.template_before.push_back(read_token_id(processor, "cls", parts.token_texts.size()));
    parts.template_after.push_back(read_token_id(processor, "sep", parts.token_texts.size()));
  } else if (type != "ByteLevel") {  // ByteLevel changes offsets only
    processor.fail(fmt::format("the post-processor \"{}\" {}is not supported{}",
                               type,
                               is_first ? "" : "behind another that adds tokens ",
                               nested ? " here" : ""));
  }
}

// What begins and ends texts, where only the names of the tokens say so.
void guess_ends(BytePairParts& parts) {
  static constexpr std::array begins = {"<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>"};
  static constexpr std::array ends = {"</s>", "<|end_of_text|>", "<|endoftext|>", "<eos>"};
  const auto find = [&](const auto& names) -> std::optional<int64_t> {
    for (const std::string_view name : names) {
      for (const AddedToken& token : parts.added_tokens) {
        if (token.special && token.content == name) return token.id;
      }
    }
    return std::nullopt;
  };
  parts.bos = find(begins);
  parts.eos = find(ends);
  // As GPT-2's: one special token for both.
  const auto num_special = std::count_if(parts.added_tokens.begin(),
                                         parts.added_tokens.end(),
                                         [](const AddedToken& token) { return token.special; });
  if (!parts.bos && num_special == 1) parts.bos = parts.eos;
  if (!parts.template_before.empty()) parts.bos = parts.template_before.front();
  if (!parts.template_after.empty()) parts.eos = parts.template_after.back();
}

}  // namespace

ReadModel read_model(const JsonObject& model, bool byte_level) {
  refuse_unsupported(model);
  ReadModel read;
  read.ids = read_ids(model);
  const TokenIds& ids = read.ids;
  VocabularySpec& vocabulary = read.vocabulary;
  vocabulary.merges = read_merges(model, ids);
  vocabulary.bytes = byte_level;
  vocabulary.whole_pieces_first = model.flag_or("ignore_merges", false);
  vocabulary.fuse_unknown = model.flag_or("fuse_unk", false);
  if (model.flag_or("byte_fallback", false)) {
    if (byte_level) model.fail("\"byte_fallback\" with ByteLevel is not supported");
    vocabulary.byte_tokens = read_byte_tokens(ids);
  }
  if (model.has("unk_token")) {
    const std::string unknown = model.text("unk_token");
    const auto found = ids.find(unknown);
    if (found == ids.end()) {
      model.fail(fmt::format("\"unk_token\" is {:?}, which is not in vocab", unknown));
    }
    vocabulary.unknown = found->second;
  }
  for (const auto& [token, id] : ids) {
    const auto index = static_cast<std::size_t>(id);
    if (index >= read.token_texts.size()) read.token_texts.resize(index + 1);
    read.token_texts[index] = token;
    if (!byte_level) {
      vocabulary.tokens.push_back({token, id});
    } else if (auto bytes = bytes_of_characters(token)) {  // others are never met
      vocabulary.tokens.push_back({*std::move(bytes), id});
    }
  }
  return read;
}

BytePairParts read_tokenizer_json(const json& contents,
                                  const std::string& where,
                                  std::span<const AddedTokenList> more) {
  const JsonObject file(contents, where);
  BytePairParts parts;
  if (file.has("normalizer")) parts.normalizer = read_normalizer(file.object("normalizer"));
  ReadPreTokenizer splitter;
  if (file.has("pre_tokenizer")) splitter = read_pre_tokenizer(file.object("pre_tokenizer"));
  parts.pre_tokenizer = std::move(splitter.splitter);
  // The mark depends on where the text began before that.
  if (!parts.normalizer.keeps_begin() && parts.pre_tokenizer.marks_begin()) {
    file.fail(
        "Prepend, Strip with strip_left, or Replace that may shorten the text, before Metaspace "
        "with prepend_scheme \"first\" is not supported");
  }
  ReadModel read = read_model(file.object("model"), splitter.byte_level);
  parts.vocabulary = std::move(read.vocabulary);
  parts.token_texts = std::move(read.token_texts);
  std::vector<AddedTokenList> lists = {read_added_tokens(file)};
  lists.insert(lists.end(), more.begin(), more.end());
  parts.added_tokens = place_added_tokens(lists, read.ids, parts.token_texts);
  if (file.has("post_processor")) read_processor(file.object("post_processor"), parts, false);
  if (file.has("decoder")) parts.decoder = read_decoder(file.object("decoder"));
  guess_ends(parts);
  parts.name = splitter.byte_level ? "byte-level BPE" : "BPE";
  return parts;
}

}  // namespace reynard::tokenizer

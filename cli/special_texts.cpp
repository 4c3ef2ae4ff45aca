#include "cli/special_texts.h"

#include "reynard/config/json_file.h"
#include "reynard/tokenizer/tokenizer.h"
#include "reynard/tokenizer/tokenizer_folder.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace reynard::cli {

namespace {

// Of Transformers, which know no special tokens of their own.
constexpr std::array kGenericClasses = {
    "PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend"};

bool is_generic(const nlohmann::json& config) {
  const auto name = config.find("tokenizer_class");
  return name != config.end() && std::ranges::find(kGenericClasses, *name) != kGenericClasses.end();
}

// By name; nothing: said to be none.
using Said = std::map<std::string, std::optional<std::string>>;

// A text, or an object whose "content" is one.
std::optional<std::string> text_of(const nlohmann::json& value) {
  if (value.is_object() && value.contains("content")) return text_of(value["content"]);
  return value.is_string() ? std::optional(value.get<std::string>()) : std::nullopt;
}

// What a file says, where none before it did.
void add_said(const nlohmann::json& file, Said& said) {
  if (!file.is_object()) return;
  for (const auto& [name, value] : file.items()) {
    const std::optional<std::string> text = text_of(value);
    if (name.ends_with("_token") && (text || value.is_null())) said.emplace(name, text);
  }
  const auto extra = file.find("extra_special_tokens");
  if (extra == file.end() || !extra->is_object()) return;
  for (const auto& [name, value] : extra->items()) {
    if (const std::optional<std::string> text = text_of(value)) said.emplace(name, text);
  }
}

}  // namespace

generation::SpecialTexts special_texts(const std::filesystem::path& folder,
                                       const tokenizer::Tokenizer& tokenizer) {
  Said said;
  const nlohmann::json config = config::json_object_or_null(folder / "tokenizer_config.json");
  if (!tokenizer::lists_added_tokens(config)) {
    add_said(config::json_object_or_null(folder / "special_tokens_map.json"), said);
  }
  add_said(config, said);
  const bool generic = is_generic(config);
  const auto take = [&](const char* name, std::optional<int64_t> id) -> std::string {
    if (const auto entry = said.extract(name)) return entry.mapped().value_or("");
    if (!id || generic) return "";
    const std::array<int64_t, 1> one = {*id};
    return tokenizer.decode(one, {.keep_special = true});
  };
  generation::SpecialTexts texts = {take("bos_token", tokenizer.bos()),
                                    take("eos_token", tokenizer.eos())};
  for (const auto& [name, text] : said) {
    if (text) texts.others.emplace_back(name, *text);
  }
  return texts;
}

}  // namespace reynard::cli

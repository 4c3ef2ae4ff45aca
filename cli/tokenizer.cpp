// reynard tokenizer encode|decode: text to token ids and back, as JSON lines. Training is in
// tokenizer_train.cpp.

#include "reynard/tokenizer/tokenizer.h"
#include "cli/command.h"
#include "reynard/config/json_file.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/json_string.h"
#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::cli {

namespace {

struct TokenizerArguments {
  std::string name;
  bool no_special = false;
  bool special = false;
};

constexpr const char* kTokenizers =
    "TOKENIZER is a model folder, tokenizer.json, a tiktoken rank file, a SentencePiece model or "
    "\"byte\". json: before it encodes JSON-escaped text as LongCrawl64 does; gpt2:, llama3: or "
    "qwen2: before a rank file of no known size says how text is split.\n";

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && std::string_view(" \t\r").find(line.back()) != std::string_view::npos) {
    line.remove_suffix(1);
  }
  const std::size_t first = line.find_first_not_of(" \t");
  return first == std::string_view::npos ? std::string_view() : line.substr(first);
}

// Calls `answer` for each line of the standard input that is not blank and prints what it returns.
void for_each_line(const std::function<std::string(std::string_view line)>& answer) {
  std::ios::sync_with_stdio(false);
  int64_t number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    ++number;
    const std::string_view content = trimmed(line);
    if (content.empty()) continue;
    std::string answered;
    try {
      answered = answer(content);
    } catch (const Error& error) {
      throw Error(fmt::format("line {}: {}", number, error.what()));
    }
    answered += '\n';
    // At once: who writes a line and waits for its answer must get it.
    if (std::fwrite(answered.data(), 1, answered.size(), stdout) != answered.size() ||
        std::fflush(stdout) != 0) {
      throw Error("the standard output cannot be written");
    }
  }
}

// The bytes of a JSON string. They need not be UTF-8: tokenizers say what they make of that.
std::string read_string(std::string_view line) {
  std::optional<std::string> text;
  if (line.size() >= 2 && line.front() == '"' && line.back() == '"') {
    text = tokenizer::from_json_string(line.substr(1, line.size() - 2));
  }
  if (!text) throw Error("is not a JSON string; write one text a line, such as \"Hello\"");
  return *std::move(text);
}

constexpr uint64_t kMaxId = std::numeric_limits<int64_t>::max();

std::vector<int64_t> read_ids(std::string_view line) {
  const auto json = config::parse_json_text(line);
  std::vector<int64_t> ids;
  bool good = json.is_array();
  for (std::size_t i = 0; good && i < json.size(); ++i) {
    good = json[i].is_number_integer() &&
           (!json[i].is_number_unsigned() || json[i].get<uint64_t>() <= kMaxId);
    if (good) ids.push_back(json[i].get<int64_t>());
  }
  if (!good) throw Error("is not a JSON list of token ids, such as [15496, 11]");
  return ids;
}

void run_encode(const TokenizerArguments& arguments) {
  const auto tokenizer = tokenizer::make_tokenizer(arguments.name);
  for_each_line([&](std::string_view line) {
    const auto ids = tokenizer->encode(read_string(line), {.add_template = !arguments.no_special});
    return fmt::format("[{}]", fmt::join(ids, ", "));
  });
}

void run_decode(const TokenizerArguments& arguments) {
  const auto tokenizer = tokenizer::make_tokenizer(arguments.name);
  for_each_line([&](std::string_view line) {
    const std::string text = tokenizer->decode(read_ids(line), {.keep_special = arguments.special});
    return fmt::format("\"{}\"", tokenizer::to_json_string(tokenizer::displayable(text)));
  });
}

void add_encode(CLI::App& command, const std::shared_ptr<TokenizerArguments>& arguments) {
  CLI::App* encode = command.add_subcommand("encode", "JSON strings to lists of token ids");
  encode->add_option("TOKENIZER", arguments->name, "see below")->required();
  encode->add_flag("--no-special",
                   arguments->no_special,
                   "without the tokens that the tokenizer puts around a text (BOS, EOS)");
  encode->footer(std::string("Reads one JSON string a line and writes one list of ids a line:\n"
                             "  echo '\"Hello, world\"' | reynard tokenizer encode "
                             "models/gpt2/tokenizer.json\n\n") +
                 kTokenizers);
  encode->callback([arguments] { run_encode(*arguments); });
}

void add_decode(CLI::App& command, const std::shared_ptr<TokenizerArguments>& arguments) {
  CLI::App* decode = command.add_subcommand("decode", "Lists of token ids to JSON strings");
  decode->add_option("TOKENIZER", arguments->name, "see below")->required();
  auto* special = decode->add_flag(
      "--special", arguments->special, "write special tokens (BOS, EOS, ...) as their names");
  decode->add_flag("--no-special", arguments->no_special, "leave special tokens out (the default)")
      ->excludes(special);
  decode->footer(std::string("Reads one JSON list of ids a line and writes one JSON string a "
                             "line:\n"
                             "  echo '[15496, 11, 995]' | reynard tokenizer decode "
                             "models/gpt2/tokenizer.json\n\n") +
                 kTokenizers);
  decode->callback([arguments] { run_decode(*arguments); });
}

}  // namespace

void add_tokenizer(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("tokenizer", "Text to token ids and back; vocabularies from text");
  command->require_subcommand(1);
  const auto arguments = std::make_shared<TokenizerArguments>();
  add_encode(*command, arguments);
  add_decode(*command, arguments);
  add_tokenizer_train(*command);
}

}  // namespace reynard::cli

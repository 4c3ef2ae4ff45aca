#include "cli/evaluation_inputs.h"

#include "cli/model_tokenizer.h"
#include "reynard/checkpoint/sha256.h"
#include "reynard/config/json_file.h"
#include "reynard/data/prepare.h"
#include "reynard/data/recorded_tokenizer.h"
#include "reynard/data/token_file.h"
#include "reynard/evaluation/length_rules.h"
#include "reynard/models/decoder_config.h"
#include "reynard/models/pretrained.h"
#include "reynard/process/temporary_folder.h"
#include "reynard/tensor/check.h"
#include "reynard/tokenizer/tokenizer.h"
#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace reynard::cli {

namespace {

namespace fs = std::filesystem;

std::string plain_name(const fs::path& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return normal.filename().empty() ? normal.parent_path().filename().string()
                                   : normal.filename().string();
}

// A token file made from text, removed when it is no longer read.
struct PreparedText {
  std::optional<process::TemporaryFolder> folder;
  std::unique_ptr<data::TokenFile> tokens;
};

// tokenizer: for text; empty: there is none.
std::shared_ptr<PreparedText> tokens_of(const fs::path& path, const std::string& tokenizer) {
  if (!fs::exists(path)) throw Error(fmt::format("{} does not exist", path.string()));
  auto text = std::make_shared<PreparedText>();
  if (path.extension() == ".tokens") {
    text->tokens = std::make_unique<data::TokenFile>(path);
    return text;
  }
  if (tokenizer.empty()) {
    throw Error(fmt::format("there is no tokenizer of the model for {}; name one with --tokenizer",
                            path.string()));
  }
  text->folder.emplace();
  data::PrepareOptions options;
  options.inputs = {path};
  options.output = text->folder->path();
  options.tokenizer = tokenizer;
  data::prepare(options);
  text->tokens = std::make_unique<data::TokenFile>(text->folder->path() / "train.tokens");
  return text;
}

TextCorpus open_text(const fs::path& path, const TextNeeds& needs) {
  const std::shared_ptr<PreparedText> text = tokens_of(path, needs.tokenizer);
  const data::TokenFile& tokens = *text->tokens;
  const data::TokenFileHeader& header = tokens.header();
  if (needs.vocab_size > 0 && header.vocab_size > needs.vocab_size) {
    throw Error(
        fmt::format("{} has a vocabulary of {} ({} tokenizer), the model one of {}; prepare "
                    "the text with "
                    "the tokenizer that the model was trained with",
                    path.string(),
                    header.vocab_size,
                    header.tokenizer,
                    needs.vocab_size));
  }
  TextCorpus result;
  result.name = plain_name(path);
  result.identity = checkpoint::sha256_hex_of_file(tokens.path());
  result.storage = text;
  evaluation::Corpus& corpus = result.corpus;
  corpus.num_tokens = tokens.num_tokens();
  for (int64_t d = 0; d < tokens.num_documents(); ++d) {
    // BOS and EOS stand around the text.
    corpus.documents.push_back({tokens.document_begin(d) + 1, tokens.document_end(d) - 1});
  }
  corpus.read = [&tokens](int64_t begin, int64_t end) { return tokens.read(begin, end - begin); };
  corpus.bos = needs.bos;
  corpus.eos = needs.eos;
  if (needs.bos_of_text && !corpus.bos) corpus.bos = header.bos;
  if (needs.eos_of_text && !corpus.eos) corpus.eos = header.eos;
  corpus.num_text_bytes = header.num_text_bytes;
  const std::shared_ptr<const tokenizer::Tokenizer> tokenizer = data::recorded_tokenizer(tokens);
  if (!needs.tokenizer.empty() && !text->folder) {
    check_same_tokenizer(*tokenizer,
                         path.string(),
                         *tokenizer::make_tokenizer(needs.tokenizer),
                         needs.owner,
                         "prepare the text with the tokenizer that the model was trained with");
  }
  corpus.vocab_size = tokenizer->vocab_size();
  corpus.encode = [tokenizer](std::string_view text) {
    const std::vector<int32_t> ids = tokenizer->encode(text);
    return std::vector<int64_t>(ids.begin(), ids.end());
  };
  corpus.decode = [tokenizer](const std::vector<int64_t>& ids) {
    std::vector<int64_t> known;
    for (const int64_t id : ids) {
      // A model's vocabulary may be padded beyond that of the tokenizer.
      if (id < tokenizer->vocab_size()) known.push_back(id);
    }
    return tokenizer::displayable(tokenizer->decode(known));
  };
  return result;
}

// "train=train.tokens" -> ("train", "train.tokens"); a file that is there keeps its whole name.
std::pair<std::string, std::string> name_and_file(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || fs::exists(text)) return {"", text};
  const std::string name = text.substr(0, equals);
  const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
  });
  return plain ? std::pair{name, text.substr(equals + 1)} : std::pair{std::string(), text};
}

}  // namespace

std::string identity_of(const fs::path& model) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(model)) {
    const std::string name = entry.path().filename().string();
    // trainer.safetensors of a checkpoint is no part of the model.
    if (name == "config.json" ||
        (entry.path().extension() == ".safetensors" && name.rfind("model", 0) == 0)) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::string digests;
  for (const fs::path& file : files) digests += checkpoint::sha256_hex_of_file(file);
  return checkpoint::sha256_hex(digests);
}

std::string as_folder_name(std::string name) {
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.' && c != '_') c = '-';
  }
  return name.empty() || name.front() == '.' ? "model" + name : name;
}

std::string ModelFolder::identity() const {
  return identity_of(model);
}

int64_t ModelFolder::train_length() const {
  const auto found = run_json.find("train_length");
  if (found == run_json.end() || !found->is_number_unsigned()) return 0;
  const auto length = found->get<uint64_t>();
  return length <= evaluation::kMaxLength ? static_cast<int64_t>(length) : 0;
}

fs::path ModelFolder::results() const {
  if (!run.empty() && model == run / "model") return run / "eval";
  return fs::path("eval") / name;
}

ModelFolder find_model(const fs::path& path) {
  ModelFolder folder;
  folder.model = models::model_folder(path);
  for (const fs::path& candidate : {path,
                                    fs::absolute(folder.model).parent_path(),
                                    fs::absolute(folder.model).parent_path().parent_path()}) {
    if (!fs::exists(candidate / "run.json")) continue;
    folder.run = candidate;
    folder.run_json = config::read_json_object(candidate / "run.json");
    break;
  }
  folder.name = plain_name(path);
  const auto name = folder.run_json.find("name");
  const bool whole_run = !folder.run.empty() && folder.model.filename() == "model";
  if (whole_run && name != folder.run_json.end() && name->is_string()) {
    folder.name = name->get<std::string>();
  }
  return folder;
}

TextCorpus open_texts(const std::vector<std::string>& texts,
                      const ModelFolder& folder,
                      const models::DecoderConfig& model,
                      const std::string& tokenizer) {
  return open_texts(texts,
                    {.tokenizer = tokenizer_of_model(folder.model, model.vocab_size, tokenizer),
                     .owner = tokenizer.empty() ? folder.model.string() : tokenizer,
                     .vocab_size = model.vocab_size,
                     .bos = model.bos_token_id,
                     .eos = model.eos_token_id,
                     .bos_of_text = !folder.run.empty(),
                     .eos_of_text = !folder.run.empty()});
}

TextCorpus open_texts(const std::vector<std::string>& texts, const TextNeeds& needs) {
  static const std::set<std::string> kTaken = {"text", "same", "random", "copy"};
  TextCorpus result;
  std::vector<evaluation::Corpus> others;
  auto storage = std::make_shared<std::vector<std::shared_ptr<const void>>>();
  std::string others_identity;
  for (const std::string& text : texts) {
    const auto named = name_and_file(text);
    const auto& name = named.first;  // a structured binding cannot be captured by clang 14
    const auto& file = named.second;
    TextCorpus opened = open_text(file, needs);
    storage->push_back(opened.storage);
    if (name.empty()) {
      if (!result.name.empty()) {
        throw Error(fmt::format(
            "two texts without a name, {} and {}; give further ones as --text NAME=FILE",
            result.name,
            opened.name));
      }
      result = std::move(opened);
      continue;
    }
    const bool known = std::any_of(
        others.begin(), others.end(), [&](const auto& other) { return other.name == name; });
    if (known || kTaken.contains(name)) {
      throw Error(fmt::format("--text {}: the name '{}' is taken", text, name));
    }
    opened.corpus.name = name;
    others.push_back(std::move(opened.corpus));
    others_identity += fmt::format(" {}={}", name, opened.identity);
  }
  if (result.name.empty()) {
    throw Error("every --text has a name; give the text to measure on as --text FILE");
  }
  result.corpus.others = std::move(others);
  result.identity += others_identity;
  result.storage = storage;
  return result;
}

}  // namespace reynard::cli

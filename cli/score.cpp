// reynard score MODEL --ids FILE.json | --texts FILE.json: log-probabilities of given tokens, one
// JSON line per list or text. Ctrl-C ends it after the list that is being scored.

#include "reynard/models/score.h"
#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/message.h"
#include "cli/model_tokenizer.h"
#include "cli/pruning_note.h"
#include "cli/stop_signal.h"
#include "cli/weight_option.h"
#include "reynard/config/json_file.h"
#include "reynard/config/text_file.h"
#include "reynard/models/decoder.h"
#include "reynard/models/pretrained.h"
#include "reynard/tensor/counted.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/tokenizer.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace reynard::cli {

namespace {

constexpr uintmax_t kMaxFileBytes = uintmax_t{1} << 30;

struct ScoreArguments {
  std::string model, ids, texts, tokenizer, dtype = "f32", device = "auto";
};

// The list that a file holds, or, of the name -, standard input. what: of what it is, for errors.
nlohmann::json read_list(const std::string& file, std::string_view what) {
  std::error_code error;
  const bool is_input = file == "-";
  if (!is_input && std::filesystem::is_other(file, error)) {
    throw Error(
        fmt::format("{}: is a pipe or a device; expected a file, or - for standard input", file));
  }
  auto json = config::parse_json_text(
      config::read_text_file(is_input ? "/dev/stdin" : file, kMaxFileBytes));
  if (!json.is_array()) throw Error(fmt::format("{}: is not a JSON list of {}", file, what));
  if (json.empty()) throw Error(fmt::format("{}: is an empty list; expected {}", file, what));
  return json;
}

std::vector<std::vector<int64_t>> read_ids(const std::string& file, int64_t vocab_size) {
  const nlohmann::json json = read_list(file, "lists of ids");
  std::vector<std::vector<int64_t>> lists;
  for (const auto& list : json) {
    const auto where = fmt::format("{}: list {}", file, lists.size());
    if (!list.is_array() || list.size() < 2) {
      throw Error(fmt::format("{} must be a list of at least 2 token ids", where));
    }
    std::vector<int64_t>& ids = lists.emplace_back();
    for (const auto& id : list) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab_size) {
        throw Error(fmt::format("{}: {} at position {} is not a token id of 0 to {}",
                                where,
                                id.dump(-1, ' ', true).substr(0, 40),
                                ids.size(),
                                vocab_size - 1));
      }
      ids.push_back(id.get<int64_t>());
    }
  }
  return lists;
}

std::vector<std::vector<int64_t>> read_texts(const ScoreArguments& arguments, int64_t vocab_size) {
  const std::string name =
      tokenizer_of_model(models::model_folder(arguments.model), vocab_size, arguments.tokenizer);
  if (name.empty()) {
    throw Error(fmt::format("{}: holds no tokenizer; name one with --tokenizer", arguments.model));
  }
  const auto tokenizer = tokenizer::make_tokenizer(name);
  const nlohmann::json json = read_list(arguments.texts, "texts");
  std::vector<std::vector<int64_t>> lists;
  for (const auto& text : json) {
    const auto where = fmt::format("{}: text {}", arguments.texts, lists.size());
    if (!text.is_string()) throw Error(where + " is not a JSON string");
    const auto ids = tokenizer->encode(text.get_ref<const std::string&>(), {.add_template = true});
    for (const int32_t id : ids) {
      if (id < vocab_size) continue;
      throw Error(fmt::format(
          "{} has the token {} of {}; the model's vocabulary has {}", where, id, name, vocab_size));
    }
    if (ids.size() < 2) throw Error(where + " has fewer than 2 tokens");
    lists.emplace_back(ids.begin(), ids.end());
  }
  return lists;
}

nlohmann::ordered_json score_line(models::Decoder& decoder, const std::vector<int64_t>& ids) {
  const at::Tensor all = at::tensor(ids, at::kLong);
  const auto num_targets = static_cast<int64_t>(ids.size()) - 1;
  const models::TokenScores scores = models::score(decoder,
                                                   all.narrow(0, 0, num_targets),
                                                   at::zeros({1}, at::kLong),
                                                   all.narrow(0, 1, num_targets));
  const at::Tensor logprob = scores.logprob.cpu().contiguous();
  const auto* values = logprob.const_data_ptr<float>();
  double sum = 0;
  for (int64_t i = 0; i < num_targets; ++i) sum += values[i];
  if (!std::isfinite(sum)) {
    throw Error(
        fmt::format("score: a log-probability of a list of {} is {}; weights that hold NaN or "
                    "numbers that are too large give such",
                    counted(ids.size(), "token"),
                    sum));
  }
  return {{"loss", -sum / static_cast<double>(num_targets)},
          {"token_logprobs", std::vector<float>(values, values + num_targets)}};
}

}  // namespace

void add_score(CLI::App& app) {
  auto* score = app.add_subcommand("score", "Log-probabilities of given token ids under a model");
  auto arguments = std::make_shared<ScoreArguments>();
  score->add_option("MODEL", arguments->model, "model folder or run folder")->required();
  auto* input = score->add_option_group("what is scored")->require_option(1);
  input->add_option(
      "--ids", arguments->ids, "JSON file: a list of lists of token ids; -: standard input");
  auto* texts = input->add_option(
      "--texts", arguments->texts, "JSON file: a list of texts; -: standard input");
  score
      ->add_option("--tokenizer",
                   arguments->tokenizer,
                   "of the texts; default: the one in the model's folder")
      ->needs(texts);
  add_weight_option(*score, arguments->dtype);
  add_device_option(*score, arguments->device);
  score->footer(
      "Examples:\n"
      "  reynard score models/llama --texts texts.json\n"
      "  echo '[\"Once upon a time\"]' | reynard score models/llama --texts -\n"
      "  reynard score runs/fox --ids ids.json --dtype bf16\n"
      "\n"
      "One JSON line per list or text: its mean loss and the log-probability of every token but "
      "the first.\n");
  score->callback([arguments] {
    models::Decoder decoder =
        models::open_model(arguments->model,
                           weight_format(arguments->dtype),
                           reading_device(arguments->device, arguments->dtype));
    print_pruning_note(decoder.config());
    const int64_t vocab_size = decoder.config().vocab_size;
    const bool is_text = !arguments->texts.empty();
    const auto lists =
        is_text ? read_texts(*arguments, vocab_size) : read_ids(arguments->ids, vocab_size);
    const std::atomic<bool>& stop = stop_flag();
    for (size_t i = 0; i < lists.size(); ++i) {
      if (stop) {
        print_message("stopped: {} of {} scored\n", i, counted(lists.size(), "list"));
        throw ExitWith{kInterruptedExitCode};
      }
      nlohmann::ordered_json line = score_line(decoder, lists[i]);
      if (is_text) line["ids"] = lists[i];
      fmt::print("{}\n", line.dump());
    }
  });
}

}  // namespace reynard::cli

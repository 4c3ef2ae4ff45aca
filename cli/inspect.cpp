// reynard inspect MODEL --text FILE...: what every attention head does on some text, as one page.

#include "reynard/evaluation/inspect.h"

#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/device_option.h"
#include "cli/evaluation_inputs.h"
#include "cli/figure_files.h"
#include "cli/numbers.h"
#include "cli/output_file.h"
#include "cli/progress_bar.h"
#include "reynard/config/json_file.h"
#include "reynard/models/pretrained.h"
#include "reynard/report/inspect_page.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/device.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace reynard::cli {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kUsualLength = 1024;

struct InspectArguments {
  std::string model, tokenizer, heads, window;
  std::vector<std::string> texts;
  std::string output = "inspect.html";
  std::string dtype = "f32";
  std::string device = "auto";
  int64_t length = 0;
  int64_t skip = 0;
  double threshold = 1e-4;
  evaluation::InspectOptions options;
  bool json = false;
};

constexpr const char* kInspectFooter =
    "Examples:\n"
    "  reynard inspect runs/fox --text data/python/held_out.tokens\n"
    "  reynard inspect runs/fox --text book.txt --length 65536 --heads 1.2,3.1 --window "
    "60000:60064\n"
    "  reynard inspect runs/fox --text a.txt b.txt --heads all -o fox.html\n"
    "\n"
    "Writes the page and, beside it, all its numbers as JSON (fox.json). Texts longer than "
    "--length are cut; statistics are over all texts, maps of the first. Maps of long texts show "
    "averages over cells; --window shows any piece token by token.\n";

// "A<separator>B" as two numbers.
std::pair<int64_t, int64_t> two_numbers(const std::string& text,
                                        char separator,
                                        const char* option,
                                        const char* expected) {
  const size_t at = text.find(separator);
  std::pair<int64_t, int64_t> pair;
  const auto parse = [](std::string_view part, int64_t& value) {
    const auto result = std::from_chars(part.data(), part.data() + part.size(), value);
    return result.ec == std::errc() && result.ptr == part.data() + part.size();
  };
  const std::string_view view = text;
  if (at == std::string::npos || !parse(view.substr(0, at), pair.first) ||
      !parse(view.substr(at + 1), pair.second)) {
    tensor::fail("inspect", option, text, expected);
  }
  return pair;
}

std::vector<evaluation::HeadIndex> heads_of(const std::string& text,
                                            const models::DecoderConfig& config) {
  std::vector<evaluation::HeadIndex> heads;
  if (text == "all") {
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      for (int64_t h = 0; h < config.attention.num_heads; ++h) heads.push_back({layer, h});
    }
    return heads;
  }
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto [layer, head] = two_numbers(
        text.substr(begin, end - begin), '.', "--heads", "LAYER.HEAD,... from 1.1, or all");
    const auto is_same = [&](const evaluation::HeadIndex& named) {
      return named.layer == layer - 1 && named.head == head - 1;
    };
    if (std::ranges::any_of(heads, is_same)) {
      tensor::fail("inspect", "--heads", text, "each head once");
    }
    heads.push_back({layer - 1, head - 1});
    begin = end + 1;
  }
  return heads;
}

// The first document that is long enough, or the whole text from its beginning.
evaluation::InspectedText text_of(const TextCorpus& text, int64_t length, int64_t skip) {
  const evaluation::Corpus& corpus = text.corpus;
  int64_t begin = 0;
  int64_t end = corpus.num_tokens;
  for (const evaluation::Document& document : corpus.documents) {
    if (document.end - document.begin - skip < length) continue;
    begin = document.begin;
    end = document.end;
    break;
  }
  tensor::check_value(
      skip < end - begin, "inspect", "--skip", skip, fmt::format("less than {}", end - begin));
  begin += skip;
  evaluation::InspectedText result{text.name, {}};
  if (corpus.bos) result.tokens.push_back(*corpus.bos);
  for (const int64_t token : corpus.read(begin, begin + std::min(length, end - begin))) {
    if (static_cast<int64_t>(result.tokens.size()) < length) result.tokens.push_back(token);
  }
  return result;
}

void print_summary(const nlohmann::json& inspection, const fs::path& page, bool as_json) {
  if (as_json) {
    fmt::print("{}\n", config::json_text(inspection));
    return;
  }
  for (const std::string& finding : report::inspection_findings(inspection)) {
    fmt::print("{}\n", finding);
  }
  fmt::print("{}\n", fs::absolute(page).lexically_normal().string());
}

// All numbers of a page lie beside it. Those of a page before are written over, other files not.
fs::path numbers_of(const fs::path& page) {
  fs::path numbers = page;
  numbers.replace_extension(".json");
  if (numbers == page) {
    throw Error(fmt::format(
        "inspect: -o {}: is the name of the numbers, which lie beside the page; name the page, as "
        "{}",
        page.string(),
        fs::path(page).replace_extension(".html").string()));
  }
  if (fs::exists(numbers) && !fs::exists(page)) {
    throw Error(fmt::format(
        "inspect: -o {}: {}, which would hold the page's numbers, exists and is not of such a "
        "page; give the page another name",
        page.string(),
        numbers.string()));
  }
  return numbers;
}

// What only pruning is for would be read by nothing.
void check_prunes(const models::DecoderConfig& config, const CLI::App& command) {
  if (config.attention.forget_gate != models::ForgetGate::kNone) return;
  for (const char* option : {"--log-tolerance", "--sweep-tokens"}) {
    if (command.count(option) == 0) continue;
    throw Error(fmt::format(
        "inspect: {}: the model has no forget gates, so nothing is pruned; leave the option out",
        option));
  }
}

void check_arguments(const InspectArguments& arguments) {
  tensor::check_value(arguments.skip >= 0, "inspect", "--skip", arguments.skip, ">= 0");
  tensor::check_value(arguments.threshold > 0 && arguments.threshold < 1,
                      "inspect",
                      "--threshold",
                      arguments.threshold,
                      "above 0 and below 1");
  tensor::check_value(arguments.options.log_tolerance < 0,
                      "inspect",
                      "--log-tolerance",
                      arguments.options.log_tolerance,
                      "below 0, as -10 for e^-10");
  // The model is asked for the token behind each.
  tensor::check_value(arguments.length == 0 || arguments.length >= 2,
                      "inspect",
                      "--length",
                      arguments.length,
                      ">= 2 tokens");
}

// The texts, and the tokens of each that are read.
struct OpenTexts {
  std::vector<TextCorpus> corpora;  // as `texts`
  std::vector<evaluation::InspectedText> texts;
};

OpenTexts open_texts_of(const InspectArguments& arguments,
                        const ModelFolder& folder,
                        const models::DecoderConfig& config) {
  const int64_t trained = folder.train_length();
  const int64_t length = arguments.length ? arguments.length : trained ? trained : kUsualLength;
  OpenTexts open;
  for (const std::string& text : arguments.texts) {
    open.corpora.push_back(open_texts({text}, folder, config, arguments.tokenizer));
    open.texts.push_back(text_of(open.corpora.back(), length, arguments.skip));
  }
  return open;
}

void run_inspect(const InspectArguments& arguments, const CLI::App& command) {
  check_output_page("inspect", arguments.output);
  const fs::path numbers = numbers_of(arguments.output);
  check_arguments(arguments);
  const ModelFolder folder = find_model(arguments.model);
  const models::DecoderConfig config = models::load_config(folder.model);
  check_prunes(config, command);
  evaluation::InspectOptions options = arguments.options;
  options.heads = heads_of(arguments.heads, config);
  if (!arguments.window.empty()) {
    std::tie(options.window_begin, options.window_end) =
        two_numbers(arguments.window, ':', "--window", "FROM:TO in tokens");
  }
  const auto [corpora, texts] = open_texts_of(arguments, folder, config);
  // Before the work: where it is missing, no numbers are left without their page.
  const std::string javascript = vega_javascript();
  models::Decoder decoder =
      models::load_model(folder.model, tensor::choose_device(arguments.device));
  if (arguments.dtype == "bf16") decoder.set_compute_dtype(at::kBFloat16);

  nlohmann::json inspection;
  {
    ProgressBar bar("inspect", OffTerminal::kLines);
    inspection = evaluation::inspect(
        decoder, texts, options, corpora.front().corpus.decode, [&](int64_t done, int64_t all) {
          bar.show(done, all);
        });
  }
  inspection["task"] = "inspect";
  inspection["name"] = folder.name;
  inspection["model"] = folder.model.string();
  inspection["identity"] = {{"model", folder.identity()}, {"dtype", arguments.dtype}};
  inspection["train_length"] = folder.train_length();
  inspection["command"] = command_line();
  inspection["settings"]["threshold"] = arguments.threshold;

  const fs::path output = arguments.output;
  write_output(numbers, config::json_text(inspection) + "\n");
  write_output(output,
               report::inspect_page(inspection, {.threshold = arguments.threshold}, javascript));
  print_summary(inspection, output, arguments.json);
}

// How finely maps are drawn, and how far the model is read for pruning.
void add_map_options(CLI::App& command, evaluation::InspectOptions& options) {
  command.add_option("--cells", options.cells, "Rows and columns of the maps of single heads")
      ->check(between(2, 256))
      ->capture_default_str();
  command
      .add_option("--overview-cells", options.overview_cells, "Rows and columns of the overview")
      ->check(between(2, 128))
      ->capture_default_str();
  command
      .add_option("--queries-per-cell",
                  options.queries_per_cell,
                  "Queries of each row of a map that are read, evenly spread; 0: all")
      ->check(at_least_zero())
      ->capture_default_str();
  command
      .add_option("--log-tolerance",
                  options.log_tolerance,
                  "Natural log of the attention that the pruning shown may drop")
      ->capture_default_str();
  command
      .add_option("--sweep-tokens",
                  options.sweep_tokens,
                  "Tokens of each text for loss and pruning at e^-1 ... e^-20; 0: no sweep")
      ->check(at_least_zero())
      ->capture_default_str();
}

}  // namespace

void add_inspect(CLI::App& app) {
  const auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command =
      app.add_subcommand("inspect", "Show what every attention head does, on one page");
  command->add_option("MODEL", arguments->model, "Run folder or model folder")->required();
  command
      ->add_option("--text",
                   arguments->texts,
                   "Token files (.tokens), or texts as `reynard prepare` takes them")
      ->required();
  command->add_option("-o,--output", arguments->output, "The page; its numbers go beside it")
      ->capture_default_str();
  command
      ->add_option("--length",
                   arguments->length,
                   "Tokens of each text that are read; default: the length trained on")
      ->check(above_zero());
  command->add_option("--skip", arguments->skip, "Tokens of each text to leave out first")
      ->capture_default_str();
  command->add_option("--heads",
                      arguments->heads,
                      "LAYER.HEAD,... to show in full, or all; default: farthest, middle, nearest");
  command->add_option(
      "--window", arguments->window, "FROM:TO: tokens to show one by one; default: the last 64");
  command
      ->add_option("--threshold",
                   arguments->threshold,
                   "Attention and F below are left blank in the maps of single heads")
      ->capture_default_str();
  add_map_options(*command, arguments->options);
  command->add_option(
      "--tokenizer", arguments->tokenizer, "Tokenizer of the model, where its folder holds none");
  command->add_option("--dtype", arguments->dtype, "Compute in f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  add_device_option(*command, arguments->device);
  command->add_flag("--json", arguments->json, "Print the numbers instead of the findings");
  command->footer(kInspectFooter);
  command->callback([arguments, command] { run_inspect(*arguments, *command); });
}

}  // namespace reynard::cli

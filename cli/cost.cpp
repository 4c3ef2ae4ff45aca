// reynard cost MODEL...: what models cost at several lengths, side by side.

#include "reynard/models/cost.h"

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/model_config.h"
#include "cli/progress_bar.h"
#include "cli/reading_speed.h"
#include "cli/weight_option.h"
#include "reynard/config/json_file.h"
#include "reynard/report/run_results.h"
#include "reynard/report/verdict.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"
#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace reynard::cli {

namespace {

struct CostArguments {
  std::vector<std::string> models;
  std::vector<int64_t> lengths = {4096, 16384, 65536};
  bool measure = false;
  ReadingSpeedOptions reading;
  bool json = false;
};

// Tokens per second that the run was trained at; NaN for a model that was not trained here.
double training_speed(const std::string& model) {
  const std::filesystem::path folder = model;
  if (!std::filesystem::exists(folder / "metrics.jsonl")) return std::nan("");
  return report::median_speed(report::read_run(folder));
}

nlohmann::ordered_json json_of(const std::string& model,
                               int64_t length,
                               const models::ModelCost& cost) {
  const auto part = [&](double flops) -> nlohmann::ordered_json {
    return {{"flops", flops}, {"share", flops / cost.paper_flops}};
  };
  const double speed = training_speed(model);
  return {{"model", model},
          {"length", length},
          {"parameters", cost.parameters},
          {"non_embedding_parameters", cost.non_embedding_parameters},
          {"inference_flops_per_token", cost.paper_flops},
          {"training_flops_per_token", 3 * cost.paper_flops},
          {"attention", part(cost.attention_flops)},
          {"mixer_weights", part(cost.mixer_flops)},
          {"mlp", part(cost.mlp_flops)},
          {"head", part(cost.head_flops)},
          {"cache_bytes", cost.kv_cache_bytes},
          {"training_tokens_per_s", std::isnan(speed) ? nlohmann::json() : nlohmann::json(speed)},
          {"reading_tokens_per_s", nlohmann::json()}};
}

void print_header() {
  fmt::print("{:<36}{:>9}{:>10}{:>12}{:>12}{:>11}{:>8}{:>7}{:>7}{:>11}{:>11}{:>11}\n",
             "model",
             "length",
             "params",
             "infer/tok",
             "train/tok",
             "attention",
             "mixer",
             "mlp",
             "head",
             "cache",
             "trained/s",
             "read/s");
}

// As much of the end of a model's path as the first column has room for.
std::string shown_name(const std::string& path) {
  constexpr int64_t kRoom = 34;
  std::string name = tokenizer::displayable(path);  // a path need not be UTF-8
  const int64_t size = tokenizer::num_characters(name);
  if (size <= kRoom) return name;
  const std::size_t cut = tokenizer::first_characters(name, size - (kRoom - 1)).size();
  return name.replace(0, cut, "…");
}

void print_row(const nlohmann::ordered_json& row) {
  const auto share = [&](const char* key) {
    return fmt::format("{:.1f} %", 100 * row[key]["share"].get<double>());
  };
  const std::string name = shown_name(row["model"]);
  const auto speed = [&](const char* key) {
    return row[key].is_null() ? "-" : fmt::format("{:.0f}", row[key].get<double>());
  };
  fmt::print("{:<36}{:>9}{:>9.1f}M{:>12.4g}{:>12.4g}{:>11}{:>8}{:>7}{:>7}{:>8.1f} MB{:>11}{:>11}\n",
             name,
             row["length"].get<int64_t>(),
             row["parameters"].get<double>() / 1e6,
             row["inference_flops_per_token"].get<double>(),
             row["training_flops_per_token"].get<double>(),
             share("attention"),
             share("mixer_weights"),
             share("mlp"),
             share("head"),
             row["cache_bytes"].get<double>() / 1e6,
             speed("training_tokens_per_s"),
             speed("reading_tokens_per_s"));
}

// rows: those of each model one after the other. Returns them with what each was read at.
std::vector<nlohmann::ordered_json> with_reading_speed(const CostArguments& arguments,
                                                       std::vector<nlohmann::ordered_json> rows) {
  const auto work = [](const nlohmann::ordered_json& row) {
    return row["length"].get<double>() * row["inference_flops_per_token"].get<double>();
  };
  double all = 0;
  double done = 0;
  for (const nlohmann::ordered_json& row : rows) all += work(row);
  ProgressBar bar("reading");
  const auto begin = std::chrono::steady_clock::now();
  auto row = rows.begin();
  for (const std::string& model : arguments.models) {
    ReadingSpeed speed(model, arguments.reading);
    for (const int64_t length : arguments.lengths) {
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
      Progress progress{.share = done / all, .note = counted(length, "token")};
      if (done > 0) progress.seconds_left = passed.count() * (all - done) / done;
      bar.show(progress);
      (*row)["reading_tokens_per_s"] = speed.at(length);
      done += work(*row++);
    }
  }
  return rows;
}

void run_cost(const CostArguments& arguments) {
  for (const int64_t length : arguments.lengths) {
    tensor::check_value(
        length >= 1 && length <= int64_t{1} << 31, "cost", "--lengths", length, "1 to 2147483648");
  }
  // All models are read before anything is printed.
  std::vector<nlohmann::ordered_json> rows;
  for (const std::string& model : arguments.models) {
    const models::DecoderConfig config = read_model_config(model);
    for (const int64_t length : arguments.lengths) {
      rows.push_back(json_of(model, length, models::model_cost(config, length)));
    }
  }
  if (arguments.measure) rows = with_reading_speed(arguments, std::move(rows));
  if (!arguments.json) print_header();
  for (const nlohmann::ordered_json& row : rows) {
    if (arguments.json) {
      // The model's path need not be UTF-8.
      fmt::print("{}\n", config::json_text(row));
    } else {
      print_row(row);
    }
  }
}

}  // namespace

void add_cost(CLI::App& app) {
  const auto arguments = std::make_shared<CostArguments>();
  CLI::App* command = app.add_subcommand("cost", "What models cost at several lengths");
  command
      ->add_option(
          "MODEL", arguments->models, "Model folders, run folders or experiment .toml files")
      ->required();
  command->add_option("--lengths", arguments->lengths, "Tokens of a sequence")
      ->delimiter(',')
      ->capture_default_str();
  auto* measure = command->add_flag(
      "--measure",
      arguments->measure,
      "Run every model at every length on this machine: tokens that it reads a second");
  add_weight_option(*command, arguments->reading.dtype);
  add_device_option(*command, arguments->reading.device);
  for (const char* option : {"--dtype", "--device"}) command->get_option(option)->needs(measure);
  command->add_flag("--json", arguments->json, "One JSON line per model and length");
  command->footer(
      "FLOPs per token of a whole sequence after the FoX paper (Table 6): 2 per weight, all but "
      "the input embedding (a tied one is the head too and counts), and 2 x layers x width x "
      "length for attention; training is three times that. Shares are of these. Cache: keys, "
      "values and gate sums of one sequence in bf16. trained/s: tokens a second that a run "
      "measured in training. read/s: of one sequence of that length, with --measure; an experiment "
      "file is run with random weights. --dtype and --device are those of --measure.\n"
      "\n"
      "Examples:\n"
      "  reynard cost configs/760m/fox-pro.toml runs/fox --lengths 4096,16384\n"
      "  reynard cost runs/fox runs/transformer models/llama --lengths 4096,16384 --measure");
  command->callback([arguments] { run_cost(*arguments); });
}

}  // namespace reynard::cli

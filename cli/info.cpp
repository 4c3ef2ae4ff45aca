// reynard info MODEL: parameters, work per token and memory, from shapes alone; and tokenizers.

#include "cli/command.h"
#include "cli/model_config.h"
#include "cli/model_tokenizer.h"
#include "cli/numbers.h"
#include "reynard/config/json_file.h"
#include "reynard/models/cost.h"
#include "reynard/models/decoder_config.h"
#include "reynard/models/pretrained.h"
#include "reynard/tensor/counted.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/tokenizer.h"
#include "reynard/tokenizer/tokenizer_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace reynard::cli {

namespace {

struct InfoArguments {
  std::string model;
  int64_t length = 16384;
  bool json = false;
};

// What is known of a tokenizer. name: what make_tokenizer() takes.
nlohmann::ordered_json tokenizer_json(const std::string& name) {
  const auto tokenizer = tokenizer::make_tokenizer(name);
  nlohmann::ordered_json json = {
      {"name", name}, {"kind", tokenizer->name()}, {"vocab_size", tokenizer->vocab_size()}};
  json["bos"] = tokenizer->bos() ? nlohmann::ordered_json(*tokenizer->bos()) : nullptr;
  json["eos"] = tokenizer->eos() ? nlohmann::ordered_json(*tokenizer->eos()) : nullptr;
  return json;
}

std::string tokenizer_text(const nlohmann::ordered_json& json) {
  const auto id = [&](const char* key) { return json[key].is_null() ? "none" : json[key].dump(); };
  return fmt::format("{}, {} tokens, BOS {}, EOS {}",
                     json["kind"].get<std::string>(),
                     json["vocab_size"].get<int64_t>(),
                     id("bos"),
                     id("eos"));
}

// Whether the argument names a tokenizer and no model.
bool names_tokenizer(const std::string& name) {
  if (name == "byte") return true;
  const std::filesystem::path path = tokenizer::parse_name(name).path;
  if (std::filesystem::is_regular_file(path)) {
    if (path.extension() == ".tokens") {
      throw Error(
          fmt::format("{}: is a token file; expected a model, an experiment or a tokenizer", name));
    }
    if (path.filename() == "config.json" || path.extension() == ".safetensors") {
      const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
      throw Error(
          fmt::format("{}: is a file of a model; give its folder, {}", name, folder.string()));
    }
    return path.extension() != ".toml";
  }
  return std::filesystem::is_directory(path) && tokenizer::holds_tokenizer(path) &&
         !std::filesystem::exists(path / "config.json") &&
         !std::filesystem::exists(path / "model" / "config.json");
}

// The name of the tokenizer that a model folder or run folder holds; empty: none.
std::string tokenizer_beside(const std::string& model, int64_t vocab_size) {
  if (!std::filesystem::is_directory(model)) return {};
  return tokenizer_of_model(models::model_folder(model), vocab_size);
}

nlohmann::ordered_json to_json(const models::DecoderConfig& config,
                               const models::ModelCost& cost,
                               const InfoArguments& arguments) {
  return {{"model", arguments.model},
          {"length", arguments.length},
          {"parameters", cost.parameters},
          {"non_embedding_parameters", cost.non_embedding_parameters},
          {"flops_per_token_paper", cost.paper_flops},
          {"flops_per_token_exact", cost.exact_flops},
          {"weight_bytes", cost.weight_bytes},
          {"bf16_copy_bytes", cost.compute_bytes},
          {"gradient_bytes", cost.gradient_bytes},
          {"optimizer_bytes", cost.optimizer_bytes},
          {"kv_cache_bytes", cost.kv_cache_bytes},
          {"vocab_size", config.vocab_size},
          {"hidden_size", config.hidden_size},
          {"num_layers", config.num_layers},
          {"num_heads", config.attention.num_heads},
          {"num_kv_heads", config.num_kv_heads()},
          {"head_dim", config.head_dim()},
          {"mlp_size", config.mlp_size()},
          {"memory_layers", config.memory.layers},
          {"local_context",
           config.has_memory() ? nlohmann::ordered_json(config.memory.window) : nullptr}};
}

void print(const models::DecoderConfig& config,
           const models::ModelCost& cost,
           const InfoArguments& arguments) {
  const auto row = [](std::string_view name, const std::string& value, std::string_view note) {
    fmt::print("{:<26}{:>18}  {}\n", name, value, note);
  };
  const auto count = [](int64_t value) {
    std::string digits = std::to_string(value);
    for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, ",");
    return digits;
  };
  const auto megabytes = [](int64_t bytes) {
    return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
  };
  fmt::print("{}: {} of width {}, {} of {} ({} key/value), MLP {}, vocabulary {}\n",
             arguments.model,
             counted(config.num_layers, "layer"),
             config.hidden_size,
             counted(config.attention.num_heads, "head"),
             config.head_dim(),
             config.num_kv_heads(),
             config.mlp_size(),
             config.vocab_size);
  if (config.has_memory()) {
    fmt::print("memory in layers [{}] (from 0), local context of {}\n",
               fmt::join(config.memory.layers, ", "),
               counted(config.memory.window, "token"));
  }
  row("parameters", count(cost.parameters), "");
  row("  non-embedding", count(cost.non_embedding_parameters), "all but the input embedding");
  row("forward FLOPs per token",
      fmt::format("{:.4g}", cost.paper_flops),
      fmt::format("2 N + 2 L d T at T = {} (the FoX paper's count)", arguments.length));
  row("",
      fmt::format("{:.4g}", cost.exact_flops),
      "matrix products with the keys that are visible");
  row("weights, f32", megabytes(cost.weight_bytes), "");
  row("  bf16 copies", megabytes(cost.compute_bytes), "mixed precision only");
  row("gradients, f32", megabytes(cost.gradient_bytes), "training only");
  row("AdamW moments, f32", megabytes(cost.optimizer_bytes), "training only");
  row("KV cache, bf16",
      megabytes(cost.kv_cache_bytes),
      fmt::format("one sequence of {}, gate sums included", counted(arguments.length, "token")));
}

}  // namespace

void add_info(CLI::App& app) {
  auto* info = app.add_subcommand(
      "info", "Parameters, FLOPs per token, memory and tokenizer of a model; or a tokenizer");
  auto arguments = std::make_shared<InfoArguments>();
  info->add_option("MODEL",
                   arguments->model,
                   "model folder, run folder, experiment .toml, or a tokenizer's file")
      ->required();
  info->add_option("--length", arguments->length, "tokens T of a sequence")
      ->capture_default_str()
      ->check(between(1, int64_t{1} << 31));
  info->add_flag("--json", arguments->json, "one JSON object instead of a table");
  info->footer(
      "Examples:\n"
      "  reynard info runs/fox\n"
      "  reynard info configs/760m/fox-pro.toml --length 65536 --json\n"
      "  reynard info models/llama/tokenizer.json\n");
  info->callback([arguments] {
    if (names_tokenizer(arguments->model)) {
      const auto json = tokenizer_json(arguments->model);
      const std::string text = arguments->json ? config::json_text(json, 1) : tokenizer_text(json);
      return fmt::print("{}\n", text);
    }
    const models::DecoderConfig config = read_model_config(arguments->model);
    const std::string tokenizer = tokenizer_beside(arguments->model, config.vocab_size);
    const models::ModelCost cost = models::model_cost(config, arguments->length);
    if (arguments->json) {
      auto json = to_json(config, cost, *arguments);
      if (!tokenizer.empty()) json["tokenizer"] = tokenizer_json(tokenizer);
      fmt::print("{}\n", config::json_text(json, 1));
    } else {
      print(config, cost, *arguments);
      if (!tokenizer.empty()) {
        fmt::print("tokenizer: {}\n", tokenizer_text(tokenizer_json(tokenizer)));
      }
    }
  });
}

}  // namespace reynard::cli

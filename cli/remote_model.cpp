#include "cli/remote_model.h"

#include "cli/evaluation_inputs.h"
#include "cli/message.h"
#include "reynard/evaluation/adapter.h"
#include "reynard/evaluation/endpoint_scorer.h"
#include "reynard/tensor/check.h"
#include "reynard/tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <cstdlib>
#include <optional>
#include <vector>

namespace reynard::cli {

namespace {

std::optional<int64_t> mark_of(int64_t given, std::optional<int64_t> own) {
  if (given == RemoteArguments::kFromTokenizer) return own;
  return given == RemoteArguments::kNone ? std::nullopt : std::optional(given);
}

// The only model that the endpoint lists.
std::string only_model(const evaluation::EndpointOptions& options) {
  const evaluation::Endpoint endpoint(options);
  const nlohmann::json models = endpoint.get("models", "data");
  std::vector<std::string> names;
  for (const nlohmann::json& model : models.at("data")) {
    if (model.is_object() && model.contains("id") && model["id"].is_string()) {
      names.push_back(model["id"].get<std::string>());
    }
  }
  if (names.size() == 1) return names.front();
  throw Error(fmt::format("eval: {} lists {} models ({}); name one with --endpoint-model",
                          options.url,
                          names.size(),
                          fmt::join(names, ", ")));
}

evaluation::RetryOptions retries_of(const RemoteArguments& arguments) {
  return {.attempts = arguments.attempts,
          .note = [](const std::string& text) { print_message("\n{}\n", text); }};
}

RemoteModel endpoint_model(const RemoteArguments& arguments) {
  evaluation::EndpointOptions options;
  options.url = arguments.endpoint;
  options.chat = arguments.chat;
  options.timeout_s = arguments.timeout_s;
  if (const char* key = std::getenv(arguments.api_key_variable.c_str())) options.api_key = key;
  options.retries = retries_of(arguments);
  options.model = arguments.model.empty() ? only_model(options) : arguments.model;
  RemoteModel model;
  model.name = as_folder_name(options.model);
  model.where = options.url;
  model.url = evaluation::Endpoint(options).route_url("");
  model.url.pop_back();  // the slash before the route
  model.model = options.model;
  model.identity = {{"endpoint", options.url}, {"model", options.model}};
  if (options.chat) model.identity["chat"] = true;
  model.make_scorer = [options, n = arguments.concurrency](const evaluation::Corpus& corpus) {
    return evaluation::make_endpoint_scorer(options, corpus, n);
  };
  return model;
}

RemoteModel adapter_model(const RemoteArguments& arguments) {
  RemoteModel model;
  model.adapter = std::make_shared<evaluation::Adapter>(
      evaluation::AdapterOptions{.command = arguments.adapter,
                                 .timeout_s = arguments.timeout_s,
                                 .retries = retries_of(arguments)});
  const evaluation::AdapterFacts& facts = model.adapter->facts();
  model.name = as_folder_name(facts.name);
  model.where = arguments.adapter;
  model.identity = {{"adapter", arguments.adapter}, {"model", facts.name}};
  model.train_length = facts.train_length;
  model.text.vocab_size = facts.vocab_size;
  model.text.bos = facts.bos;
  model.text.eos = facts.eos;
  model.make_scorer = [adapter = model.adapter](const evaluation::Corpus& /*corpus*/) {
    return evaluation::make_adapter_scorer(*adapter);
  };
  return model;
}

}  // namespace

void add_remote_options(CLI::App& command, RemoteArguments& arguments) {
  command.add_option("--endpoint",
                     arguments.endpoint,
                     "Instead of MODEL: URL of an OpenAI-compatible server, as "
                     "http://127.0.0.1:8000/v1");
  command.add_option("--endpoint-model",
                     arguments.model,
                     "Name of the model there; default: the only one that it lists");
  command.add_flag("--chat",
                   arguments.chat,
                   "The endpoint has chat completions only: no log-probabilities, prompts are sent "
                   "as a user's message");
  command
      .add_option("--api-key-variable",
                  arguments.api_key_variable,
                  "Environment variable that holds the endpoint's key")
      ->capture_default_str();
  command.add_option("--adapter",
                     arguments.adapter,
                     "Instead of MODEL: command of a program that answers token ids with "
                     "log-probabilities, as \"python3 examples/transformers_adapter.py MODEL\"");
  command.add_option("--concurrency", arguments.concurrency, "Requests to the endpoint at once")
      ->capture_default_str();
  command
      .add_option(
          "--attempts",
          arguments.attempts,
          "Before an endpoint or adapter that fails, stalls or answers nonsense is given up")
      ->capture_default_str();
  command
      .add_option(
          "--timeout", arguments.timeout_s, "Seconds without a whole answer that count as stall")
      ->capture_default_str();
  command.add_option("--bos",
                     arguments.bos,
                     "Token that begins texts of an endpoint or adapter; -1: none; default: the "
                     "adapter's; of an endpoint the tokenizer's, or without one the token file's");
  command.add_option("--eos", arguments.eos, "Token that ends them, likewise");
}

RemoteModel open_remote_model(const RemoteArguments& arguments, const std::string& tokenizer) {
  using tensor::check_value;
  check_value(arguments.attempts >= 1, "eval", "--attempts", arguments.attempts, ">= 1");
  check_value(arguments.timeout_s > 0, "eval", "--timeout", arguments.timeout_s, "> 0");
  check_value(arguments.concurrency >= 1, "eval", "--concurrency", arguments.concurrency, ">= 1");
  check_value(arguments.bos >= -2, "eval", "--bos", arguments.bos, "a token id, or -1 for none");
  check_value(arguments.eos >= -2, "eval", "--eos", arguments.eos, "a token id, or -1 for none");
  check_value(arguments.endpoint.empty() || arguments.adapter.empty(),
              "eval",
              "--adapter",
              arguments.adapter,
              "either --endpoint or --adapter");
  check_value(!arguments.chat || !arguments.endpoint.empty(),
              "eval",
              "--chat",
              "given",
              "with --endpoint only");
  std::unique_ptr<tokenizer::Tokenizer> marks;
  if (!tokenizer.empty()) marks = tokenizer::make_tokenizer(tokenizer);
  RemoteModel model =
      arguments.endpoint.empty() ? adapter_model(arguments) : endpoint_model(arguments);
  model.text.tokenizer = tokenizer;
  model.text.owner = tokenizer;
  if (model.adapter == nullptr) {
    model.text.bos = marks ? marks->bos() : std::nullopt;
    model.text.eos = marks ? marks->eos() : std::nullopt;
    // Token files know theirs.
    model.text.bos_of_text = marks == nullptr && arguments.bos != RemoteArguments::kNone;
    model.text.eos_of_text = marks == nullptr && arguments.eos != RemoteArguments::kNone;
  }
  model.text.bos = mark_of(arguments.bos, model.text.bos);
  model.text.eos = mark_of(arguments.eos, model.text.eos);
  return model;
}

}  // namespace reynard::cli

// reynard serve MODEL: an OpenAI-compatible server.

#include "cli/command.h"
#include "cli/memory_limit.h"
#include "cli/message.h"
#include "cli/numbers.h"
#include "cli/stop_signal.h"
#include "cli/text_model.h"
#include "reynard/serving/engine.h"
#include "reynard/serving/http_server.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"
#include "reynard/tensor/device.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace reynard::cli {

namespace {

struct ServeArguments {
  TextModelArguments model;
  serving::HttpOptions http;
  serving::EngineOptions engine;
  std::string name, chat_template;
  std::optional<std::string> api_key = {};
  double cache_gb = 0;
  int64_t max_length = 0;
  bool no_prefix_reuse = false;
};

constexpr const char* kServeFooter =
    "Examples:\n"
    "  reynard serve runs/fox\n"
    "  reynard serve models/llama --port 8080 --api-key SECRET --dtype bf16\n"
    "  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\\n"
    "       -d '{\"prompt\": \"Once\", \"max_tokens\": 40, \"stream\": true}'\n"
    "\n"
    "Open http://127.0.0.1:8000/ in a browser for a small page. SIGTERM and Ctrl-C let what runs "
    "end, refuse new work and exit with 0; a second Ctrl-C ends at once. The key can also be given "
    "as $REYNARD_API_KEY.\n";

// Bytes of cache that one token takes in all layers, the bounds of its page included.
int64_t token_bytes(const models::Decoder& decoder) {
  const models::DecoderConfig& config = decoder.config();
  const attention::PageLayout layout = {.head_dim = config.head_dim(),
                                        .dtype = decoder.compute_dtype(),
                                        .int8 = decoder.int8_cache()};
  const int64_t keys_and_values = 2 * config.num_kv_heads() * attention::row_bytes(layout);
  const auto sums = (config.attention.num_heads + 1) * static_cast<int64_t>(sizeof(double));
  return config.num_layers * (keys_and_values + sums);
}

// A GPU serves this process alone, and its pages are taken before the first request: what is free
// beside the weights is theirs, but for what a step computes with.
constexpr double kCacheShareOfGpu = 0.75, kMostOfGpu = 0.9;
constexpr int64_t kLeastCacheTokens = 4 * attention::kPageTokens;

// Memory for keys and values.
double cache_bytes(const ServeArguments& arguments, const models::Decoder& decoder) {
  const double asked = arguments.cache_gb * 1e9;
  if (!decoder.device().is_cuda()) {
    const auto free = static_cast<double>(memory_limit());
    if (asked > free) {
      throw Error(fmt::format("serve: --cache-gb is {}; {:.1f} GB of memory are free: ask for less",
                              arguments.cache_gb,
                              free / 1e9));
    }
    return asked > 0 ? asked : free / 4;
  }
  const auto free = static_cast<double>(tensor::free_gpu_memory_bytes(decoder.device()));
  if (asked > kMostOfGpu * free) {
    throw Error(
        fmt::format("serve: --cache-gb is {}; the GPU has {:.1f} GB free beside the model, of "
                    "which a cache may take {:.1f}: ask for less, or use --device cpu",
                    arguments.cache_gb,
                    free / 1e9,
                    kMostOfGpu * free / 1e9));
  }
  return asked > 0 ? asked : kCacheShareOfGpu * free;
}

serving::EngineOptions engine_options(const ServeArguments& arguments,
                                      const models::Decoder& decoder) {
  serving::EngineOptions options = arguments.engine;
  const double bytes = cache_bytes(arguments, decoder);
  options.max_cache_tokens =
      static_cast<int64_t>(bytes / static_cast<double>(token_bytes(decoder)));
  if (options.max_cache_tokens < kLeastCacheTokens) {
    throw Error(
        fmt::format("serve: {:.3f} GB of cache hold {} tokens, {} at least are needed; give more "
                    "with --cache-gb, or a smaller model",
                    bytes / 1e9,
                    options.max_cache_tokens,
                    kLeastCacheTokens));
  }
  if (!arguments.no_prefix_reuse) options.max_prefix_tokens = options.max_cache_tokens / 2;
  return options;
}

serving::ServedModel served_model(const ServeArguments& arguments,
                                  const TextModel& model,
                                  const serving::EngineOptions& engine) {
  serving::ServedModel served{.name = arguments.name.empty() ? model.name : arguments.name,
                              .tokenizer = model.tokenizer.get(),
                              .vocab_size = model.decoder.config().vocab_size,
                              // A text's pages are rounded up.
                              .max_length = engine.max_cache_tokens - attention::kPageTokens,
                              .uses_template = model.uses_template,
                              .bos = model.bos,
                              .stop = model.stop,
                              .chat = {}};
  if (arguments.max_length > served.max_length) {
    print_message(
        "serve: --max-length {}: the cache holds texts of {} tokens at most, which is taken; "
        "give more with --cache-gb\n",
        arguments.max_length,
        served.max_length);
  } else if (arguments.max_length > 0) {
    served.max_length = arguments.max_length;
  }
  try {
    served.chat = chat_template_of(model, arguments.chat_template);
  } catch (const Error& error) {
    if (!arguments.chat_template.empty()) throw;
    served.no_chat = error.what();
  }
  return served;
}

void check_arguments(const ServeArguments& arguments) {
  using tensor::check_value;
  const serving::EngineOptions& engine = arguments.engine;
  const http::ConnectionLimits& limits = arguments.http.limits;
  check_value(!arguments.http.host.empty(), "serve", "--host", "\"\"", "an address or a name");
  serving::check_address(arguments.http.host, arguments.http.port);
  check_value(engine.max_batch >= 1, "serve", "--max-batch", engine.max_batch, "at least 1");
  check_value(engine.max_waiting >= 1, "serve", "--max-waiting", engine.max_waiting, "at least 1");
  check_value(arguments.max_length == 0 || arguments.max_length >= 2,
              "serve",
              "--max-length",
              arguments.max_length,
              "at least 2, or 0 for as many as the cache holds");
  check_value(limits.max_body_bytes >= 1024,
              "serve",
              "--max-body-bytes",
              limits.max_body_bytes,
              "at least 1024");
  check_value(arguments.http.max_connections >= 1,
              "serve",
              "--max-connections",
              arguments.http.max_connections,
              "at least 1");
  constexpr int64_t kMaxSeconds = 86'400;
  for (const auto& [name, seconds] : {std::pair("--read-seconds", limits.read_seconds),
                                      std::pair("--write-seconds", limits.write_seconds)}) {
    check_value(seconds >= 1 && seconds <= kMaxSeconds,
                "serve",
                name,
                seconds,
                fmt::format("1 to {}", kMaxSeconds));
  }
}

// Blanks around the value of a header are not part of it (RFC 9110, 5.5).
void check_api_key(const std::string& key) {
  const auto is_control = [](unsigned char c) { return c < ' ' || c == 0x7F; };
  if (!key.starts_with(' ') && !key.ends_with(' ') && std::ranges::none_of(key, is_control)) return;
  throw Error(
      "serve: --api-key or $REYNARD_API_KEY begins or ends with a blank, or holds a control "
      "character, which no header can carry");
}

void run_serve(ServeArguments arguments) {
  check_arguments(arguments);
  if (!arguments.api_key && std::getenv("REYNARD_API_KEY") != nullptr) {
    arguments.api_key = std::getenv("REYNARD_API_KEY");
  }
  if (arguments.api_key == "") {
    throw Error(
        "serve: --api-key or $REYNARD_API_KEY is empty; give a key, or leave both out to serve "
        "without one");
  }
  arguments.http.api_key = arguments.api_key.value_or("");
  check_api_key(arguments.http.api_key);
  const std::atomic<bool>& stop = stop_flag();
  TextModel model = open_text_model(arguments.model);
  serving::EngineOptions options = engine_options(arguments, model.decoder);
  options.memories = model.memories;
  const serving::ServedModel served = served_model(arguments, model, options);
  serving::Engine engine(model.decoder, *model.tokenizer, options);
  serving::HttpServer server(engine, served, arguments.http);
  const bool is_ipv6 = arguments.http.host.find(':') != std::string::npos;
  print_message("{} at http://{}:{}/ (up to {} per text, cache for {} tokens)\n",
                served.name,
                is_ipv6 ? fmt::format("[{}]", arguments.http.host) : arguments.http.host,
                server.port(),
                counted(served.max_length, "token"),
                options.max_cache_tokens);
  if (model.decoder.device().is_cuda()) {
    print_message("on {}\n", tensor::gpu_name(model.decoder.device()));
  }
  while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  print_message("stopping: finishing what runs\n");
  server.drain();
}

}  // namespace

void add_serve(CLI::App& app) {
  auto* command = app.add_subcommand("serve", "Answer OpenAI API requests with a model");
  auto arguments = std::make_shared<ServeArguments>();
  add_options(*command, arguments->model);
  serving::HttpOptions& http = arguments->http;
  command->add_option("--host", http.host, "address to listen at; the default is this machine only")
      ->capture_default_str();
  command->add_option("--port", http.port, "0: any that is free")->capture_default_str();
  command->add_option(
      "--api-key", arguments->api_key, "clients must send Authorization: Bearer KEY");
  command->add_option("--name", arguments->name, "of the model; by default that of its folder");
  command->add_option(
      "--chat-template",
      arguments->chat_template,
      "chatml, llama2, llama3, longllama or a Jinja file; by default that of the model's folder");
  command
      ->add_option("--cache-gb",
                   arguments->cache_gb,
                   "memory for keys and values; by default a quarter of what is free, on a GPU "
                   "three quarters of what the model leaves")
      ->check(between(1e-3, 1e5));
  command->add_option("--max-length",
                      arguments->max_length,
                      "tokens of a prompt and its text; by default what the cache holds");
  command->add_option("--max-batch", arguments->engine.max_batch, "texts written at once")
      ->capture_default_str();
  command
      ->add_option("--max-waiting",
                   arguments->engine.max_waiting,
                   "texts that wait while a batch is full; beyond, clients get 429")
      ->capture_default_str();
  command->add_option("--max-connections", http.max_connections, "beyond, clients get 503")
      ->capture_default_str();
  command->add_option("--max-body-bytes", http.limits.max_body_bytes, "of a request")
      ->capture_default_str();
  command
      ->add_option("--read-seconds", http.limits.read_seconds, "a request must arrive within this")
      ->capture_default_str();
  command
      ->add_option("--write-seconds",
                   http.limits.write_seconds,
                   "a client that takes nothing for this long is cut off")
      ->capture_default_str();
  command->add_flag(
      "--no-prefix-reuse", arguments->no_prefix_reuse, "read every prompt from its beginning");
  command->footer(kServeFooter);
  command->callback([arguments] { run_serve(*arguments); });
}

}  // namespace reynard::cli

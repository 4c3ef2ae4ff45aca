#pragma once
// A model that `reynard eval` asks instead of running it: behind an OpenAI-compatible server, or
// behind an adapter program.

#include "cli/evaluation_inputs.h"
#include "reynard/evaluation/scorer.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

namespace CLI {
class App;
}

namespace reynard::evaluation {
class Adapter;
}

namespace reynard::cli {

struct RemoteArguments {
  std::string endpoint;  // URL; empty: none
  std::string model;     // its name there; empty: the only one there
  std::string api_key_variable = "REYNARD_API_KEY";
  std::string adapter;  // command; empty: none
  bool chat = false;    // the endpoint has chat completions only
  int64_t concurrency = 4;
  int64_t attempts = 6;
  double timeout_s = 600;
  int64_t bos = kFromTokenizer, eos = kFromTokenizer;

  static constexpr int64_t kFromTokenizer = -2, kNone = -1;
  bool given() const { return !endpoint.empty() || !adapter.empty(); }
};
void add_remote_options(CLI::App& command, RemoteArguments& arguments);

struct RemoteModel {
  std::string name;
  std::string where;         // URL or command
  std::string url, model;    // of an endpoint: to its /v1, and the model's name there
  nlohmann::json identity;   // what answers depend on besides what is asked, as far as it is seen
  TextNeeds text;            // what its texts must fit to
  int64_t train_length = 0;  // 0: unknown
  std::shared_ptr<evaluation::Adapter> adapter;  // empty: an endpoint
  // Asks it; the corpus must outlive the scorer.
  std::function<std::unique_ptr<evaluation::Scorer>(const evaluation::Corpus&)> make_scorer;
};
// tokenizer: of the model's token ids; empty: only token files can be read. Throws reynard::Error
// when the adapter does not start or the endpoint's model is not clear.
RemoteModel open_remote_model(const RemoteArguments& arguments, const std::string& tokenizer);

}  // namespace reynard::cli

#pragma once
// What an evaluation is: a list of requests to a language model and a way to turn the answers into
// numbers. A task never sees a model: it asks for scores of tokens, for generated text or for what
// goes on inside (gates, attention), and something that can answer is run on it (scorer.h,
// evaluate.h).

#include "reynard/models/observer.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::evaluation {

// Log-probability and greedy hit of every token of `continuation` given all that precedes it.
struct Score {
  std::vector<int64_t> context;  // may be empty: the first continuation token is then not scored
  std::vector<int64_t> continuation;
  // Pruning for this request: 0 off, below 0 the natural log of the tolerance; empty: as the model
  // is.
  std::optional<double> log_pruning_tolerance = {};
};

struct Generate {
  std::vector<int64_t> prompt;
  int64_t max_tokens = 256;
  double temperature = 0;  // 0: greedy
  uint64_t seed = 0;
  std::vector<int64_t> stop;  // token ids that end the text
  // Token ids that end it too, but not before it holds another one: line ends, where one line is
  // wanted. A scorer that cannot tell goes on writing; the task takes the first line itself.
  std::vector<int64_t> stop_after_text = {};
};

// A look inside on these tokens, layer by layer.
struct Probe {
  std::vector<int64_t> tokens;
  std::optional<double> log_pruning_tolerance = {};  // as in Score
};

struct Request {
  std::string id;        // unique in the task; resuming goes by it
  nlohmann::json about;  // what the sample line says of the request (length, repeat, ...)
  std::variant<Score, Generate, Probe> query;
};

// Requests are made when they are asked for: a corpus of long rows need not fit in memory. A scorer
// that can answer the first (Scorer::cannot_answer) can answer all.
struct Requests {
  int64_t size = 0;
  std::function<Request(int64_t)> at;
};

struct Scored {
  std::vector<float> logprobs;  // natural log, one per continuation token; NaN where not scored
  std::vector<uint8_t> hits;    // 1 where the token is the most probable one
};
struct Generated {
  std::vector<int64_t> tokens;  // without the prompt and without a stop token
};
struct Probed {
  std::vector<models::AttentionView> layers;  // of every layer, on the CPU
};
using Response = std::variant<Scored, Generated, Probed>;

// The sample lines written so far, read one after the other from the file.
struct Samples {
  int64_t size = 0;
  std::function<void(const std::function<void(const nlohmann::json&)>&)> for_each;
};

// What `measure` gives: single numbers, and lists for plots (docs/formats.md, per task).
struct Measured {
  nlohmann::json metrics = nlohmann::json::object();
  nlohmann::json series = nlohmann::json::object();
};

class Task {
 public:
  virtual ~Task() = default;
  virtual std::string name() const = 0;
  // All that decides the numbers besides the model: a second run goes on only where they are equal.
  // A change that measures something else with equal settings counts up a number "scoring" in them;
  // 0 is not written, so that results of the tasks that it leaves alone stay valid.
  virtual nlohmann::json settings() const = 0;
  virtual Requests requests() = 0;
  // What one sample line records of an answer; must be enough for `measure`.
  virtual nlohmann::json sample(const Request& request, const Response& response) = 0;
  virtual Measured measure(const Samples& samples) = 0;
  // True: `measure` takes samples of which some are missing, as after a length that did not fit
  // into the memory, and says what the others give.
  virtual bool measures_part() const { return false; }
};

}  // namespace reynard::evaluation

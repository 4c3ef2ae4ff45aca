#include "reynard/evaluation/endpoint_scorer.h"

#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace reynard::evaluation {

namespace {

constexpr double kRounding = 1e-3;  // a probability of one may come out a little above
constexpr size_t kMostStops = 4;    // of the OpenAI API

[[noreturn]] void bad_answer(const std::string& field, const std::string& problem) {
  throw Error(fmt::format("eval: the endpoint's answer: choices[0].{} {}", field, problem));
}

// A list of log-probabilities of all echoed tokens, with or without that of the token written.
const nlohmann::json& echoed_list(const nlohmann::json& logprobs,
                                  const std::string& name,
                                  size_t tokens) {
  const std::string field = "logprobs." + name;
  if (!logprobs.contains(name) || !logprobs[name].is_array()) {
    bad_answer(field, "is missing; the endpoint must answer \"logprobs\": 1 with it");
  }
  const nlohmann::json& list = logprobs[name];
  if (list.size() != tokens && list.size() != tokens + 1) {
    bad_answer(
        field,
        fmt::format("is a list of length {}; expected {}, one for each token of the prompt and one "
                    "more: the endpoint must honour \"echo\" and take prompts as token ids",
                    list.size(),
                    tokens + 1));
  }
  return list;
}

double number_at(const nlohmann::json& list, size_t i, const std::string& field) {
  const bool is_number = list[i].is_number();
  const double value = is_number ? list[i].get<double>() : 0;
  if (!is_number || value > kRounding || std::isnan(value)) {
    bad_answer(fmt::format("{}[{}]", field, i),
               fmt::format("is {}; expected a log-probability", list[i].dump()));
  }
  return value;
}

// The largest log-probability among the most probable tokens of one place.
double best_of(const nlohmann::json& list, size_t i) {
  const std::string field = "logprobs.top_logprobs";
  if (!list[i].is_object() || list[i].empty()) {
    bad_answer(fmt::format("{}[{}]", field, i),
               fmt::format("is {}; expected the most probable token", list[i].dump()));
  }
  double best = -INFINITY;
  for (const auto& [token, value] : list[i].items()) {
    if (!value.is_number()) {
      bad_answer(fmt::format("{}[{}]", field, i), "holds something that is no number");
    }
    best = std::max(best, value.get<double>());
  }
  return best;
}

// Hands answers over one at a time, in the order of their requests, each as soon as all before it
// are there.
class Handover {
 public:
  Handover(size_t num_requests, const Scorer::Taker& take) : answers_(num_requests), take_(take) {}

  // By any thread.
  void give(size_t i, Response answer) {
    const std::scoped_lock lock(mutex_);
    answers_[i] = std::move(answer);
    while (next_ < answers_.size() && answers_[next_]) take_next();
  }
  // What was answered beside a failure is not lost.
  void give_rest() {
    while (next_ < answers_.size()) take_next();
  }

 private:
  void take_next() {
    const size_t i = next_++;
    if (auto answer = std::exchange(answers_[i], std::nullopt)) take_(i, std::move(*answer));
  }

  std::vector<std::optional<Response>> answers_;
  const Scorer::Taker& take_;
  size_t next_ = 0;  // all before were handed over, or have no answer
  std::mutex mutex_;
};

class EndpointScorer final : public Scorer {
 public:
  EndpointScorer(EndpointOptions options, const Corpus& corpus, int64_t concurrency)
      : endpoint_(std::move(options)), corpus_(corpus), concurrency_(concurrency) {
    tensor::check_value(concurrency >= 1, "eval", "concurrency", concurrency, ">= 1");
  }

  std::string cannot_answer(const Request& request) const override {
    if (std::holds_alternative<Probe>(request.query)) return "a look inside the model";
    const auto* score = std::get_if<Score>(&request.query);
    if (score != nullptr && endpoint_.options().chat) {
      return "log-probabilities of a text (chat completions have none)";
    }
    if (score != nullptr && score->log_pruning_tolerance) return "pruning of its own";
    return "";
  }

  std::vector<Response> answer(std::span<const Request> requests) override {
    std::vector<Response> responses(requests.size());
    answer_each(requests, [&](size_t i, Response response) { responses[i] = std::move(response); });
    return responses;
  }

  void answer_each(std::span<const Request> requests, const Taker& take) override {
    Handover handover(requests.size(), take);
    std::atomic<size_t> next = 0;
    std::atomic<bool> stop = false;
    std::exception_ptr failure;
    std::mutex failed;
    const auto work = [&] {
      for (size_t i = next++; i < requests.size() && !stop; i = next++) {
        try {
          handover.give(i, ask(requests[i]));
        } catch (...) {
          const std::scoped_lock lock(failed);
          if (!failure) failure = std::current_exception();
          stop = true;
        }
      }
    };
    std::vector<std::thread> workers;
    const size_t count = std::min<size_t>(requests.size(), concurrency_);
    workers.reserve(count);
    try {
      for (size_t w = 1; w < count; ++w) workers.emplace_back(work);
    } catch (const std::system_error&) {
      // No further thread can be had: those that are there do its part.
    }
    work();
    for (std::thread& worker : workers) worker.join();
    handover.give_rest();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  Response ask(const Request& request) const {
    if (const std::string what = cannot_answer(request); !what.empty()) {
      throw Error(fmt::format("eval: {} needs a model on this machine, not an endpoint", what));
    }
    if (const auto* score = std::get_if<Score>(&request.query)) return ask_scores(*score);
    const Generate& query = std::get<Generate>(request.query);
    return endpoint_.options().chat ? ask_reply(query) : ask_text(query);
  }

  Scored ask_scores(const Score& score) const {
    tensor::check_value(!score.continuation.empty(), "eval", "continuation", "", "not empty");
    std::vector<int64_t> tokens = score.context;
    tokens.insert(tokens.end(), score.continuation.begin(), score.continuation.end());
    if (tokens.size() == 1) return {{std::nanf("")}, {0}};  // nothing to score
    return read_echo(endpoint_.post("completions",
                                    {{"model", endpoint_.options().model},
                                     {"prompt", tokens},
                                     {"max_tokens", 1},
                                     {"temperature", 0},
                                     {"logprobs", 1},
                                     {"echo", true}},
                                    "choices"),
                     score);
  }

  Generated ask_text(const Generate& query) const {
    nlohmann::json body = wishes(query);
    body["prompt"] = query.prompt;
    // The server ends at its own EOS, whose text is empty here. It knows no stop that counts only
    // after text, so that it writes on behind a line.
    nlohmann::json stops = nlohmann::json::array();
    for (const int64_t token : query.stop) {
      const std::string text = corpus_.decode({token});
      if (!text.empty() && stops.size() < kMostStops) stops.push_back(text);
    }
    if (!stops.empty()) body["stop"] = std::move(stops);
    return written(endpoint_.post("completions", body, "choices"), "text");
  }

  // The prompt as what a user says. BOS and EOS are the server's chat template's business, and a
  // reply may begin with an empty line, so that it does not stop at the end of one.
  Generated ask_reply(const Generate& query) const {
    std::vector<int64_t> text = query.prompt;
    std::erase_if(text,
                  [&](int64_t token) { return token == corpus_.bos || token == corpus_.eos; });
    nlohmann::json body = wishes(query);
    body["messages"] = {{{"role", "user"}, {"content", corpus_.decode(text)}}};
    return written(endpoint_.post("chat/completions", body, "choices"), "message/content");
  }

  // What both kinds of request have.
  nlohmann::json wishes(const Generate& query) const {
    nlohmann::json body{{"model", endpoint_.options().model},
                        {"max_tokens", query.max_tokens},
                        {"temperature", query.temperature}};
    if (query.temperature > 0) body["seed"] = query.seed;
    return body;
  }

  Generated written(const nlohmann::json& answer, const std::string& field) const {
    const nlohmann::json& choice = answer.at("choices")[0];
    const nlohmann::json::json_pointer place("/" + field);
    const nlohmann::json text =
        choice.is_object() ? choice.value(place, nlohmann::json()) : nlohmann::json();
    if (!text.is_string()) {
      std::string name = field;
      std::replace(name.begin(), name.end(), '/', '.');
      bad_answer(name, "is missing");
    }
    return {corpus_.encode(text.get<std::string>())};
  }

  Endpoint endpoint_;
  const Corpus& corpus_;
  int64_t concurrency_;
};

}  // namespace

Scored read_echo(const nlohmann::json& answer, const Score& asked) {
  const nlohmann::json& choice = answer.at("choices").at(0);
  if (!choice.is_object() || !choice.contains("logprobs") || !choice["logprobs"].is_object()) {
    bad_answer("logprobs", "is missing: the endpoint gives no log-probabilities");
  }
  const size_t tokens = asked.context.size() + asked.continuation.size();
  const nlohmann::json& logprobs = choice["logprobs"];
  const nlohmann::json& chosen = echoed_list(logprobs, "token_logprobs", tokens);
  const nlohmann::json& best = echoed_list(logprobs, "top_logprobs", tokens);
  Scored scored;
  for (size_t i = asked.context.size(); i < tokens; ++i) {
    if (i == 0) {  // nothing comes before it
      scored.logprobs.push_back(std::nanf(""));
      scored.hits.push_back(0);
      continue;
    }
    const double logprob = number_at(chosen, i, "logprobs.token_logprobs");
    scored.logprobs.push_back(static_cast<float>(logprob));
    scored.hits.push_back(logprob >= best_of(best, i) ? 1 : 0);
  }
  return scored;
}

std::unique_ptr<Scorer> make_endpoint_scorer(EndpointOptions options,
                                             const Corpus& corpus,
                                             int64_t concurrency) {
  return std::make_unique<EndpointScorer>(std::move(options), corpus, concurrency);
}

}  // namespace reynard::evaluation

#include "reynard/evaluation/adapter.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <optional>
#include <string>

namespace reynard::evaluation {

namespace {

constexpr double kLogprobRounding = 1e-3;  // a probability of one may come out a little above

class AdapterScorer final : public Scorer {
 public:
  explicit AdapterScorer(Adapter& adapter) : adapter_(adapter) {}

  std::string cannot_answer(const Request& request) const override {
    if (std::holds_alternative<Probe>(request.query)) return "a look inside the model";
    if (std::holds_alternative<Generate>(request.query)) {
      return adapter_.facts().generates ? "" : "text written by the model";
    }
    return std::get<Score>(request.query).log_pruning_tolerance ? "pruning of its own" : "";
  }

  std::vector<Response> answer(std::span<const Request> requests) override {
    std::vector<Response> responses;
    for (const Request& request : requests) responses.push_back(ask(request));
    return responses;
  }
  void answer_each(std::span<const Request> requests, const Taker& take) override {
    for (size_t i = 0; i < requests.size(); ++i) take(i, ask(requests[i]));
  }

 private:
  Response ask(const Request& request) {
    if (const std::string what = cannot_answer(request); !what.empty()) {
      throw Error(fmt::format("eval: the adapter cannot give {}", what));
    }
    if (const auto* score = std::get_if<Score>(&request.query)) return ask_scores(*score);
    return ask_text(std::get<Generate>(request.query));
  }

  [[noreturn]] static void bad_answer(const std::string& problem) {
    throw Error(fmt::format("eval: the adapter's answer: {}", problem));
  }

  static const nlohmann::json& list_of(const nlohmann::json& answer,
                                       const char* name,
                                       size_t expected) {
    if (!answer.contains(name) || !answer[name].is_array() || answer[name].size() != expected) {
      bad_answer(
          fmt::format("\"{}\" is no list of length {}, one entry for each token but the first",
                      name,
                      expected));
    }
    return answer[name];
  }

  Scored ask_scores(const Score& score) {
    tensor::check_value(!score.continuation.empty(), "eval", "continuation", "", "not empty");
    std::vector<int64_t> tokens = score.context;
    tokens.insert(tokens.end(), score.continuation.begin(), score.continuation.end());
    Scored scored;
    nlohmann::json answer;
    if (tokens.size() > 1) {
      answer = adapter_.ask({{"tokens", tokens}});
      list_of(answer, "logprobs", tokens.size() - 1);
      list_of(answer, "hits", tokens.size() - 1);
    }
    for (size_t i = score.context.size(); i < tokens.size(); ++i) {
      if (i == 0) {  // nothing comes before it
        scored.logprobs.push_back(std::nanf(""));
        scored.hits.push_back(0);
        continue;
      }
      const nlohmann::json& logprob = answer["logprobs"][i - 1];
      const nlohmann::json& hit = answer["hits"][i - 1];
      if (!logprob.is_number() || !(logprob.get<double>() <= kLogprobRounding)) {
        bad_answer(fmt::format("logprobs[{}] is {}", i - 1, logprob.dump()));
      }
      const bool is_hit = hit == true || hit == 1;
      if (!is_hit && hit != false && hit != 0) {
        bad_answer(fmt::format("hits[{}] is {}; expected 0 or 1", i - 1, hit.dump()));
      }
      scored.logprobs.push_back(logprob.get<float>());
      scored.hits.push_back(is_hit ? 1 : 0);
    }
    return scored;
  }

  Generated ask_text(const Generate& query) {
    const nlohmann::json answer = adapter_.ask({{"prompt", query.prompt},
                                                {"max_tokens", query.max_tokens},
                                                {"temperature", query.temperature},
                                                {"seed", query.seed},
                                                {"stop", query.stop},
                                                {"stop_after_text", query.stop_after_text}});
    Generated generated;
    if (!answer.contains("tokens") || !answer["tokens"].is_array()) {
      bad_answer("\"tokens\" is no list");
    }
    const nlohmann::json& tokens = answer["tokens"];
    if (std::ssize(tokens) > query.max_tokens) {
      bad_answer(fmt::format("\"tokens\" holds {}; expected at most max_tokens = {}",
                             tokens.size(),
                             query.max_tokens));
    }
    const int64_t end = adapter_.facts().end_of_ids();
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::optional<int64_t> token = index_below(end, tokens[i]);
      if (!token) {
        bad_answer(fmt::format(
            "tokens[{}] is {}; expected a token id below {}", i, tokens[i].dump(), end));
      }
      generated.tokens.push_back(*token);
    }
    return generated;
  }

  Adapter& adapter_;
};

}  // namespace

std::unique_ptr<Scorer> make_adapter_scorer(Adapter& adapter) {
  return std::make_unique<AdapterScorer>(adapter);
}

}  // namespace reynard::evaluation

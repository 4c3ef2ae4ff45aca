// Perplexity of documents: in windows, in windows that overlap, and with other documents before.

#include "reynard/config/json_file.h"
#include "reynard/evaluation/prompt_task.h"
#include "reynard/evaluation/shuffle.h"
#include "reynard/evaluation/tasks/tasks.h"
#include "reynard/statistics/statistics.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace reynard::evaluation {

namespace {

// Tokens [begin, end) of a document whose loss is measured, read from `from` on.
struct Window {
  int64_t from, begin, end;
};

// Windows over a document: each reads at most `size` tokens and scores those that none scored
// before, at most `stride`; together at most `most` tokens.
std::vector<Window> windows_of(const Corpus& corpus, int64_t size, int64_t stride, int64_t most) {
  std::vector<Window> all;
  int64_t left = most;
  for (const Document& document : corpus.documents) {
    const int64_t document_end = std::min(document.end, document.begin + left);
    int64_t scored = document.begin;
    while (scored < document_end) {
      // The first window has nothing before it to read: it scores all of itself.
      const int64_t step = scored == document.begin ? size : stride;
      const int64_t end = std::min(document_end, scored + step);
      all.push_back({std::max(document.begin, end - size), scored, end});
      scored = end;
    }
    left -= document_end - document.begin;
  }
  return all;
}

class Perplexity final : public Task {
 public:
  Perplexity(const Corpus& corpus, PerplexityConfig config);

  std::string name() const override { return "perplexity"; }
  nlohmann::json settings() const override {
    return {{"window", config_.window},
            {"stride", config_.stride},
            {"tokens", config_.tokens},
            {"length", config_.length},
            {"documents", config_.documents},
            {"streams", config_.streams},
            {"seed", config_.seed},
            {"bos", corpus_.bos ? nlohmann::json(*corpus_.bos) : nlohmann::json()}};
  }
  Requests requests() override {
    const auto windowed = static_cast<int64_t>(windowed_.size());
    const auto strided = static_cast<int64_t>(strided_.size());
    const auto multi = static_cast<int64_t>(config_.documents.size()) * config_.streams;
    return {windowed + strided + multi, [this, windowed, strided](int64_t i) {
              if (i < windowed) return window_request("windowed", windowed_[i]);
              if (i < windowed + strided) return window_request("strided", strided_[i - windowed]);
              return stream_request(i - windowed - strided);
            }};
  }
  nlohmann::json sample(const Request& request, const Response& response) override;
  Measured measure(const Samples& samples) override;
  bool measures_part() const override { return true; }

 private:
  Request window_request(const char* kind, const Window& window) const;
  Request stream_request(int64_t index) const;

  const Corpus& corpus_;
  PerplexityConfig config_;
  std::vector<Window> windowed_, strided_;
  std::vector<Document> order_;    // documents of at least `length` tokens, in seeded order
  std::vector<int64_t> left_out_;  // numbers of documents that were asked for and are not there
};

Perplexity::Perplexity(const Corpus& corpus, PerplexityConfig config)
    : corpus_(corpus), config_(std::move(config)) {
  tensor::check_value(config_.stride <= config_.window,
                      "perplexity",
                      "stride",
                      config_.stride,
                      fmt::format("<= window = {}", config_.window));
  windowed_ = windows_of(corpus, config_.window, config_.window, config_.tokens);
  strided_ = windows_of(corpus, config_.window, config_.stride, config_.tokens);
  for (const Document& document : corpus.documents) {
    if (document.end - document.begin >= config_.length) order_.push_back(document);
  }
  PythonRandom random(static_cast<uint64_t>(config_.seed));
  shuffle(order_, random);
  // A stream needs that many documents; with fewer there are shorter streams only.
  const auto known = static_cast<int64_t>(order_.size());
  const auto first_left_out = std::stable_partition(config_.documents.begin(),
                                                    config_.documents.end(),
                                                    [&](int64_t count) { return count <= known; });
  left_out_.assign(first_left_out, config_.documents.end());
  config_.documents.erase(first_left_out, config_.documents.end());
  config_.streams = std::min(config_.streams, known);
}

Request Perplexity::window_request(const char* kind, const Window& window) const {
  Score score;
  if (corpus_.bos) score.context.push_back(*corpus_.bos);
  const std::vector<int64_t> before = corpus_.read(window.from, window.begin);
  score.context.insert(score.context.end(), before.begin(), before.end());
  score.continuation = corpus_.read(window.begin, window.end);
  return {fmt::format("{} {}", kind, window.begin),
          {{"kind", kind}, {"begin", window.begin}, {"context", score.context.size()}},
          std::move(score)};
}

// Other documents, then the one whose loss counts; nothing is forgotten between them on purpose.
Request Perplexity::stream_request(int64_t index) const {
  const int64_t count = config_.documents[index / config_.streams];
  const int64_t stream = index % config_.streams;
  const auto known = static_cast<int64_t>(order_.size());
  Score score;
  for (int64_t back = count - 1; back >= 0; --back) {
    const Document& document = order_[(stream + back) % known];
    if (corpus_.bos) score.context.push_back(*corpus_.bos);
    std::vector<int64_t> text = corpus_.read(document.begin, document.begin + config_.length);
    if (back == 0) {
      score.continuation = std::move(text);
      break;
    }
    score.context.insert(score.context.end(), text.begin(), text.end());
    if (corpus_.eos) score.context.push_back(*corpus_.eos);
  }
  return {fmt::format("documents {} {}", count, stream),
          {{"kind", "documents"},
           {"documents", count},
           {"stream", stream},
           {"context", score.context.size()}},
          std::move(score)};
}

nlohmann::json Perplexity::sample(const Request& request, const Response& response) {
  double loss = 0;
  int64_t scored = 0;
  for (const float logprob : std::get<Scored>(response).logprobs) {
    if (std::isnan(logprob)) continue;  // the first token of all, without BOS
    loss -= logprob;
    ++scored;
  }
  nlohmann::json line = request.about;
  line["scored"] = scored;
  line["loss"] = scored ? nlohmann::json(loss / static_cast<double>(scored)) : nlohmann::json();
  return line;
}

Measured Perplexity::measure(const Samples& samples) {
  struct Total {
    double loss = 0, scored = 0, context = 0;
    std::vector<double> means;
    double perplexity() const { return std::exp(loss / scored); }
  };
  std::map<std::string, Total> windows;
  std::map<int64_t, Total> streams;
  samples.for_each([&](const nlohmann::json& line) {
    if (!line.at("loss").is_number()) return;
    const std::string kind = line.at("kind");
    Total& total =
        kind == "documents" ? streams[line.at("documents").get<int64_t>()] : windows[kind];
    const double scored = line.at("scored");
    total.loss += line.at("loss").get<double>() * scored;
    total.scored += scored;
    total.context += line.at("context").get<double>();
    total.means.push_back(line.at("loss"));
  });
  Measured result;
  for (const auto& [kind, total] : windows) {
    result.metrics[kind + "_perplexity"] = total.perplexity();
    result.metrics[kind + "_tokens"] = total.scored;
  }
  result.series["documents"] = nlohmann::json::array();
  for (const auto& [count, total] : streams) {
    const auto n = static_cast<double>(total.means.size());
    result.metrics[fmt::format("perplexity_{}_documents", count)] = total.perplexity();
    result.series["documents"].push_back(
        {{"documents", count},
         {"context", total.context / n},
         {"perplexity", total.perplexity()},
         {"loss", total.loss / total.scored},
         {"standard_error", config::number_or_null(statistics::standard_error(total.means))}});
  }
  if (!left_out_.empty()) {
    result.metrics["documents_left_out"] = {
        {"documents", left_out_},
        {"text",
         fmt::format("{}: of documents with {} or more (perplexity.length) the text has {}",
                     fmt::join(left_out_, ", "),
                     counted(config_.length, "token"),
                     order_.size())}};
  }
  return result;
}

}  // namespace

std::unique_ptr<Task> make_perplexity(const Corpus& corpus,
                                      const EvaluationConfig& config,
                                      const ModelFacts& model) {
  PerplexityConfig settings = config.perplexity;
  const int64_t trained = model.train_length ? model.train_length : 1024;
  if (settings.window == 0) settings.window = trained;
  if (settings.stride == 0) settings.stride = std::max<int64_t>(1, settings.window / 2);
  if (settings.length == 0) settings.length = std::max<int64_t>(1, trained / 2);
  settings.documents = ascending(settings.documents);
  return std::make_unique<Perplexity>(corpus, settings);
}

}  // namespace reynard::evaluation

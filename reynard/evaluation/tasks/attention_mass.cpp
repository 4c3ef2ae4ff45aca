// Positive attention mass (Tworkowski et al. 2023, section 3.3): of d contexts from different
// documents, which share of the attention falls on the one that the queries go on with? Attention
// that cannot tell them apart gives 1/d.

#include "reynard/config/json_file.h"
#include "reynard/evaluation/attention_rows.h"
#include "reynard/evaluation/prompt_task.h"
#include "reynard/evaluation/tasks/tasks.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace reynard::evaluation {

namespace {

constexpr int64_t kUsualLength = 128;
constexpr int64_t kShortest = 16;

// "scoring" of models with a memory. 1: its keys are seen as they lie in it, and in the share that
// a gate gives them.
constexpr int64_t kMassScoring = 1;

// One sequence: d contexts, each after BOS where the model has one, then the queries.
struct Sequence {
  std::vector<int64_t> tokens;
  std::vector<int64_t> begins;  // first token of each context
  int64_t own = 0;              // which of them the queries go on with
  int64_t queries = 0;          // first query
};

// Shares of one head, means over the queries of a sequence.
struct Mass {
  double own = 0;       // of what falls on the contexts
  double contexts = 0;  // of all attention
};

// logits (R, K) -> (R): log of the sum of exponentials over all pieces [begin, begin + length).
at::Tensor log_mass(const at::Tensor& logits, const std::vector<int64_t>& begins, int64_t length) {
  at::Tensor total;
  for (const int64_t begin : begins) {
    const at::Tensor one = at::logsumexp(logits.narrow(1, begin, length).to(at::kDouble), {1});
    total = total.defined() ? at::logaddexp(total, one) : one;
  }
  return total;
}

std::vector<Mass> masses_of(models::AttentionView view, const Sequence& sequence, int64_t length) {
  view.top_k = 0;  // the mass of all keys, whichever are read
  std::vector<Mass> masses(view.q.size(1));
  std::vector<int64_t> counts(masses.size());
  const int64_t N = view.q.size(0);
  const at::Tensor queries = at::arange(sequence.queries, N, at::kLong);
  for_attention_rows(view, queries, [&](const AttentionRows& rows) {
    const at::Tensor all = log_mass(rows.logits, sequence.begins, length);
    const at::Tensor own = log_mass(rows.logits, {sequence.begins[sequence.own]}, length);
    const at::Tensor whole = at::logsumexp(rows.logits.to(at::kDouble), {1});
    for (int64_t r = 0; r < all.size(0); ++r) {
      // A window may leave a query without any of the contexts.
      if (std::isinf(all[r].item<double>())) continue;
      masses[rows.head].own += std::exp((own[r] - all[r]).item<double>());
      masses[rows.head].contexts += std::exp((all[r] - whole[r]).item<double>());
      ++counts[rows.head];
    }
  });
  for (size_t h = 0; h < masses.size(); ++h) {
    const double n = counts[h] ? static_cast<double>(counts[h]) : std::nan("");
    masses[h].own /= n;
    masses[h].contexts /= n;
  }
  return masses;
}

// Mean and standard error over samples of one number per head.
struct HeadMeans {
  std::vector<std::vector<std::vector<double>>> values;  // [layer][head][sample]

  void add(const nlohmann::json& layers) {
    values.resize(std::max(values.size(), layers.size()));
    for (size_t l = 0; l < layers.size(); ++l) {
      values[l].resize(std::max(values[l].size(), layers[l].size()));
      for (size_t h = 0; h < layers[l].size(); ++h) {
        if (layers[l][h].is_number()) values[l][h].push_back(layers[l][h].get<double>());
      }
    }
  }
  // Of one head; null without a sample.
  static nlohmann::json mean(const std::vector<double>& samples) {
    if (samples.empty()) return {};
    double sum = 0;
    for (const double x : samples) sum += x;
    return sum / static_cast<double>(samples.size());
  }
  nlohmann::json means() const {
    nlohmann::json layers = nlohmann::json::array();
    for (const auto& layer : values) {
      layers.push_back(nlohmann::json::array());
      for (const auto& head : layer) layers.back().push_back(mean(head));
    }
    return layers;
  }
};

class AttentionMass final : public Task {
 public:
  AttentionMass(const Corpus& corpus,
                AttentionMassConfig config,
                std::vector<int64_t> memory_layers)
      : corpus_(corpus), config_(std::move(config)), memory_layers_(std::move(memory_layers)) {
    config_.contexts = ascending(config_.contexts);
    tensor::check_value(
        !config_.contexts.empty(), "attention_mass", "contexts", "[]", "at least one number");
    for (const Document& document : corpus.documents) {
      const int64_t size = document.end - document.begin;
      if (size >= config_.length) distractors_.push_back(document);
      if (size >= 2 * config_.length) owners_.push_back(document);
    }
    const auto needed = config_.contexts.back();
    if (owners_.empty() || static_cast<int64_t>(distractors_.size()) < needed) {
      throw Error(fmt::format(
          "attention_mass: the text has {} of {} or more, {} of twice as many; contexts = {} need "
          "{} and one: give more text, a smaller --attention_mass.length or fewer "
          "--attention_mass.contexts",
          counted(distractors_.size(), "document"),
          counted(config_.length, "token"),
          owners_.size(),
          needed,
          needed));
    }
  }

  std::string name() const override { return "attention_mass"; }

  nlohmann::json settings() const override {
    nlohmann::json settings{{"contexts", config_.contexts},
                            {"length", config_.length},
                            {"samples", config_.samples},
                            {"place", config::name_of(config_.place)},
                            {"seed", config_.seed},
                            {"bos", corpus_.bos ? nlohmann::json(*corpus_.bos) : nlohmann::json()}};
    if (!memory_layers_.empty()) {
      settings["memory_layers"] = memory_layers_;
      settings["scoring"] = kMassScoring;
    }
    return settings;
  }

  Requests requests() override {
    const auto size = static_cast<int64_t>(config_.contexts.size()) * config_.samples;
    return {size, [this](int64_t i) {
              const int64_t d = config_.contexts[i / config_.samples];
              const int64_t sample = i % config_.samples;
              Sequence made = sequence(d, sample);
              return Request{fmt::format("{} {}", d, sample),
                             {{"contexts", d},
                              {"sample", sample},
                              {"own", made.own},
                              {"begins", made.begins},
                              {"queries", made.queries}},
                             Probe{std::move(made.tokens)}};
            }};
  }

  nlohmann::json sample(const Request& request, const Response& response) override {
    Sequence sequence;
    sequence.own = request.about.at("own");
    sequence.begins = request.about.at("begins").get<std::vector<int64_t>>();
    sequence.queries = request.about.at("queries");
    nlohmann::json line = request.about;
    line["mass"] = nlohmann::json::array();
    line["context_share"] = nlohmann::json::array();
    int64_t layer = 0;
    for (const models::AttentionView& view : std::get<Probed>(response).layers) {
      nlohmann::json own = nlohmann::json::array();
      nlohmann::json contexts = nlohmann::json::array();
      if (counts(layer++)) {
        for (const Mass& mass : masses_of(view, sequence, config_.length)) {
          own.push_back(config::number_or_null(mass.own));
          contexts.push_back(config::number_or_null(mass.contexts));
        }
      }
      line["mass"].push_back(std::move(own));
      line["context_share"].push_back(std::move(contexts));
    }
    return line;
  }

  Measured measure(const Samples& samples) override;

 private:
  Sequence sequence(int64_t d, int64_t sample) const;
  // Beside layers with a memory, the others see the queries' local context alone.
  bool counts(int64_t layer) const {
    return memory_layers_.empty() ||
           std::ranges::find(memory_layers_, layer) != memory_layers_.end();
  }

  const Corpus& corpus_;
  AttentionMassConfig config_;
  std::vector<int64_t> memory_layers_;
  std::vector<Document> distractors_;  // long enough for a context
  std::vector<Document> owners_;       // ... and for the queries behind it
};

// The own text and the first distractors of a sample are the same for every d.
Sequence AttentionMass::sequence(int64_t d, int64_t sample) const {
  const int64_t length = config_.length;
  PythonRandom random = sample_random(config_.seed, sample);
  const Document owner = owners_[random.up_to(static_cast<int64_t>(owners_.size()) - 1)];
  const int64_t begin = owner.begin + random.up_to(owner.end - owner.begin - 2 * length);
  std::vector<Document> others = distractors_;
  std::erase_if(others, [&](const Document& other) { return other.begin == owner.begin; });
  std::vector<int64_t> starts;
  for (int64_t i = 0; i + 1 < d; ++i) {
    const auto left = static_cast<int64_t>(others.size());
    std::swap(others[i], others[i + random.up_to(left - i - 1)]);
    starts.push_back(others[i].begin + random.up_to(others[i].end - others[i].begin - length));
  }
  Sequence result;
  switch (config_.place) {
    case OwnPlace::kRandom:
      result.own = random.up_to(d - 1);
      break;
    case OwnPlace::kFirst:
      break;
    case OwnPlace::kLast:
      result.own = d - 1;
      break;
  }
  starts.insert(starts.begin() + result.own, begin);
  const auto append = [&](int64_t from) {
    if (corpus_.bos) result.tokens.push_back(*corpus_.bos);
    const auto first = static_cast<int64_t>(result.tokens.size());
    const std::vector<int64_t> text = corpus_.read(from, from + length);
    result.tokens.insert(result.tokens.end(), text.begin(), text.end());
    return first;
  };
  for (const int64_t start : starts) result.begins.push_back(append(start));
  result.queries = append(begin + length);
  return result;
}

Measured AttentionMass::measure(const Samples& samples) {
  std::map<int64_t, HeadMeans> masses;
  std::map<int64_t, HeadMeans> shares;
  samples.for_each([&](const nlohmann::json& line) {
    const int64_t d = line.at("contexts");
    masses[d].add(line.at("mass"));
    shares[d].add(line.at("context_share"));
  });
  Measured result;
  result.series["points"] = nlohmann::json::array();
  for (auto& [d, of] : masses) {
    std::vector<double> heads;  // mean over samples
    double best = 0;
    for (const auto& layer : of.values) {
      for (const auto& head : layer) {
        const nlohmann::json mean = HeadMeans::mean(head);
        if (!mean.is_number()) continue;
        heads.push_back(mean.get<double>());
        best = std::max(best, heads.back());
      }
    }
    const nlohmann::json mean = HeadMeans::mean(heads);
    result.metrics[fmt::format("mass_{}_contexts", d)] = mean;
    result.metrics[fmt::format("best_head_{}_contexts", d)] = best;
    result.series["points"].push_back({{"contexts", d},
                                       {"chance", 1.0 / static_cast<double>(d)},
                                       {"mean", mean},
                                       {"mass", of.means()},
                                       {"context_share", shares[d].means()}});
  }
  result.metrics["samples"] = samples.size;
  return result;
}

}  // namespace

config::EnumNames<OwnPlace> enum_names(OwnPlace) {
  return {{OwnPlace::kRandom, "random"}, {OwnPlace::kFirst, "first"}, {OwnPlace::kLast, "last"}};
}

std::unique_ptr<Task> make_attention_mass(const Corpus& corpus,
                                          const EvaluationConfig& config,
                                          const ModelFacts& model) {
  if (!model.memory_layers.empty() && model.memory_capacity < 0) {
    throw Error(
        "attention_mass: a memory of 0 tokens shows nothing of other contexts; give "
        "--memory-tokens another number or leave it out");
  }
  AttentionMassConfig settings = config.attention_mass;
  if (settings.length == 0) {
    settings.length =
        model.train_length ? std::max(kShortest, model.train_length / 8) : kUsualLength;
  }
  return std::make_unique<AttentionMass>(corpus, settings, model.memory_layers);
}

}  // namespace reynard::evaluation

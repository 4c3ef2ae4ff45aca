// A look inside the model on one piece of text: forget gates token by token, and maps of decay and
// attention per head with the pruning boundary.

#include "reynard/evaluation/attention_maps.h"
#include "reynard/evaluation/map_json.h"
#include "reynard/evaluation/rows.h"
#include "reynard/evaluation/tasks/tasks.h"
#include "reynard/evaluation/text_too_short.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include <algorithm>

namespace reynard::evaluation {

namespace {

// "scoring" of models with a memory. 1: its keys are seen as they lie in it, and in the share that
// a gate gives them. 2: and only the best where only these are read.
constexpr int64_t kInsideScoring = 2;

class Inside final : public Task {
 public:
  Inside(const Corpus& corpus, InsideConfig config, bool has_memory)
      : corpus_(corpus), config_(config), has_memory_(has_memory), row_(find_row(corpus, config)) {}

  std::string name() const override { return "inside"; }

  nlohmann::json settings() const override {
    nlohmann::json settings{{"length", config_.length},
                            {"document", config_.document},
                            {"gate_tokens", config_.gate_tokens},
                            {"cells", config_.cells},
                            {"begin", row_.begin}};
    if (has_memory_) settings["scoring"] = kInsideScoring;
    return settings;
  }

  Requests requests() override {
    return {1, [this](int64_t) {
              return Request{"sample",
                             {{"begin", row_.begin}},
                             Probe{corpus_.read(row_.begin, row_.begin + config_.length)}};
            }};
  }

  nlohmann::json sample(const Request& request, const Response& response) override {
    nlohmann::json line = request.about;
    line["length"] = config_.length;
    line["cells"] = config_.cells;
    const std::vector<int64_t>& tokens = std::get<Probe>(request.query).tokens;
    const int64_t shown = std::min(config_.gate_tokens, config_.length);
    line["gate_text"] = nlohmann::json::array();
    for (auto i = config_.length - shown; i < config_.length; ++i) {
      line["gate_text"].push_back(visible(corpus_.decode({tokens[i]})));
    }
    line["layers"] = nlohmann::json::array();
    for (const models::AttentionView& view : std::get<Probed>(response).layers) {
      line["layers"].push_back(layer(view, shown));
    }
    return line;
  }

  Measured measure(const Samples& samples) override {
    Measured result;
    samples.for_each([&](const nlohmann::json& line) { result.series = line; });
    return result;
  }

 private:
  static Row find_row(const Corpus& corpus, const InsideConfig& config) {
    tensor::check_value(
        config.length % config.cells == 0,
        "inside",
        "--inside.length",
        config.length,
        fmt::format("a multiple of --inside.cells = {0}, {0} at least", config.cells));
    const RowOptions options{config.length, corpus.num_tokens, 0, false};
    const std::vector<Row> rows = cut_rows(corpus, options, "inside");
    int64_t seen = -1;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i == 0 || rows[i].document != rows[i - 1].document) ++seen;
      if (seen == config.document) return rows[i];
    }
    tensor::fail("inside",
                 "document",
                 std::to_string(config.document),
                 fmt::format("less than {}: so many documents are long enough", seen + 1));
  }

  nlohmann::json layer(const models::AttentionView& view, int64_t shown) const {
    nlohmann::json json;
    const CellMaps maps = cell_maps(view, {.cells = config_.cells});
    json["attention"] = triangles(maps.attention);
    if (maps.decay.defined()) {
      json["decay"] = triangles(maps.decay);
      const at::Tensor gates = view.log_gate.exp().transpose(0, 1);  // (H, N)
      json["gates"] = rows_of(gates.narrow(1, gates.size(1) - shown, shown));
    }
    if (view.start.defined()) json["start"] = integer_rows(view.start);
    return json;
  }

  const Corpus& corpus_;
  InsideConfig config_;
  bool has_memory_;
  Row row_;
};

}  // namespace

std::unique_ptr<Task> make_inside(const Corpus& corpus,
                                  const EvaluationConfig& config,
                                  const ModelFacts& model) {
  InsideConfig settings = config.inside;
  if (settings.length == 0) {
    settings.length = model.train_length ? model.train_length : 1024;
    if (settings.length < settings.cells) {
      throw TextTooShort(
          fmt::format("inside: --inside.cells = {}; expected at most the {} tokens of a text",
                      settings.cells,
                      settings.length));
    }
    settings.length -= settings.length % settings.cells;
  }
  return std::make_unique<Inside>(corpus, settings, !model.memory_layers.empty());
}

}  // namespace reynard::evaluation

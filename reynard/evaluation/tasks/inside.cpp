// A look inside the model on one piece of text: forget gates token by token, and maps of decay and
// attention per head with the pruning boundary.

#include "reynard/evaluation/attention_maps.h"
#include "reynard/evaluation/rows.h"
#include "reynard/evaluation/tasks/tasks.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace reynard::evaluation {

namespace {

// A number with few digits: maps hold many.
nlohmann::json short_number(double value, int digits) {
  return nlohmann::json::parse(fmt::format("{:.{}g}", value, digits));
}

// (H, N) -> list of lists, four digits each.
nlohmann::json rows_of(const at::Tensor& values) {
  const at::Tensor v = values.to(at::kFloat).contiguous();
  const float* x = v.const_data_ptr<float>();
  nlohmann::json rows = nlohmann::json::array();
  for (int64_t h = 0; h < v.size(0); ++h) {
    nlohmann::json row = nlohmann::json::array();
    for (int64_t i = 0; i < v.size(1); ++i) row.push_back(short_number(x[h * v.size(1) + i], 4));
    rows.push_back(std::move(row));
  }
  return rows;
}

// (H, cells, cells) -> per head the lower triangle, row by row.
nlohmann::json triangles(const at::Tensor& maps) {
  const at::Tensor m = maps.to(at::kFloat).contiguous();
  const int64_t cells = m.size(1);
  const float* x = m.const_data_ptr<float>();
  nlohmann::json heads = nlohmann::json::array();
  for (int64_t h = 0; h < m.size(0); ++h) {
    nlohmann::json head = nlohmann::json::array();
    for (int64_t a = 0; a < cells; ++a) {
      for (int64_t b = 0; b <= a; ++b) {
        head.push_back(short_number(x[(h * cells + a) * cells + b], 3));
      }
    }
    heads.push_back(std::move(head));
  }
  return heads;
}

nlohmann::json integer_rows(const at::Tensor& values) {
  const at::Tensor v = values.to(at::kLong).contiguous();
  const int64_t* x = v.const_data_ptr<int64_t>();
  nlohmann::json rows = nlohmann::json::array();
  for (int64_t h = 0; h < v.size(0); ++h) {
    rows.push_back(std::vector<int64_t>(x + h * v.size(1), x + (h + 1) * v.size(1)));
  }
  return rows;
}

// One token as a reader sees it: spaces and line ends visible, no control characters.
std::string visible(std::string text) {
  if (text == " ") return "·";
  if (text == "\n") return "⏎";
  if (text == "\t") return "→";
  const bool printable = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7f;
  });
  return printable ? text : "□";
}

class Inside final : public Task {
 public:
  Inside(const Corpus& corpus, InsideConfig config)
      : corpus_(corpus), config_(config), row_(find_row(corpus, config)) {}

  std::string name() const override { return "inside"; }

  nlohmann::json settings() const override {
    return {{"length", config_.length},
            {"document", config_.document},
            {"gate_tokens", config_.gate_tokens},
            {"cells", config_.cells},
            {"begin", row_.begin}};
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
    tensor::check_value(config.length % config.cells == 0,
                        "inside",
                        "length",
                        config.length,
                        fmt::format("a multiple of --inside.cells = {}", config.cells));
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
    const CellMaps maps = cell_maps(view, config_.cells);
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
  Row row_;
};

}  // namespace

std::unique_ptr<Task> make_inside(const Corpus& corpus,
                                  const EvaluationConfig& config,
                                  const ModelFacts& model) {
  InsideConfig settings = config.inside;
  if (settings.length == 0) {
    settings.length = model.train_length ? model.train_length : 1024;
    settings.length -= settings.length % settings.cells;
  }
  return std::make_unique<Inside>(corpus, settings);
}

}  // namespace reynard::evaluation

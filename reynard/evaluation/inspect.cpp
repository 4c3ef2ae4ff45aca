#include "reynard/evaluation/inspect.h"

#include "reynard/attention/pruning.h"
#include "reynard/config/json_file.h"
#include "reynard/evaluation/attention_maps.h"
#include "reynard/evaluation/attention_rows.h"
#include "reynard/evaluation/head_statistics.h"
#include "reynard/evaluation/map_json.h"
#include "reynard/models/decoder.h"
#include "reynard/models/score.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace reynard::evaluation {

namespace {

constexpr int64_t kWindow = 64;         // tokens shown one by one by default
constexpr int64_t kReachQueries = 128;  // read of each text for the distances
constexpr int64_t kTolerances = 20;     // e^-1 ... e^-20

models::AttentionView one_head(const models::AttentionView& view, int64_t head) {
  const int64_t group = head / (view.q.size(1) / view.k.size(1));
  models::AttentionView one = view;
  one.q = view.q.narrow(1, head, 1);
  one.k = view.k.narrow(1, group, 1);
  if (view.memory_k.defined()) one.memory_k = view.memory_k.narrow(1, group, 1);
  if (view.memory_share.defined()) one.memory_share = view.memory_share.narrow(0, head, 1);
  if (view.log_gate.defined()) one.log_gate = view.log_gate.narrow(1, head, 1);
  if (view.start.defined()) one.start = view.start.narrow(0, head, 1);
  return one;
}

// NaN where the view does not say what was pruned.
attention::AttentionStatistics pruning_of(const models::AttentionView& view) {
  const int64_t N = view.q.size(0);
  if (!view.start.defined()) {
    const at::Tensor unknown = at::full({view.q.size(1)}, std::nan(""), at::kDouble);
    return {.first_block = {}, .pruned_tiles = unknown, .pruned_flops = unknown};
  }
  return attention::attention_statistics(
      view.start.unsqueeze(0),
      view.first_key.defined() ? view.first_key.unsqueeze(0) : at::Tensor(),
      N,
      N);
}

// Calls visit for the layers that it wants, one at a time, on the CPU: maps are made there.
struct EachLayer final : models::Observer {
  std::function<bool(int64_t)> chosen = [](int64_t) { return true; };
  std::function<void(int64_t, const models::AttentionView&)> visit;
  std::function<void(int64_t)> reached = [](int64_t) {};  // every layer
  bool wants(int64_t layer) override {
    reached(layer);
    return chosen(layer);
  }
  void attention(int64_t layer, const models::AttentionView& view) override {
    const models::AttentionView copy = models::copied_to_cpu(view);
    check_view_is_finite(copy, layer, "inspect");
    visit(layer, copy);
  }
};

// What is known of one head, means over the texts.
struct Head {
  HeadIndex index;
  HeadStatistics statistics;
  double pruned_tiles = 0, pruned_flops = 0;  // NaN: not known of every text
};

class Inspection {
 public:
  Inspection(models::Decoder& decoder,
             const std::vector<InspectedText>& texts,
             InspectOptions options,
             std::function<void(int64_t, int64_t)> progress)
      : decoder_(decoder),
        texts_(texts),
        options_(std::move(options)),
        progress_(std::move(progress)) {
    check();
    gated_ = decoder.config().attention.forget_gate != models::ForgetGate::kNone;
    all_ = static_cast<int64_t>(texts.front().tokens.size());
    for (const InspectedText& text : texts) {
      all_ += static_cast<int64_t>(text.tokens.size());
      if (sweeps()) all_ += (kTolerances + 1) * swept(text);
    }
  }

  nlohmann::json run(const std::function<std::string(const std::vector<int64_t>&)>& decode);

 private:
  bool sweeps() const { return gated_ && options_.sweep_tokens > 0; }
  void check();
  void forward(const std::vector<int64_t>& tokens, models::Observer& observer);
  // For one pass over so many tokens.
  EachLayer each_layer(int64_t tokens) {
    EachLayer look;
    look.reached = [this, tokens](int64_t layer) { show_progress(layer * tokens); };
    return look;
  }
  // more: what of the pass that runs is done, in tokens times layers.
  void show_progress(int64_t more) const {
    const int64_t layers = decoder_.config().num_layers;
    if (progress_) progress_(done_ * layers + more, all_ * layers);
  }
  void count_pass(int64_t tokens) {
    done_ += tokens;
    show_progress(0);
  }
  int64_t swept(const InspectedText& text) const {
    return std::min(options_.sweep_tokens, static_cast<int64_t>(text.tokens.size()) - 1);
  }
  void look_at(const InspectedText& text, bool first);
  void add(int64_t layer, const models::AttentionView& view);
  std::vector<HeadIndex> shown() const;
  nlohmann::json maps();
  nlohmann::json full_maps(const models::AttentionView& view) const;
  nlohmann::json heads() const;
  nlohmann::json sweep();
  // Mean loss of the sweep's tokens, and of the layers of which it is known the mean share of
  // attention's FLOPs that was skipped (NaN: of none).
  std::pair<double, double> loss_at(double log_tolerance);

  models::Decoder& decoder_;
  const std::vector<InspectedText>& texts_;
  InspectOptions options_;
  std::function<void(int64_t, int64_t)> progress_;
  bool gated_ = false;
  int64_t all_ = 0, done_ = 0;  // tokens of forward passes
  std::vector<Head> heads_;     // layer by layer
  nlohmann::json overview_ = nlohmann::json::object();
};

void Inspection::check() {
  tensor::check_value(!texts_.empty(), "inspect", "texts", "[]", "at least one");
  for (const InspectedText& text : texts_) {
    const auto size = static_cast<int64_t>(text.tokens.size());
    tensor::check_value(
        size >= 2, "inspect", text.name, counted(size, "token"), "at least 2 tokens");
  }
  const auto N = static_cast<int64_t>(texts_.front().tokens.size());
  if (options_.window_end == 0) {
    options_.window_end = N;
    options_.window_begin = std::max<int64_t>(0, N - kWindow);
  }
  tensor::check_value(options_.window_begin >= 0 && options_.window_begin < options_.window_end &&
                          options_.window_end <= N,
                      "inspect",
                      "--window",
                      fmt::format("{}:{}", options_.window_begin, options_.window_end),
                      fmt::format("a piece of the text's {} tokens", N));
  const models::DecoderConfig& config = decoder_.config();
  for (const HeadIndex& head : options_.heads) {
    tensor::check_value(
        head.layer >= 0 && head.layer < config.num_layers && head.head >= 0 &&
            head.head < config.attention.num_heads,
        "inspect",
        "--heads",
        fmt::format("{}.{}", head.layer + 1, head.head + 1),
        fmt::format("1.1 ... {}.{} (LAYER.HEAD)", config.num_layers, config.attention.num_heads));
  }
}

void Inspection::forward(const std::vector<int64_t>& tokens, models::Observer& observer) {
  const at::NoGradGuard no_grad;
  const at::Tensor hidden = decoder_.hidden(
      at::tensor(tokens, at::kLong), at::zeros({1}, at::kLong), {}, {.observer = &observer});
  if (!at::isfinite(hidden).all().item<bool>()) {
    throw Error(
        fmt::format("inspect: what layer {} gives is not finite: its weights or those of the norm "
                    "behind it hold NaN or numbers that are too large",
                    decoder_.config().num_layers));
  }
  count_pass(static_cast<int64_t>(tokens.size()));
}

void Inspection::add(int64_t layer, const models::AttentionView& view) {
  const auto share = 1 / static_cast<double>(texts_.size());
  const std::vector<HeadStatistics> statistics = head_statistics(view, kReachQueries);
  const attention::AttentionStatistics pruning = pruning_of(view);
  const auto H = static_cast<int64_t>(statistics.size());
  heads_.resize(std::max<size_t>(heads_.size(), (layer + 1) * H));
  for (int64_t h = 0; h < H; ++h) {
    Head& head = heads_[layer * H + h];
    head.index = {layer, h};
    const HeadStatistics& one = statistics[h];
    head.statistics.reach += share * one.reach;
    head.statistics.mean_distance += share * one.mean_distance;
    head.statistics.gate_memory += share * one.gate_memory;
    head.statistics.mean_gate += share * one.mean_gate;
    head.statistics.gate_histogram.resize(one.gate_histogram.size());
    for (size_t b = 0; b < one.gate_histogram.size(); ++b) {
      head.statistics.gate_histogram[b] += share * one.gate_histogram[b];
    }
    head.pruned_tiles += share * pruning.pruned_tiles[h].item<double>();
    head.pruned_flops += share * pruning.pruned_flops[h].item<double>();
  }
}

void Inspection::look_at(const InspectedText& text, bool first) {
  EachLayer look = each_layer(static_cast<int64_t>(text.tokens.size()));
  look.visit = [&](int64_t layer, const models::AttentionView& view) {
    add(layer, view);
    if (!first) return;
    const int64_t N = view.q.size(0);
    const CellMaps maps = cell_maps(view,
                                    {.cells = std::min(options_.overview_cells, N),
                                     .queries_per_cell = options_.queries_per_cell});
    nlohmann::json& json = overview_["layers"][layer];
    json["attention"] = triangles(maps.attention);
    if (maps.decay.defined()) {
      json["decay"] = triangles(maps.decay);
      const int64_t shown = std::min(options_.gate_tokens, N);
      json["gates"] = rows_of(view.log_gate.exp().transpose(0, 1).narrow(1, N - shown, shown));
    }
    if (view.start.defined()) json["start"] = integer_rows(view.start);
  };
  forward(text.tokens, look);
}

// By reach: the nearest, the middle and the farthest head, unless heads were named.
std::vector<HeadIndex> Inspection::shown() const {
  if (!options_.heads.empty()) return options_.heads;
  std::vector<const Head*> order;
  for (const Head& head : heads_) order.push_back(&head);
  std::stable_sort(order.begin(), order.end(), [](const Head* a, const Head* b) {
    return a->statistics.mean_distance < b->statistics.mean_distance;
  });
  std::vector<HeadIndex> chosen;
  if (order.size() <= 3) {
    for (const Head* head : order) chosen.push_back(head->index);
  } else {
    for (const size_t i : {order.size() - 1, order.size() / 2, size_t{0}}) {
      chosen.push_back(order[i]->index);
    }
  }
  return chosen;
}

nlohmann::json Inspection::full_maps(const models::AttentionView& view) const {
  const auto as_json = [](const CellMaps& maps, int64_t begin, int64_t end, int64_t cells) {
    nlohmann::json json{{"begin", begin}, {"end", end}, {"cells", cells}};
    json["attention"] = triangle(maps.attention[0]);
    if (maps.decay.defined()) {
      json["decay"] = triangle(maps.decay[0]);
      json["log_decay"] = triangle(maps.log_decay[0]);
    }
    return json;
  };
  const int64_t N = view.q.size(0);
  CellOptions whole{.cells = std::min(options_.cells, N),
                    .begin = 0,
                    .end = N,
                    .queries_per_cell = options_.queries_per_cell};
  CellOptions window = whole;
  window.begin = options_.window_begin;
  window.end = options_.window_end;
  window.cells = std::min(options_.cells, window.end - window.begin);
  nlohmann::json maps{
      {"whole", as_json(cell_maps(view, whole), 0, N, whole.cells)},
      {"window", as_json(cell_maps(view, window), window.begin, window.end, window.cells)}};
  if (view.start.defined()) maps["start"] = integer_rows(view.start)[0];
  return maps;
}

// Of the first text, in the order in which the heads are shown.
nlohmann::json Inspection::maps() {
  const std::vector<HeadIndex> chosen = shown();
  std::vector<nlohmann::json> found(chosen.size());
  EachLayer look = each_layer(static_cast<int64_t>(texts_.front().tokens.size()));
  look.chosen = [&](int64_t layer) {
    return std::any_of(
        chosen.begin(), chosen.end(), [&](const HeadIndex& head) { return head.layer == layer; });
  };
  look.visit = [&](int64_t layer, const models::AttentionView& view) {
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i].layer != layer) continue;
      found[i] = full_maps(one_head(view, chosen[i].head));
      found[i]["layer"] = layer + 1;
      found[i]["head"] = chosen[i].head + 1;
    }
  };
  forward(texts_.front().tokens, look);
  return found;
}

nlohmann::json Inspection::heads() const {
  nlohmann::json list = nlohmann::json::array();
  for (const Head& head : heads_) {
    const HeadStatistics& s = head.statistics;
    nlohmann::json json{{"layer", head.index.layer + 1},
                        {"head", head.index.head + 1},
                        {"reach", s.reach},
                        {"mean_distance", s.mean_distance}};
    if (gated_) {
      json["gate_memory"] = s.gate_memory;
      json["mean_gate"] = s.mean_gate;
      json["gate_histogram"] = s.gate_histogram;
      json["pruned_tiles"] = config::number_or_null(head.pruned_tiles);
      json["pruned_flops"] = config::number_or_null(head.pruned_flops);
    }
    list.push_back(std::move(json));
  }
  return list;
}

std::pair<double, double> Inspection::loss_at(double log_tolerance) {
  decoder_.set_log_pruning_tolerance(log_tolerance);
  double loss = 0;
  double skipped = 0;
  int64_t scored = 0;
  int64_t views = 0;
  for (const InspectedText& text : texts_) {
    const int64_t count = swept(text);
    const at::Tensor tokens = at::tensor(text.tokens, at::kLong);
    EachLayer look = each_layer(count);
    look.visit = [&](int64_t, const models::AttentionView& view) {
      const double share = pruning_of(view).pruned_flops.mean().item<double>();
      if (std::isnan(share)) return;
      skipped += share;
      ++views;
    };
    const models::TokenScores scores = models::score(decoder_,
                                                     tokens.narrow(0, 0, count),
                                                     at::zeros({1}, at::kLong),
                                                     tokens.narrow(0, 1, count),
                                                     {},
                                                     &look);
    loss -= scores.logprob.to(at::kDouble).sum().item<double>();
    if (!std::isfinite(loss)) {
      throw Error(
          "inspect: the loss is not finite: weights of the model's head hold NaN or numbers that "
          "are too large");
    }
    scored += count;
    count_pass(count);
  }
  return {loss / static_cast<double>(scored), skipped / static_cast<double>(views)};
}

nlohmann::json Inspection::sweep() {
  const double unpruned = loss_at(0).first;
  nlohmann::json points = nlohmann::json::array();
  for (int64_t i = 1; i <= kTolerances; ++i) {
    const auto [loss, flops] = loss_at(-static_cast<double>(i));
    points.push_back({{"log_tolerance", -i},
                      {"loss", loss},
                      {"loss_difference", loss - unpruned},
                      {"pruned_flops", config::number_or_null(flops)}});
  }
  int64_t tokens = 0;
  for (const InspectedText& text : texts_) tokens += swept(text);
  return {{"loss_unpruned", unpruned}, {"tokens", tokens}, {"points", points}};
}

nlohmann::json Inspection::run(
    const std::function<std::string(const std::vector<int64_t>&)>& decode) {
  show_progress(0);
  decoder_.set_log_pruning_tolerance(gated_ ? options_.log_tolerance : 0);
  for (const InspectedText& text : texts_) look_at(text, &text == &texts_.front());
  const std::vector<int64_t>& tokens = texts_.front().tokens;
  const auto N = static_cast<int64_t>(tokens.size());
  overview_["length"] = N;
  overview_["cells"] = std::min(options_.overview_cells, N);
  const auto texts_of = [&](int64_t begin, int64_t end) {
    nlohmann::json texts = nlohmann::json::array();
    for (int64_t i = begin; i < end; ++i) texts.push_back(visible(decode({tokens[i]})));
    return texts;
  };
  overview_["gate_text"] = texts_of(N - std::min(options_.gate_tokens, N), N);
  nlohmann::json result{{"heads", heads()}, {"overview", overview_}, {"maps", maps()}};
  result["window_text"] = texts_of(options_.window_begin, options_.window_end);
  result["texts"] = nlohmann::json::array();
  for (const InspectedText& text : texts_) {
    result["texts"].push_back({{"name", text.name}, {"tokens", text.tokens.size()}});
  }
  result["settings"] = {{"log_tolerance", options_.log_tolerance},
                        {"queries_per_cell", options_.queries_per_cell},
                        {"window", {options_.window_begin, options_.window_end}}};
  if (sweeps()) result["sweep"] = sweep();
  return result;
}

// Gives the decoder its own tolerance back, whatever happens.
struct KeptTolerance {
  explicit KeptTolerance(models::Decoder& model)
      : decoder(model), tolerance(model.config().attention.log_pruning_tolerance) {}
  ~KeptTolerance() { decoder.set_log_pruning_tolerance(tolerance); }
  KeptTolerance(const KeptTolerance&) = delete;
  KeptTolerance& operator=(const KeptTolerance&) = delete;

  models::Decoder& decoder;
  double tolerance;
};

}  // namespace

nlohmann::json inspect(models::Decoder& decoder,
                       const std::vector<InspectedText>& texts,
                       const InspectOptions& options,
                       const std::function<std::string(const std::vector<int64_t>&)>& decode,
                       const std::function<void(int64_t, int64_t)>& progress) {
  const KeptTolerance kept(decoder);
  return Inspection(decoder, texts, options, progress).run(decode);
}

}  // namespace reynard::evaluation

// What `reynard inspect` measures, against dense matrices and cases whose answer is known.

#include "reynard/evaluation/inspect.h"

#include "reynard/evaluation/attention_maps.h"
#include "reynard/evaluation/head_statistics.h"
#include "reynard/models/decoder.h"
#include "reynard/tensor/check.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>

namespace reynard::evaluation {
namespace {

// One head whose queries see all keys alike, with the same gate everywhere.
models::AttentionView even_view(int64_t tokens, double gate) {
  models::AttentionView view;
  view.q = at::zeros({tokens, 1, 4});
  view.k = at::randn({tokens, 1, 4});
  if (gate > 0) view.log_gate = at::full({tokens, 1}, std::log(gate));
  return view;
}

TEST(CellMaps, AWindowIsAPieceOfTheWhole) {
  models::AttentionView view = even_view(40, 0.9);
  view.q = at::randn({40, 1, 4});
  const CellMaps whole = cell_maps(view, {.cells = 40});
  const CellMaps window = cell_maps(view, {.cells = 10, .begin = 25, .end = 35});
  const auto piece = [](const at::Tensor& map) { return map.narrow(1, 25, 10).narrow(2, 25, 10); };
  EXPECT_TENSORS_NEAR(window.attention, piece(whole.attention), 1e-6, 1e-5);
  EXPECT_TENSORS_NEAR(window.decay, piece(whole.decay), 1e-6, 1e-5);
  EXPECT_TENSORS_NEAR(window.log_decay, piece(whole.log_decay), 1e-5, 1e-5);
  // Three tokens between: three gates.
  EXPECT_NEAR(window.decay[0][8][5].item<double>(), std::pow(0.9, 3), 1e-6);
  EXPECT_NEAR(window.log_decay[0][8][5].item<double>(), 3 * std::log(0.9), 1e-6);
  EXPECT_THROW(cell_maps(view, {.cells = 2, .begin = 30, .end = 41}), Error);
  EXPECT_THROW(cell_maps(view, {.cells = 41}), Error);
}

// Cells of unequal size; of even attention some queries say what all say.
TEST(CellMaps, ReadingSomeQueriesIsEnoughWhereAllAreAlike) {
  const models::AttentionView view = even_view(1000, 0);
  const CellMaps some = cell_maps(view, {.cells = 7, .queries_per_cell = 16});
  const CellMaps all = cell_maps(view, {.cells = 7});
  EXPECT_TENSORS_NEAR(some.attention, all.attention, 5e-3, 0);
  EXPECT_TENSORS_NEAR(some.attention.sum(-1), at::zeros({1, 7}) + 1, 1e-5, 0);
  EXPECT_FALSE(some.decay.defined());
}

TEST(HeadStatistics, KnowEvenAttentionAndConstantGates) {
  const HeadStatistics open = head_statistics(even_view(400, 1), 50)[0];
  EXPECT_NEAR(open.gate_memory, 401.0 / 2, 1e-6);  // sum of 1 ... 400 over 400
  EXPECT_NEAR(open.mean_gate, 1, 1e-9);
  EXPECT_EQ(open.gate_histogram.back(), 1);
  // Queries lie evenly between 200 and 399; attention is even over all before them.
  EXPECT_NEAR(open.mean_distance, 300 / 2.0, 2);
  EXPECT_NEAR(open.reach, 0.9 * 300, 3);

  // Of two queries, at 299 and 399, the mean.
  EXPECT_NEAR(head_statistics(even_view(400, 1), 2)[0].reach, 0.9 * (300 + 400) / 2, 2);

  const HeadStatistics half = head_statistics(even_view(400, 0.5), 50)[0];
  EXPECT_NEAR(half.gate_memory, 2, 0.01);  // 1 + 1/2 + 1/4 + ...
  EXPECT_EQ(half.gate_histogram[10], 1);   // [0.5, 0.55)
  EXPECT_EQ(half.reach, 3);  // 1/2 + 1/4 + 1/8 is less than nine tenths, with 1/16 it is more

  const HeadStatistics none = head_statistics(even_view(400, 0), 50)[0];
  EXPECT_TRUE(std::isnan(none.gate_memory));
  EXPECT_TRUE(none.gate_histogram.empty());
}

// Sum_j F_ij from the definition, over the keys from first (N) on.
double gate_memory_of(const at::Tensor& log_gate, const at::Tensor& first) {
  const int64_t N = log_gate.size(0);
  const at::Tensor c = log_gate.select(1, 0).to(at::kDouble).cumsum(0);
  const at::Tensor key = at::arange(N, at::kLong).unsqueeze(0);
  const at::Tensor seen =
      key.le(key.transpose(0, 1)).logical_and(key.ge(first.to(at::kLong).unsqueeze(1)));
  const at::Tensor left = (c.unsqueeze(1) - c.unsqueeze(0)).exp();
  return at::where(seen, left, 0.0).sum().item<double>() / static_cast<double>(N);
}

TEST(HeadStatistics, GatesKeepOnlyWhatQueriesSee) {
  const at::Tensor index = at::arange(16, at::kInt);
  models::AttentionView view = even_view(16, 1);
  view.first_key = index - index.remainder(4);  // contexts of four
  EXPECT_NEAR(head_statistics(view, 4)[0].gate_memory, 2.5, 1e-12);
  view.first_key = (index - 3).clamp_min(0);  // a window of four
  EXPECT_NEAR(head_statistics(view, 4)[0].gate_memory, (1 + 2 + 3 + 13 * 4) / 16.0, 1e-12);

  // Gates of every size, one of 0, and a memory of seven tokens before contexts of five.
  view = even_view(200, 1);
  view.log_gate = -at::randn({200, 1}).square();
  view.log_gate[90] = -1e3;
  const at::Tensor token = at::arange(200, at::kInt);
  const at::Tensor begins = token - token.remainder(5);
  view.first_key = (begins - 7).clamp_min(0);
  EXPECT_NEAR(head_statistics(view, 4)[0].gate_memory,
              gate_memory_of(view.log_gate, view.first_key),
              1e-12);
  view.first_decayed = begins;
  EXPECT_NEAR(
      head_statistics(view, 4)[0].gate_memory, gate_memory_of(view.log_gate, begins), 1e-12);
}

models::DecoderConfig small_model() {
  models::DecoderConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.num_layers = 2;
  config.attention.num_heads = 4;
  config.attention.num_kv_heads = 2;
  config.attention.qk_norm = models::QKNorm::kPerHead;
  config.attention.log_pruning_tolerance = -14;
  return config;
}

std::string no_text(const std::vector<int64_t>& /*tokens*/) {
  return "x";
}

std::vector<int64_t> some_tokens(int64_t count) {
  std::vector<int64_t> tokens(count);
  for (int64_t i = 0; i < count; ++i) tokens[i] = (i * i * 7 + i) % 50;
  return tokens;
}

TEST(Inspect, LooksIntoEveryHeadAndSweepsTheTolerance) {
  models::Decoder decoder(small_model(), 3);
  const std::vector<InspectedText> texts{{"a", some_tokens(500)}, {"b", some_tokens(300)}};
  int64_t passes = 0;
  int64_t all = 0;
  const auto result = inspect(
      decoder, texts, {.cells = 20, .sweep_tokens = 400}, no_text, [&](int64_t done, int64_t of) {
        passes = done;
        all = of;
      });
  EXPECT_EQ(passes, all);
  ASSERT_EQ(result.at("heads").size(), 8);
  EXPECT_EQ(result.at("heads")[7].at("layer"), 2);
  EXPECT_EQ(result.at("heads")[7].at("head"), 4);
  // Gates of random weights are about 1/2: two tokens' worth, and nearly all can be pruned.
  EXPECT_NEAR(result.at("heads")[0].at("gate_memory").get<double>(), 2, 0.5);
  EXPECT_GT(result.at("heads")[0].at("pruned_flops").get<double>(), 0.2);
  EXPECT_EQ(result.at("overview").at("layers")[1].at("attention").size(), 4);
  EXPECT_EQ(result.at("overview").at("layers")[1].at("attention")[0].size(), 32 * 33 / 2);
  ASSERT_EQ(result.at("maps").size(), 3);
  EXPECT_EQ(result.at("maps")[0].at("whole").at("decay").size(), 20 * 21 / 2);
  EXPECT_EQ(result.at("maps")[0].at("window").at("begin"), 500 - 64);
  const auto& points = result.at("sweep").at("points");
  ASSERT_EQ(points.size(), 20);
  EXPECT_EQ(points[0].at("log_tolerance"), -1);
  // Less is skipped the less may be dropped, and e^-20 changes nothing.
  for (size_t i = 1; i < points.size(); ++i) {
    EXPECT_LE(points[i].at("pruned_flops").get<double>(),
              points[i - 1].at("pruned_flops").get<double>());
  }
  EXPECT_NEAR(points[19].at("loss_difference").get<double>(), 0, 1e-5);
  EXPECT_EQ(decoder.config().attention.log_pruning_tolerance, -14);
}

TEST(Inspect, NamesTheTokensOfItsWindow) {
  models::Decoder decoder(small_model(), 3);
  const std::vector<InspectedText> texts{{"a", some_tokens(100)}, {"b", some_tokens(50)}};
  const auto number = [](const std::vector<int64_t>& tokens) {
    return std::to_string(tokens.at(0));
  };
  const auto result =
      inspect(decoder, texts, {.window_begin = 10, .window_end = 13, .sweep_tokens = 0}, number);
  EXPECT_EQ(result.at("window_text"), (nlohmann::json{"10", "8", "20"}));
}

TEST(Inspect, SaysHowManyTokensTheSweepRead) {
  models::Decoder decoder(small_model(), 3);
  const auto swept = [&](const InspectOptions& options) {
    const std::vector<InspectedText> texts{{"a", some_tokens(200)}, {"b", some_tokens(300)}};
    return inspect(decoder, texts, options, no_text).at("sweep").at("tokens").get<int64_t>();
  };
  EXPECT_EQ(swept({}), 199 + 299);  // the last token has none to predict
  EXPECT_EQ(swept({.sweep_tokens = 250}), 199 + 250);
  EXPECT_EQ(swept({.sweep_tokens = 64}), 64 + 64);
}

TEST(Inspect, ShowsTheHeadsThatAreNamed) {
  models::Decoder decoder(small_model(), 3);
  const std::vector<InspectedText> texts{{"a", some_tokens(200)}};
  const InspectOptions options{
      .heads = {{1, 2}, {0, 0}}, .window_begin = 10, .window_end = 20, .sweep_tokens = 0};
  const auto result = inspect(decoder, texts, options, no_text);
  ASSERT_EQ(result.at("maps").size(), 2);
  EXPECT_EQ(result.at("maps")[0].at("layer"), 2);
  EXPECT_EQ(result.at("maps")[0].at("head"), 3);
  EXPECT_EQ(result.at("maps")[0].at("window").at("cells"), 10);
  EXPECT_FALSE(result.contains("sweep"));
  EXPECT_THROW(inspect(decoder, texts, {.heads = {{2, 0}}}, no_text), Error);
  EXPECT_THROW(inspect(decoder, texts, {.window_begin = 5, .window_end = 201}, no_text), Error);
  EXPECT_EQ(decoder.config().attention.log_pruning_tolerance, -14);
}

// Gates of 1 in local contexts of four tokens leave (1 + 2 + 3 + 4) / 4 of them, in a layer with a
// memory and in one without.
TEST(Inspect, GatesKeepNothingOfOtherContexts) {
  models::DecoderConfig config = small_model();
  config.mixer = "memory_attention";
  config.attention.forget_gate = models::ForgetGate::kFixed;
  config.attention.decay_time_min = config.attention.decay_time_max = 1e12;
  config.memory.window = 4;
  config.memory.layers = {1};
  models::Decoder decoder(config, 3);
  const auto result = inspect(decoder, {{"a", some_tokens(16)}}, {.sweep_tokens = 0}, no_text);
  for (const auto& head : result.at("heads")) {
    EXPECT_NEAR(head.at("gate_memory").get<double>(), 2.5, 1e-6) << head;
  }
}

// What pruning skips of several contexts and a memory is not known, and not nothing.
TEST(Inspect, KnowsNoPruningOfLayersThatReadAMemory) {
  models::DecoderConfig config = small_model();
  config.mixer = "memory_attention";
  config.attention.forget_gate = models::ForgetGate::kFixed;
  config.attention.decay_time_min = 2;
  config.attention.decay_time_max = 4;
  config.memory.window = 512;
  config.memory.layers = {1};
  models::Decoder decoder(config, 3);
  const std::vector<InspectedText> one{{"a", some_tokens(512)}};
  const InspectOptions options{.log_tolerance = -3, .sweep_tokens = 600};
  const auto local = inspect(decoder, one, options, no_text);
  for (const auto& head : local.at("heads")) EXPECT_GT(head.at("pruned_flops"), 0.2) << head;
  // Mean over the texts: known of all of them or of none.
  for (const auto& texts : {std::vector<InspectedText>{{"b", some_tokens(1024)}},
                            {{"a", some_tokens(512)}, {"b", some_tokens(1024)}}}) {
    const auto result = inspect(decoder, texts, options, no_text);
    for (size_t h = 0; h < 8; ++h) {
      const auto& head = result.at("heads")[h];
      for (const char* key : {"pruned_tiles", "pruned_flops"}) {
        if (h < 4) {
          EXPECT_NEAR(head.at(key), local.at("heads")[h].at(key), 1e-9) << head;
        } else {
          EXPECT_TRUE(head.at(key).is_null()) << head;
        }
      }
    }
    EXPECT_TRUE(result.at("overview").at("layers")[0].contains("start"));
    EXPECT_EQ(result.at("overview").at("layers")[1].contains("start"), texts.size() == 2);
    // Over the heads of which it is known.
    EXPECT_GT(result.at("sweep").at("points")[2].at("pruned_flops").get<double>(), 0.2);
  }
  config.memory.layers = {0, 1};
  models::Decoder both(config, 3);
  const auto unknown = inspect(both, {{"b", some_tokens(1024)}}, {.sweep_tokens = 1000}, no_text);
  EXPECT_TRUE(unknown.at("sweep").at("points")[2].at("pruned_flops").is_null());
  for (const auto& map : unknown.at("maps")) EXPECT_FALSE(map.contains("start"));
}

// Maps of NaN mean nothing: the first layer whose attention reads some is named.
TEST(Inspect, WeightsThatAreNotFiniteAreAnErrorThatNamesTheLayer) {
  const std::vector<InspectedText> texts{{"a", some_tokens(200)}};
  const auto error_with_nan_in = [&](std::string_view part) {
    models::Decoder decoder(small_model(), 3);
    decoder.parameters([&](const std::string& name, models::Parameter& parameter) {
      if (name.find(part) != std::string::npos) parameter.value.detach().fill_(std::nan(""));
    });
    return test::error_of([&] { inspect(decoder, texts, {}, no_text); });
  };
  EXPECT_SAYS(error_with_nan_in("embed"), "inspect: queries, keys or gates of layer 1 are not");
  EXPECT_SAYS(error_with_nan_in("layers.0.mlp"), "of layer 2 are not finite");
  EXPECT_SAYS(error_with_nan_in("layers.1.mlp"), "inspect: what layer 2 gives is not finite");
  EXPECT_SAYS(error_with_nan_in("head"), "inspect: the loss is not finite");
}

TEST(Inspect, AModelWithoutGatesHasAttentionOnly) {
  models::DecoderConfig config = small_model();
  config.attention.forget_gate = models::ForgetGate::kNone;
  config.attention.log_pruning_tolerance = 0;
  models::Decoder decoder(config, 3);
  const auto result = inspect(decoder, {{"a", some_tokens(200)}}, {}, no_text);
  EXPECT_FALSE(result.contains("sweep"));
  EXPECT_FALSE(result.at("heads")[0].contains("gate_memory"));
  EXPECT_FALSE(result.at("maps")[0].at("whole").contains("decay"));
  EXPECT_TRUE(result.at("maps")[0].at("whole").contains("attention"));
}

}  // namespace
}  // namespace reynard::evaluation

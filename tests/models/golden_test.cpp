// Tiny checkpoints in the published layouts with what the published implementations compute from
// them: logits, loss, gradient norms and gradients.

#include "reynard/checkpoint/safetensors.h"
#include "reynard/models/pretrained.h"
#include "reynard/models/registry.h"
#include "reynard/models/score.h"
#include "reynard/ops/cross_entropy.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/files.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace reynard::models {
namespace {

struct Golden {
  std::filesystem::path folder;
  checkpoint::SafetensorsFile file;
  at::Tensor tokens, targets, offsets;  // (B*T), (B*T), (B)

  explicit Golden(const std::string& name)
      : folder(test::shared_folder() / "goldens" / name), file(folder / "golden.safetensors") {
    const at::Tensor ids = file.read("input_ids");
    tokens = ids.to(at::kLong).flatten();
    targets = file.read("labels").to(at::kLong).flatten();
    offsets = at::arange(ids.size(0), at::kLong) * ids.size(1);
  }
};

const Family& family_of(const std::filesystem::path& folder) {
  const auto json = nlohmann::json::parse(test::read_file(folder / "config.json"));
  return find_family(json["model_type"].get<std::string>(), folder.string());
}

// Sums and norms of thousands of f32 products in another order: 1e-3 of the largest element.
void expect_gradient(const at::Tensor& actual,
                     const at::Tensor& expected,
                     const std::string& name) {
  const double scale = expected.abs().max().item<double>();
  EXPECT_TENSORS_NEAR(actual, expected, 1e-3 * scale, 0) << name;
}

void check_gradients(const Golden& golden, Decoder& decoder) {
  const Family& family = family_of(golden.folder);
  int64_t num_checked = 0;
  decoder.parameters([&](const std::string& name, Parameter& parameter) {
    if (parameter.frozen) return;
    int64_t row = 0;
    for (const Piece& piece : family.pieces(name, parameter.value.size(0))) {
      ASSERT_TRUE(parameter.value.grad().defined()) << name;
      const at::Tensor grad = parameter.value.grad().cpu().narrow(0, row, piece.rows);
      row += piece.rows;
      const double norm = golden.file.read("grad_norm." + piece.name).item<double>();
      EXPECT_NEAR(grad.to(at::kDouble).norm().item<double>(), norm, 1e-3 * norm) << piece.name;
      if (golden.file.find("grad." + piece.name) != nullptr) {
        expect_gradient(grad, golden.file.read("grad." + piece.name), piece.name);
        ++num_checked;
      }
    }
  });
  EXPECT_GT(num_checked, 5);
}

class GoldenTest : public testing::TestWithParam<std::string> {};

TEST_P(GoldenTest, LogitsLossAndGradients) {
  REYNARD_NEED_SHARED();
  const Golden golden(GetParam());
  Decoder decoder = load_model(golden.folder, test::test_device());
  const int64_t N = golden.tokens.size(0);
  const at::Tensor hidden = decoder.hidden(golden.tokens, golden.offsets);
  EXPECT_TENSORS_NEAR(logits(decoder, hidden), golden.file.read("logits").flatten(0, 1), 1e-4, 0);

  const at::Tensor loss =
      ops::cross_entropy(hidden, decoder.head().value, {}, golden.targets) / static_cast<double>(N);
  EXPECT_NEAR(loss.item<double>(), golden.file.read("loss").item<double>(), 1e-5);
  loss.backward();
  check_gradients(golden, decoder);
}

TEST_P(GoldenTest, RecomputedActivationsGiveTheSameGradients) {
  REYNARD_NEED_SHARED();
  const Golden golden(GetParam());
  Decoder decoder = load_model(golden.folder, test::test_device());
  const at::Tensor hidden =
      decoder.hidden(golden.tokens, golden.offsets, {}, {.checkpoint_activations = true});
  const at::Tensor loss = ops::cross_entropy(hidden, decoder.head().value, {}, golden.targets) /
                          static_cast<double>(golden.tokens.size(0));
  loss.backward();
  check_gradients(golden, decoder);
}

TEST_P(GoldenTest, SavedModelIsThePublishedOne) {
  REYNARD_NEED_SHARED();
  const Golden golden(GetParam());
  Decoder decoder = load_model(golden.folder, test::test_device());
  const test::TempDir parent;
  save_model(decoder, parent / "copy", family_of(golden.folder).model_type);
  const checkpoint::TensorFolder original(golden.folder), copy(parent / "copy");
  EXPECT_EQ(original.names(), copy.names());
  for (const std::string& name : original.names()) {
    EXPECT_BITWISE_EQUAL(copy.read(name), original.read(name)) << name;
  }
  Decoder again = load_model(parent / "copy", test::test_device());
  EXPECT_BITWISE_EQUAL(again.hidden(golden.tokens, golden.offsets),
                       decoder.hidden(golden.tokens, golden.offsets));
  // What the published config says of the model, the written one says too.
  const auto before = nlohmann::json::parse(test::read_file(golden.folder / "config.json"));
  const auto after = nlohmann::json::parse(test::read_file(parent / "copy" / "config.json"));
  for (const char* key : {"architectures",
                          "model_type",
                          "hidden_size",
                          "num_heads",
                          "num_kv_heads",
                          "num_attention_heads",
                          "num_key_value_heads",
                          "fgate_type",
                          "qk_norm",
                          "use_rope",
                          "rope_base",
                          "decay_time_min",
                          "decay_time_max",
                          "use_k_shift",
                          "use_v_shift",
                          "use_output_gate",
                          "use_output_norm",
                          "norm_eps",
                          "hidden_ratio",
                          "vocab_size",
                          "tie_word_embeddings",
                          "window_size"}) {
    if (!before.contains(key)) continue;
    EXPECT_EQ(before[key], after.value(key, nlohmann::json())) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(Published,
                         GoldenTest,
                         testing::Values("fox_llama",
                                         "fox_pro",
                                         "fox_pro_rope",
                                         "fox_llama_data_independent",
                                         "fox_llama_fixed",
                                         "transformer_pro",
                                         "transformer_llama",
                                         "fla_fox",
                                         "llama_gqa"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace reynard::models

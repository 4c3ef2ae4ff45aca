// Every switch of the decoder against a plain PyTorch model of the same layout
// (reference_model.py), those that no published checkpoint has included.

#include "reynard/checkpoint/safetensors.h"
#include "reynard/models/pretrained.h"
#include "reynard/models/score.h"
#include "reynard/ops/cross_entropy.h"
#include "tests/support/compare.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/files.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace reynard::models {
namespace {

struct Inputs {
  at::Tensor tokens, targets, offsets;
};

Inputs random_inputs(int64_t vocab_size) {
  const std::vector<int64_t> offsets = {0, 1, 20};  // a sequence of one token, 19 and 33
  return {.tokens = at::randint(vocab_size, {53}, at::kLong),
          .targets = at::randint(vocab_size, {53}, at::kLong),
          .offsets = at::tensor(offsets, at::kLong)};
}

void compare(const std::string& name,
             Decoder& decoder,
             const Inputs& inputs,
             const checkpoint::SafetensorsFile& expected) {
  const at::Tensor hidden = decoder.hidden(inputs.tokens, inputs.offsets);
  EXPECT_TENSORS_NEAR(logits(decoder, hidden), expected.read("logits").to(at::kFloat), 2e-5, 1e-5)
      << name;
  const at::Tensor loss =
      ops::cross_entropy(hidden, decoder.head().value, {}, inputs.targets) / 53.0;
  EXPECT_NEAR(loss.item<double>(), expected.read("loss").item<double>(), 1e-5) << name;
  loss.backward();
  decoder.parameters([&](const std::string& parameter_name, Parameter& parameter) {
    if (parameter.frozen) return;
    const at::Tensor grad = expected.read("grad." + parameter_name).to(at::kFloat);
    const double scale = grad.abs().max().item<double>();
    EXPECT_GT(scale, 0) << name << ": " << parameter_name;
    EXPECT_TENSORS_NEAR(parameter.value.grad(), grad, 1e-4 * scale, 0)
        << name << ": " << parameter_name;
  });
}

TEST(ReferenceModel, EverySwitchAgrees) {
  if (!std::filesystem::exists(REYNARD_TEST_PYTHON)) {
    GTEST_SKIP() << REYNARD_TEST_PYTHON " is not there";
  }
  const test::TempDir parent;
  std::string command =
      std::string(REYNARD_TEST_PYTHON) + " " REYNARD_SOURCE_DIR "/tests/models/reference_model.py";
  std::vector<Decoder> decoders;
  std::vector<Inputs> inputs;
  for (const test::Variant& variant : test::attention_variants()) {
    Decoder decoder(variant.config, /*seed=*/7);
    test::spread_weights(decoder, 11);
    const auto folder = parent / variant.name;
    save_model(decoder, folder);
    inputs.push_back(random_inputs(variant.config.vocab_size));
    checkpoint::write_safetensors(
        folder / "input.safetensors",
        std::vector<checkpoint::NamedTensor>{{"tokens", inputs.back().tokens},
                                             {"targets", inputs.back().targets},
                                             {"offsets", inputs.back().offsets}});
    command += " " + folder.string();
    decoders.push_back(std::move(decoder));
  }
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  for (std::size_t i = 0; i < decoders.size(); ++i) {
    const test::Variant& variant = test::attention_variants()[i];
    compare(variant.name,
            decoders[i],
            inputs[i],
            checkpoint::SafetensorsFile(parent / variant.name / "output.safetensors"));
  }
}

}  // namespace
}  // namespace reynard::models

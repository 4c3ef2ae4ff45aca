// Models that are only read: the same numbers as models that can be trained, without copies.

#include "reynard/checkpoint/directory.h"
#include "reynard/models/pretrained.h"
#include "reynard/models/score.h"
#include "reynard/tensor/error.h"
#include "tests/support/compare.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/files.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace reynard::models {
namespace {

at::Tensor logits_of(Decoder& decoder) {
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::arange(40, at::kLong);
  return logits(decoder, decoder.hidden(tokens, at::zeros({1}, at::kLong)));
}

void save_as(const DecoderConfig& config, const std::string& folder, at::ScalarType dtype) {
  Decoder decoder(config, /*seed=*/3);
  test::spread_weights(decoder, 4);
  checkpoint::FolderWriter writer(folder);
  write_model(decoder, writer, {}, dtype);
  writer.commit();
}

std::vector<test::Variant> variants() {
  std::vector<test::Variant> some = test::llama_variants();
  some.push_back(test::attention_variants()[1]);      // FoX (Pro): gates, shifts, norms
  some.push_back(test::attention_variants().back());  // tied
  return some;
}

TEST(OpenModel, SameNumbersAsALoadedModel) {
  const test::TempDir parent;
  for (const test::Variant& variant : variants()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const std::string folder = parent / (variant.name + std::to_string(static_cast<int>(dtype)));
      save_as(variant.config, folder, dtype);
      Decoder loaded = load_model(folder);
      Decoder opened = open_model(folder, WeightFormat::kF32);
      EXPECT_BITWISE_EQUAL(logits_of(opened), logits_of(loaded)) << variant.name;
      loaded.set_compute_dtype(at::kBFloat16);
      Decoder small = open_model(folder, WeightFormat::kBF16);
      EXPECT_EQ(small.compute_dtype(), at::kBFloat16);
      const at::Tensor expected = logits_of(loaded);
      if (dtype == at::kBFloat16 || !variant.config.tie_embeddings) {
        EXPECT_BITWISE_EQUAL(logits_of(small), expected) << variant.name;
      } else {  // its embedding is rounded with the head that it is
        EXPECT_TENSORS_NEAR(logits_of(small), expected, 0.1, 0.05) << variant.name;
      }
    }
  }
}

// Of a file in the process, in KB: the sum of its mappings' pages.
int64_t resident_kilobytes(const std::string& file) {
  std::ifstream maps("/proc/self/smaps");
  int64_t kilobytes = 0;
  bool is_of_file = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("-") < line.find(":")) is_of_file = line.find(file) != std::string::npos;
    if (is_of_file && line.starts_with("Rss:")) kilobytes += std::stol(line.substr(4));
  }
  return kilobytes;
}

// What has been quantised does not stay in memory as the file has it.
TEST(OpenModel, Int8LetsTheFilesPagesGo) {
  const test::TempDir parent;
  DecoderConfig config = test::llama_variants()[0].config;
  config.vocab_size = 256;
  config.hidden_size = 512;
  config.num_layers = 3;
  const std::string folder = parent / "model";
  save_as(config, folder, at::kFloat);
  const std::string file = folder + "/model.safetensors";
  const auto file_kilobytes = static_cast<int64_t>(std::filesystem::file_size(file)) / 1024;
  {
    Decoder wide = open_model(folder, WeightFormat::kF32);
    logits_of(wide);
    EXPECT_GT(resident_kilobytes(file), file_kilobytes / 2) << "the measure itself";
  }
  const Decoder small = open_model(folder, WeightFormat::kInt8);
  EXPECT_LT(resident_kilobytes(file), file_kilobytes / 8);
}

TEST(OpenModel, Int8IsNear) {
  const test::TempDir parent;
  for (const test::Variant& variant : variants()) {
    const std::string folder = parent / variant.name;
    save_as(variant.config, folder, at::kFloat);
    Decoder opened = open_model(folder, WeightFormat::kInt8);
    int64_t num_int8 = 0;
    opened.parameters([&](const std::string&, Parameter& parameter) {
      if (parameter.value.scalar_type() != at::kChar) return;
      ++num_int8;
      EXPECT_EQ(parameter.scales.size(0), parameter.value.size(0));
    });
    EXPECT_GE(num_int8, 6 * variant.config.num_layers) << variant.name;
    Decoder loaded = load_model(folder);
    const at::Tensor expected = logits_of(loaded);
    // 8 bits a weight and bf16 activations: a few percent of the logits' size.
    EXPECT_LT((logits_of(opened) - expected).norm().item<double>(),
              0.1 * expected.norm().item<double>())
        << variant.name;
    const at::Tensor tokens = at::arange(40, at::kLong);
    const TokenScores scores = score(opened, tokens, at::zeros({1}, at::kLong), tokens);
    EXPECT_TENSORS_NEAR(
        scores.logprob,
        at::log_softmax(logits_of(opened), 1).gather(1, tokens.unsqueeze(1)).squeeze(1),
        1e-4,
        1e-4);
  }
}

// Pages that the process has of the file: it was mapped, not copied.
int64_t resident_bytes_of(const std::string& file) {
  std::ifstream maps("/proc/self/smaps");
  int64_t bytes = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ')) inside = line.ends_with(file);
    if (inside && line.starts_with("Size:")) bytes += 1024 * std::stoll(line.substr(5));
  }
  return bytes;
}

TEST(OpenModel, WeightsStayInTheFile) {
  const test::TempDir parent;
  const std::string folder = parent / "model";
  save_as(test::llama_variants()[0].config, folder, at::kBFloat16);
  const std::string file = folder + "/model.safetensors";
  {
    Decoder opened = open_model(folder, WeightFormat::kBF16);
    EXPECT_GE(resident_bytes_of(file), static_cast<int64_t>(std::filesystem::file_size(file)));
    opened.parameters([&](const std::string& name, Parameter& parameter) {
      if (parameter.product) {
        EXPECT_TRUE(parameter.compute.is_same(parameter.value)) << name;
      }
    });
  }
  EXPECT_EQ(resident_bytes_of(file), 0);
}

}  // namespace
}  // namespace reynard::models

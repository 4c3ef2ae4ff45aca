// Model folders that lie: whatever config.json and model.safetensors say, load_model gives a model
// or one reynard::Error, in bounded time and memory.

#include "reynard/checkpoint/safetensors.h"
#include "reynard/models/cost.h"
#include "reynard/models/pretrained.h"
#include "reynard/tensor/error.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/mutate.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace {

using namespace reynard;

models::DecoderConfig tiny_config() {
  models::DecoderConfig config;
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.num_layers = 1;
  config.intermediate_size = 16;
  config.attention.num_heads = 2;
  config.attention.qk_norm = models::QKNorm::kPerHead;
  config.attention.key_shift = true;
  config.attention.value_shift = true;
  config.attention.output_gate = models::OutputGate::kSigmoid;
  config.attention.output_norm = true;
  return config;
}

models::DecoderConfig tiny_llama() {
  models::DecoderConfig config = tiny_config();
  config.attention = {};
  config.attention.num_heads = 2;
  config.attention.num_kv_heads = 1;
  config.attention.forget_gate = models::ForgetGate::kNone;
  config.attention.rope = true;
  return config;
}

class HostileModel : public testing::TestWithParam<std::string> {
 protected:
  HostileModel() {
    models::Decoder decoder(GetParam() == "llama" ? tiny_llama() : tiny_config());
    models::save_model(decoder, folder_ / "good", GetParam());
    config_ = test::read_file(folder_ / "good/config.json");
    tensors_ = test::read_file(folder_ / "good/model.safetensors");
    std::filesystem::create_directory(folder_ / "bad");
  }
  // Loads the folder with these files; true when it could be loaded.
  bool loads(const std::string& config, const std::string& tensors) {
    test::write_file(folder_ / "bad/config.json", config);
    test::write_file(folder_ / "bad/model.safetensors", tensors);
    try {
      models::load_model(folder_ / "bad");
      return true;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()), "");
      return false;
    }
  }
  test::TempDir folder_;
  std::string config_;
  std::string tensors_;
};

TEST_P(HostileModel, TheUnchangedFolderLoads) {
  EXPECT_TRUE(loads(config_, tensors_));
}

TEST_P(HostileModel, MutatedConfigsNeverCrash) {
  const std::vector<std::string> words = {"\"llama\"",
                                          "\"forgetting_transformer\"",
                                          "num_heads",
                                          "hidden_size",
                                          "\"fgate_type\": \"fixed\"",
                                          ": null",
                                          "[",
                                          "{\"a\":"};
  test::repeat_for(8, 4000, [&](uint64_t i) {
    SCOPED_TRACE(i);
    loads(test::Mutator(i).mutate(config_, words), tensors_);
  });
}

// Values are copied and printed by recursion.
TEST_P(HostileModel, DeepValuesNeverCrash) {
  const std::string deep = std::string(1 << 20, '[') + std::string(1 << 20, ']');
  for (const std::string key : {"model_type", "vocab_size", "rope_scaling", "unknown"}) {
    EXPECT_FALSE(loads("{\"" + key + "\": " + deep + "}", tensors_)) << key;
  }
}

TEST_P(HostileModel, MutatedTensorsNeverCrash) {
  uint64_t header = 0;
  std::memcpy(&header, tensors_.data(), sizeof header);
  const std::vector<std::string> words = {
      "\"F32\"", "\"I64\"", "\"data_offsets\"", "[0,0]", "[", "{"};
  test::repeat_for(8, 4000, [&](uint64_t i) {
    SCOPED_TRACE(i);
    loads(config_, test::Mutator(i).mutate(tensors_, words, 8 + header));
  });
}

TEST_P(HostileModel, MutatedConfigsCanBeCounted) {
  test::repeat_for(4, 2000, [&](uint64_t i) {
    SCOPED_TRACE(i);
    test::write_file(folder_ / "bad/config.json", test::Mutator(i).mutate(config_));
    try {
      const models::DecoderConfig config = models::load_config(folder_ / "bad");
      EXPECT_GE(models::model_cost(config, 1 << 20).parameters, 0);
    } catch (const Error&) {
    }
  });
}

// A terminal obeys control characters.
TEST_P(HostileModel, ErrorsHoldNoControlCharacters) {
  const std::filesystem::path bad = folder_ / "bad";
  const std::string name = "a\x1b[31m\n";
  const nlohmann::json quoted = name;
  const auto expect_printable = [&] {
    const std::string error = test::error_of([&] { models::load_model(bad); });
    EXPECT_NE(error, "no error");
    EXPECT_TRUE(std::ranges::none_of(error, [](unsigned char c) { return c < 0x20; }))
        << nlohmann::json(error);
    return error;
  };
  nlohmann::json config = nlohmann::json::parse(config_);
  config["model_type"] = name;
  test::write_file(bad / "config.json", config.dump());
  EXPECT_SAYS(expect_printable(), "model_type " + quoted.dump() + " is not supported");

  test::write_file(bad / "config.json", config_);
  const checkpoint::TensorFolder good(folder_ / "good");
  std::vector<checkpoint::NamedTensor> tensors;
  for (const std::string& own : good.names()) tensors.push_back({own, good.read(own)});
  tensors.push_back({name, at::ones({1})});
  checkpoint::write_safetensors(bad / "model.safetensors", tensors);
  EXPECT_SAYS(expect_printable(), "tensor " + quoted.dump() + " has no place in the model");

  test::write_file(bad / "checksums.json",
                   nlohmann::json{{"files", {{name, {{"bytes", 1}, {"sha256", ""}}}}}}.dump());
  EXPECT_SAYS(expect_printable(), "checksums.json: entry " + quoted.dump() + " is malformed");
  std::filesystem::remove(bad / "checksums.json");

  std::filesystem::remove(bad / "model.safetensors");
  test::write_file(bad / "model.safetensors.index.json",
                   nlohmann::json{{"weight_map", {{"w", name}}}}.dump());
  EXPECT_SAYS(expect_printable(), "weight_map \"w\": expected the name of a file beside it");
}

INSTANTIATE_TEST_SUITE_P(Families,
                         HostileModel,
                         testing::Values("forgetting_transformer-project_fox", "llama"),
                         [](const auto& info) { return info.param == "llama" ? "Llama" : "Fox"; });

}  // namespace

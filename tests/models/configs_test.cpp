// Every model of configs/ is possible, and memories that are not are refused; the paper's presets
// have the paper's sizes.

#include "reynard/config/config.h"
#include "reynard/models/cost.h"
#include "reynard/models/decoder.h"
#include "reynard/models/pretrained.h"
#include "reynard/tensor/error.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <variant>

namespace reynard::models {
namespace {

namespace fs = std::filesystem;

DecoderConfig read_model(const fs::path& file) {
  const config::Table table = config::parse_toml(config::read_config_file(file), file.string());
  const config::Node* model = table.find("model");
  if (model == nullptr) throw Error(file.string() + " has no [model]");
  return config::from_table<DecoderConfig>(std::get<config::Table>(model->value), file.string());
}

fs::path configs() {
  return fs::path(REYNARD_SOURCE_DIR) / "configs";
}

TEST(Configs, EveryModelCanBeBuiltAndSaved) {
  int num_files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(configs())) {
    if (entry.path().extension() != ".toml") continue;
    ++num_files;
    EXPECT_GT(model_cost(read_model(entry.path()), 1024).parameters, 0) << entry.path();
    EXPECT_NO_THROW(check_can_be_saved(read_model(entry.path()))) << entry.path();
  }
  EXPECT_GE(num_files, 12 + 15 + 4);
}

TEST(Configs, PresetsHaveTheSizesOfThePaper) {
  const std::map<std::string, int64_t> counts = {
      {"125m/fox-llama", 123'661'968},
      {"360m/fox-llama", 360'188'288},
      {"760m/fox-llama", 757'632'576},
      {"125m/fox-pro", 123'910'800},
      {"360m/fox-pro", 367'339'904},
      {"760m/fox-pro", 759'512'640},
      {"125m/transformer-llama", 123'551'232},
      {"360m/transformer-llama", 359'794'688},
      {"760m/transformer-llama", 756'747'264},
      // Per-head QK-norm weights: H - 1 times D more than the shared form's count, for q and k.
      {"125m/transformer-pro", 123'783'168 + 12 * 2 * 11 * 64},
      {"360m/transformer-pro", 366'900'224 + 24 * 2 * 15 * 64},
      {"760m/transformer-pro", 757'675'008 + 24 * 2 * 11 * 128},
  };
  for (const auto& [name, count] : counts) {
    const ModelCost cost = model_cost(read_model(configs() / (name + ".toml")), 16384);
    EXPECT_EQ(cost.non_embedding_parameters, count) << name;
  }
}

// Table 3 has one model twice: row 7 is FoX (Pro) without KV-shift, which is row 12.
TEST(Configs, AblationRowsAreDifferentModels) {
  std::map<std::string, std::string> seen;
  for (const auto& entry : fs::directory_iterator(configs() / "ablation")) {
    seen.emplace(config::to_json(read_model(entry.path())), entry.path().stem());
  }
  EXPECT_EQ(seen.size(), 15 - 1 + 4);
  EXPECT_EQ(config::to_json(read_model(configs() / "ablation/07-fox-llama-output-norm.toml")),
            config::to_json(read_model(configs() / "ablation/12-fox-pro-without-kv-shift.toml")));
}

TEST(Configs, ImpossibleMemoriesAreRefused) {
  const auto refused = [](auto change) {
    DecoderConfig config = test::small_config();
    config.num_layers = 3;
    config.mixer = "memory_attention";
    config.attention.forget_gate = ForgetGate::kNone;
    config.memory.window = 16;
    config.memory.last_context = 8;
    config.memory.layers = {0, 2};
    EXPECT_NO_THROW(Decoder decoder(config));
    change(config);
    EXPECT_THROW(Decoder decoder(config), Error);
  };
  refused([](DecoderConfig& c) { c.memory.layers = {3}; });
  refused([](DecoderConfig& c) { c.memory.layers = {2, 2}; });
  refused([](DecoderConfig& c) { c.memory.last_context = 17; });
  refused([](DecoderConfig& c) { c.attention.window = 4; });
  refused([](DecoderConfig& c) { c.memory.decay = MemoryDecay::kDistance; });
  refused([](DecoderConfig& c) { c.memory.temperature_max = 2; });  // without temperatures
  refused([](DecoderConfig& c) {
    c.mixer = "attention";
    c.memory.layers = {};
    c.attention.qk_norm = QKNorm::kTemperature;
    c.memory.temperature_max = 2;
  });
  refused([](DecoderConfig& c) { c.memory.log_scale_keys = 1; });
  refused([](DecoderConfig& c) {
    c.memory.log_scale_keys = 16;
    c.attention.forget_gate = ForgetGate::kFull;
  });
  refused([](DecoderConfig& c) { c.mixer = "attention"; });
}

}  // namespace
}  // namespace reynard::models

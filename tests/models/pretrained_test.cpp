// Model folders: what is read, and the error for everything that does not fit.

#include "reynard/models/pretrained.h"

#include "reynard/checkpoint/directory.h"
#include "reynard/checkpoint/safetensors.h"
#include "reynard/models/families/family.h"
#include "reynard/models/registry.h"
#include "reynard/tensor/check.h"
#include "tests/support/compare.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::models {
namespace {

using nlohmann::json;
using Tensors = std::vector<checkpoint::NamedTensor>;

// A small FoX (Pro) folder without checksums, to be changed and loaded.
class ModelFolder : public testing::Test {
 protected:
  void SetUp() override {
    Decoder decoder(test::attention_variants()[1].config, /*seed=*/2);
    save_model(decoder, folder());
    std::filesystem::remove(folder() / checkpoint::kChecksums);
    config_ = json::parse(test::read_file(folder() / "config.json"));
    const checkpoint::TensorFolder file(folder());
    for (const std::string& name : file.names()) tensors_.push_back({name, file.read(name)});
  }

  std::filesystem::path folder() const { return parent_ / "model"; }

  // The error of loading after the changes; empty when it loads.
  std::string problem(const json& config, const Tensors& tensors) {
    test::write_file(folder() / "config.json", config.dump());
    checkpoint::write_safetensors(folder() / "model.safetensors", tensors);
    try {
      load_model(folder());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::string problem_with(const std::string& key, const json& value) {
    json config = config_;
    config[key] = value;
    return problem(config, tensors_);
  }
  Tensors without(const std::string& name) const {
    Tensors rest = tensors_;
    std::erase_if(rest, [&](const auto& named) { return named.name == name; });
    return rest;
  }

  test::TempDir parent_;
  json config_;
  Tensors tensors_;
};

void expect_says(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos)
      << "\"" << message << "\" lacks \"" << part << "\"";
}

TEST_F(ModelFolder, ConfigErrorsNameKeyAndValue) {
  EXPECT_EQ(problem(config_, tensors_), "");
  expect_says(problem_with("model_type", "gpt2"), "model_type \"gpt2\" is not supported");
  expect_says(problem_with("model_type", 3), "has no string \"model_type\"");
  expect_says(problem_with("hidden_size", "32"), "hidden_size = \"32\"; expected an integer");
  expect_says(problem_with("hidden_size", 1e3), "expected an integer");
  for (const json& large : {json(uint64_t{1} << 63), json(1e25)}) {
    expect_says(problem_with("hidden_size", large),
                "hidden_size = " + large.dump() + "; expected an integer between -2^63 and 2^63");
  }
  expect_says(problem_with("hidden_size", int64_t{1} << 40), "hidden_size");
  expect_says(problem_with("hidden_size", -32), "hidden_size");
  expect_says(problem_with("num_heads", 0), "num_heads");
  expect_says(problem_with("num_heads", 5), "must divide hidden_size = 32");
  expect_says(problem_with("num_kv_heads", 3), "must divide num_heads = 4");
  expect_says(problem_with("num_hidden_layers", 1000000),
              "config.json: num_hidden_layers = 1000000; ");
  expect_says(problem_with("num_hidden_layers", 3),
              "has no tensor \"model.layers.2.attn_norm.weight\"");
  expect_says(problem_with("num_hidden_layers", nullptr), "num_hidden_layers = null");
  expect_says(problem_with("fgate_type", "half"), "expected full, bias_only, fixed or none");
  expect_says(problem_with("ogate_act", "relu"), "ogate_act = \"relu\"");
  expect_says(problem_with("ogate_act", "silu"), "when use_output_norm is on");
  expect_says(problem_with("hidden_act", "gelu"), "hidden_act");
  expect_says(problem_with("use_rope", 1), "expected true or false");
  expect_says(problem_with("norm_eps", "small"), "expected a number");
  EXPECT_EQ(problem_with("norm_eps", 0),
            (folder() / "config.json").string() + ": norm_eps = 0; must be > 0");
  expect_says(problem_with("log_pruning_tolerance", 2.5), "expected null or <= 0");
  expect_says(problem_with("attention_bias", true), "attention_bias = true; expected false");
  expect_says(problem_with("bos_token_id", 48), "bos_token_id");
  expect_says(problem_with("reynard", {{"pruning_rule", "none"}}),
              "config.json: reynard.pruning_rule = \"none\"; expected ");
  expect_says(problem_with("reynard", 1), "reynard = 1; expected an object");
  test::write_file(folder() / "config.json", "{\"a\":");
  EXPECT_THROW(load_model(folder()), Error);
  std::filesystem::remove(folder() / "config.json");
  EXPECT_THROW(load_model(folder()), Error);
  EXPECT_THROW(load_config(folder()), Error);
}

TEST_F(ModelFolder, AConfigThatMayNotBeReadIsNotTakenForABadOne) {
  using std::filesystem::perms;
  std::filesystem::permissions(parent_.path(), perms::all);
  std::filesystem::permissions(folder() / "config.json", perms::none);
  const uid_t user = ::geteuid();
  if (user == 0 && ::seteuid(65534) != 0) GTEST_SKIP() << "no permissions stop this user";
  const std::string error = test::error_of([&] { load_config(folder()); });
  ASSERT_EQ(::seteuid(user), 0);
  expect_says(error, "config.json: cannot be read: Permission denied");
  expect_says(test::error_of([&] { load_config(folder() / "model.safetensors"); }),
              "model.safetensors: is a file; expected the folder of a model or of a run");
}

TEST_F(ModelFolder, IsFoundInARunWhereverItsNewestWeightsAre) {
  const std::filesystem::path run = parent_ / "run";
  expect_says(test::error_of([&] { load_config(run); }),
              "run: does not exist; expected the folder");
  std::filesystem::create_directories(run);
  expect_says(test::error_of([&] { load_config(run); }),
              "run: holds no model: neither config.json");
  const auto add = [&](const std::string& name) {
    std::filesystem::create_directories(run / name);
    test::write_file(run / name / "config.json", "{}");
  };
  // A folder under a temporary name, and copies that somebody made.
  for (const char* name :
       {".tmp-step-000000000009-7.0", "step-000000000002.bak", "step-2", "the-best"}) {
    add(std::string("checkpoints/") + name);
    EXPECT_THROW(model_folder(run), Error) << name;
  }
  for (const char* name :
       {"checkpoints/step-000000000003", "checkpoints/step-000000000012", "model", ""}) {
    add(name);
    EXPECT_TRUE(std::filesystem::equivalent(model_folder(run), run / name)) << name;
  }
}

TEST_F(ModelFolder, TensorErrorsNameTheTensor) {
  const std::string name = "model.layers.1.attn.k_proj.shift_proj.weight";
  expect_says(problem(config_, without(name)), "has no tensor \"" + name + "\"");
  Tensors changed = tensors_;
  changed.push_back({"model.layers.1.attn.extra", at::ones({1})});
  expect_says(problem(config_, changed), "\"model.layers.1.attn.extra\" has no place");
  changed = without(name);
  changed.push_back({name, at::ones({32, 4})});
  expect_says(problem(config_, changed), "has shape [32, 4]; config.json needs [4, 32]");
  changed = without(name);
  changed.push_back({name, at::ones({4, 32}, at::kLong)});
  expect_says(problem(config_, changed), "has dtype Long");
  std::filesystem::remove(folder() / "model.safetensors");
  EXPECT_THROW(load_model(folder()), Error);
}

// Some writers store the head beside the embedding that it is tied to; another head is another
// model.
TEST_F(ModelFolder, ATiedHeadIsTheEmbedding) {
  json config = config_;
  config["tie_word_embeddings"] = true;
  EXPECT_EQ(problem(config, tensors_),
            (folder() / "model.safetensors").string() +
                ": tensor \"lm_head.weight\" is not \"model.embeddings.weight\", though "
                "tie_word_embeddings in config.json says that it is the same");
  Tensors same = tensors_;
  const auto named = [&](const std::string& name) {
    return std::ranges::find(same, name, &checkpoint::NamedTensor::name);
  };
  named("lm_head.weight")->tensor = named("model.embeddings.weight")->tensor;
  EXPECT_EQ(problem(config, same), "");
  for (const char* name : {"lm_head.weight", "model.embeddings.weight"}) {
    Tensors rounded = same;
    const auto half = std::ranges::find(rounded, name, &checkpoint::NamedTensor::name);
    half->tensor = half->tensor.to(at::kBFloat16);
    EXPECT_EQ(problem(config, rounded), "") << name;
    half->tensor = half->tensor.to(at::kLong);
    EXPECT_NE(problem(config, rounded), "") << name;
  }
}

TEST_F(ModelFolder, ChecksumsAreVerified) {
  Decoder decoder(test::small_config());
  save_model(decoder, folder());
  load_model(folder());
  std::string bytes = test::read_file(folder() / "model.safetensors");
  bytes.back() ^= 1;
  test::write_file(folder() / "model.safetensors", bytes);
  EXPECT_THROW(load_model(folder()), Error);
}

TEST_F(ModelFolder, QKNormWeightsMayBeSharedWhateverTheConfigSays) {
  Tensors shared = tensors_;
  for (auto& named : shared) {
    if (named.name.find("q_norm") != std::string::npos ||
        named.name.find("k_norm") != std::string::npos) {
      named.tensor = at::arange(1, 9).to(at::kFloat);  // D = 8
    }
  }
  EXPECT_EQ(problem(config_, shared), "");
  EXPECT_EQ(load_model(folder()).config().attention.qk_norm, QKNorm::kShared);
  EXPECT_EQ(load_config(folder()).attention.qk_norm, QKNorm::kShared);
  std::filesystem::rename(folder() / "model.safetensors", parent_ / "weights");
  EXPECT_EQ(load_config(folder()).attention.qk_norm, QKNorm::kPerHead);
  // As a pointer to a large file that was not fetched.
  test::write_file(folder() / "model.safetensors", "version 1\noid sha256:00\nsize 12345678\n");
  EXPECT_EQ(load_config(folder()).attention.qk_norm, QKNorm::kPerHead);
  EXPECT_THROW(load_model(folder()), Error);
  json config = config_;
  config["qk_norm_share_param_across_head"] = true;
  EXPECT_EQ(problem(config, tensors_), "");
  EXPECT_EQ(load_model(folder()).config().attention.qk_norm, QKNorm::kPerHead);
}

TEST_F(ModelFolder, OtherFloatDtypesBecomeF32) {
  Tensors halves = tensors_;
  for (auto& named : halves) named.tensor = named.tensor.to(at::kBFloat16);
  EXPECT_EQ(problem(config_, halves), "");
  load_model(folder()).parameters([&](const std::string& name, Parameter& parameter) {
    EXPECT_EQ(parameter.value.scalar_type(), at::kFloat) << name;
  });
}

// A weight that rounding makes infinite is another model.
TEST_F(ModelFolder, WeightsBeyondF32AreRefused) {
  for (const char* name :
       {"model.embeddings.weight", "model.layers.0.mlp.down_proj.weight", "model.norm.weight"}) {
    Tensors changed = tensors_;
    const auto named = std::ranges::find(changed, name, &checkpoint::NamedTensor::name);
    named->tensor = named->tensor.to(at::kDouble);
    EXPECT_EQ(problem(config_, changed), "") << name;
    named->tensor.view(-1)[3].fill_(-1e39);
    const std::string expected =
        fmt::format("{}: tensor \"{}\" has values up to 1e+39, beyond the range of ",
                    (folder() / "model.safetensors").string(),
                    name);
    expect_says(problem(config_, changed), expected);
    for (const WeightFormat format :
         {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt8}) {
      expect_says(test::error_of([&] { open_model(folder(), format); }), expected);
    }
    // What the file itself calls infinite stays so.
    named->tensor.view(-1)[3].fill_(-std::numeric_limits<double>::infinity());
    EXPECT_EQ(problem(config_, changed), "") << name;
  }
}

TEST_F(ModelFolder, RunFolderAndShards) {
  std::filesystem::create_directories(parent_ / "run");
  std::filesystem::rename(folder(), parent_ / "run" / "model");
  EXPECT_EQ(load_model(parent_ / "run").config().hidden_size, 32);
  EXPECT_EQ(load_config(parent_ / "run").hidden_size, 32);
}

TEST_F(ModelFolder, MutatedConfigsNeverCrash) {
  const std::string good = config_.dump();
  std::mt19937 random(1);
  const std::string bytes = "0123456789[]{}\",:-e.ntrufals";
  for (int round = 0; round < 300; ++round) {
    std::string text = good;
    for (int change = 0; change < 1 + round % 4; ++change) {
      text[random() % text.size()] =
          round % 2 ? static_cast<char>(random()) : bytes[random() % bytes.size()];
    }
    test::write_file(folder() / "config.json", text);
    try {
      load_model(folder());
    } catch (const Error&) {
    }
  }
}

// Every layout that can express a config gives it back; the others say why not.
TEST(Families, WrittenConfigsAreReadBack) {
  const test::TempDir parent;
  std::vector<test::Variant> variants = test::attention_variants();
  variants.insert(variants.end(), test::llama_variants().begin(), test::llama_variants().end());
  for (const test::Variant& variant : test::memory_variants()) variants.push_back(variant);
  for (const test::Variant& variant : variants) {
    Decoder decoder(variant.config, /*seed=*/4);
    int num_written = 0;
    for (const Family* family : families()) {
      const auto folder = parent / (variant.name + "-" + std::string(family->model_type));
      if (!family->obstacle(variant.config).empty()) {
        EXPECT_THROW(save_model(decoder, folder, family->model_type), Error);
        continue;
      }
      ++num_written;
      save_model(decoder, folder, family->model_type);
      Decoder loaded = load_model(folder);
      const at::NoGradGuard no_grad;
      const at::Tensor tokens = at::arange(40, at::kLong), offsets = at::zeros({1}, at::kLong);
      EXPECT_BITWISE_EQUAL(loaded.hidden(tokens, offsets), decoder.hidden(tokens, offsets))
          << folder;
    }
    EXPECT_GE(num_written, 1) << variant.name;
  }
  DecoderConfig config = test::small_config();
  config.attention.qkv_bias = true;  // FLA only, and there without shifts
  Decoder biased(config);
  save_model(biased, parent / "biased");
  EXPECT_TRUE(load_config(parent / "biased").attention.qkv_bias);
  config.attention.key_shift = true;
  Decoder impossible(config);
  EXPECT_THROW(save_model(impossible, parent / "impossible"), Error);
  EXPECT_THROW(check_can_be_saved(config), Error);
  EXPECT_FALSE(std::filesystem::exists(parent / "impossible"));
  EXPECT_THROW(find_family("gpt2", "test"), Error);
}

// Beside a memory there is a place for them, with and without shifts.
TEST(Families, BiasesOfAMemorySurvive) {
  const test::TempDir parent;
  for (const bool shifts : {false, true}) {
    DecoderConfig config = test::small_config();
    config.attention.qkv_bias = true;
    config.attention.key_shift = config.attention.value_shift = shifts;
    config.mixer = "memory_attention";
    config.memory.layers = {0};
    Decoder decoder(config, /*seed=*/1);
    test::spread_weights(decoder, 1);
    const auto folder = parent / (shifts ? "shifts" : "plain");
    save_model(decoder, folder);
    EXPECT_TRUE(load_config(folder).attention.qkv_bias);
    Decoder loaded = load_model(folder);
    const at::NoGradGuard no_grad;
    const at::Tensor tokens = at::arange(40, at::kLong), offsets = at::zeros({1}, at::kLong);
    EXPECT_BITWISE_EQUAL(loaded.hidden(tokens, offsets), decoder.hidden(tokens, offsets));
  }
}

TEST(Families, TemperaturesSurvive) {
  const test::TempDir parent;
  DecoderConfig config = test::small_config();
  config.attention.qk_norm = QKNorm::kTemperature;
  config.attention.temperature_init = 2;
  config.mixer = "memory_attention";
  config.memory.layers = {0};
  config.memory.temperature_max = 3.5;
  Decoder decoder(config);
  save_model(decoder, parent / "model", "forgetting_transformer-project_fox");
  const DecoderConfig read = load_config(parent / "model");
  EXPECT_EQ(read.attention.qk_norm, QKNorm::kTemperature);
  EXPECT_EQ(read.attention.temperature_init, 2);
  EXPECT_EQ(read.memory.temperature_max, 3.5);
}

TEST(Families, OwnSettingsSurvive) {
  const test::TempDir parent;
  DecoderConfig config = test::small_config();
  config.attention.log_pruning_tolerance = -10;
  config.attention.pruning_rule = attention::PruningRule::kPublished;
  config.attention.forget_bias_init = 3;
  config.attention.head_dim = 16;
  DecoderConfig softmax = config;
  softmax.attention.forget_gate = ForgetGate::kNone;
  softmax.attention.forget_bias_init = 0;
  softmax.attention.rope = true;
  for (const auto& [type, written] : {std::pair{"forgetting_transformer-project_fox", config},
                                      std::pair{"forgetting_transformer", config},
                                      std::pair{"transformer-project_fox", softmax},
                                      std::pair{"llama", softmax}}) {
    Decoder decoder(written);
    save_model(decoder, parent / type, type);
    const AttentionMixerConfig read = load_config(parent / type).attention;
    EXPECT_EQ(read.log_pruning_tolerance, -10);
    EXPECT_EQ(read.pruning_rule, attention::PruningRule::kPublished);
    EXPECT_EQ(read.forget_bias_init, written.attention.forget_bias_init);
    EXPECT_EQ(read.head_dim, 16);
  }
}

TEST(Families, MemorySettingsSurvive) {
  const test::TempDir parent;
  DecoderConfig config = test::small_config();
  config.attention.forget_gate = ForgetGate::kNone;
  config.attention.rope = true;
  config.mixer = "memory_attention";
  config.memory.layers = {0};
  // The layout that has keys for a memory has none for these, each of which changes the function.
  const std::vector<int64_t MemoryConfig::*> members = {
      &MemoryConfig::top_k, &MemoryConfig::capacity, &MemoryConfig::log_scale_keys};
  for (size_t i = 0; i < members.size(); ++i) {
    DecoderConfig written = config;
    written.memory.*members[i] = 300;
    EXPECT_NE(own_setting(find_family("longllama", "test"), written), "");
    for (const char* type : {"longllama", "forgetting_transformer-project_fox"}) {
      Decoder decoder(written);
      const auto folder = parent / fmt::format("{}-{}", type, i);
      save_model(decoder, folder, type);
      EXPECT_EQ(load_config(folder).memory.*members[i], 300) << folder;
    }
  }
}

}  // namespace
}  // namespace reynard::models

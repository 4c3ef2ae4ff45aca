// config.json of the published layouts: what is read and written, and the errors of values that
// cannot be.

#include "reynard/models/families/family.h"
#include "reynard/models/pretrained.h"
#include "reynard/models/registry.h"
#include "reynard/tensor/error.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace reynard::models {
namespace {

using nlohmann::json;

json llama_config() {
  return {{"model_type", "llama"},
          {"vocab_size", 48},
          {"hidden_size", 32},
          {"intermediate_size", 40},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 4}};
}

TEST(Llama, RopeBiasesAndTokenIds) {
  const auto read = [](const json& changes = json::object()) {
    json config = llama_config();
    config.update(changes);
    return read_config(find_family("llama", "test"), config, "config.json");
  };
  EXPECT_EQ(read().attention.rope_base, 10000);
  EXPECT_EQ(read().num_kv_heads(), 4);
  EXPECT_EQ(read({{"rope_theta", 500000}}).attention.rope_base, 500000);
  EXPECT_EQ(read({{"rope_parameters", {{"rope_theta", 7}, {"rope_type", "default"}}}})
                .attention.rope_base,
            7);
  EXPECT_EQ(read({{"eos_token_id", {5, 6}}}).eos_token_id, 5);
  EXPECT_EQ(read({{"head_dim", 16}}).head_dim(), 16);
  for (const json& bad : {json{{"rope_scaling", {{"rope_type", "llama3"}}}},
                          json{{"rope_parameters", {{"rope_type", "yarn"}}}},
                          json{{"attention_bias", true}},
                          json{{"mlp_bias", true}},
                          json{{"hidden_act", "gelu"}},
                          json{{"eos_token_id", json::array()}},
                          json{{"num_key_value_heads", 3}}}) {
    EXPECT_THROW(read(bad), Error) << bad;
  }
}

TEST(Llama, RopeScaling) {
  const auto read = [](const json& scaling, const char* key = "rope_scaling") {
    json config = llama_config();
    config["max_position_embeddings"] = 400;
    config[key] = scaling;
    return read_config(find_family("llama", "test"), config, "config.json").attention;
  };
  using Type = ops::RotaryScalingType;
  EXPECT_EQ(read({{"type", "default"}}).rope_scaling.type, Type::kNone);
  EXPECT_EQ(read({{"type", "linear"}, {"factor", 2}}).rope_scaling,
            (ops::RotaryScaling{.type = Type::kLinear, .factor = 2}));
  EXPECT_EQ(read({{"rope_type", "dynamic"}, {"factor", 2}, {"rope_theta", 7}}, "rope_parameters")
                .rope_scaling,
            (ops::RotaryScaling{.type = Type::kDynamic, .factor = 2, .original_length = 400}));
  const json yarn = {{"rope_type", "yarn"}, {"original_max_position_embeddings", 100}};
  EXPECT_EQ(read(yarn).rope_scaling.factor, 4);  // of the two lengths
  EXPECT_NEAR(read(yarn).rope_scaling.attention_factor, 0.1 * std::log(4) + 1, 1e-12);
  EXPECT_EQ(read(yarn).rope_scaling.beta_fast, 32);
  EXPECT_EQ(read(yarn).rope_scaling.beta_slow, 1);
  json beside = llama_config();  // the key of the file itself comes first, as in transformers
  beside.update({{"max_position_embeddings", 400}, {"original_max_position_embeddings", 50}});
  beside["rope_scaling"] = yarn;
  EXPECT_EQ(read_config(find_family("llama", "test"), beside, "config.json")
                .attention.rope_scaling.original_length,
            50);
  const json llama3 = {
      {"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
  EXPECT_EQ(read(llama3).rope_scaling.original_length, 400);
  json flat = llama3;
  flat["high_freq_factor"] = 1;
  for (const json& bad :
       {json{{"rope_type", "longrope"}, {"factor", 2}},
        json{{"rope_type", "none"}},
        json{{"rope_type", "linear"}},
        json{{"rope_type", "linear"}, {"factor", 0}},
        json{{"rope_type", "linear"}, {"factor", "2"}},
        json{{"rope_type", "default"}, {"partial_rotary_factor", 0.5}},
        json{{"rope_type", "yarn"}, {"factor", 2}, {"original_max_position_embeddings", 0}},
        json{{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", 0.5}},
        flat}) {
    EXPECT_THROW(read(bad), Error) << bad;
  }
  // Null is not the default there but false, as in transformers.
  json whole = yarn;
  EXPECT_TRUE(read(yarn).rope_scaling.truncate);
  whole["truncate"] = nullptr;
  EXPECT_FALSE(read(whole).rope_scaling.truncate);
}

// As in transformers: a scaling replaces the parameters wholly, an empty one is none.
TEST(Llama, RopeScalingComesBeforeRopeParameters) {
  const auto read = [](const json& parameters, const json& scaling) {
    json config = llama_config();
    config.update({{"rope_theta", 5e5}, {"rope_parameters", parameters}});
    config["rope_scaling"] = scaling;
    return read_config(find_family("llama", "test"), config, "config.json").attention;
  };
  using Type = ops::RotaryScalingType;
  const json plain = {{"rope_theta", 1e6}, {"rope_type", "default"}};
  const json linear = {{"rope_theta", 1e6}, {"rope_type", "linear"}, {"factor", 3}};
  const ops::RotaryScaling twice{.type = Type::kLinear, .factor = 2};
  const ops::RotaryScaling thrice{.type = Type::kLinear, .factor = 3};
  for (const json& parameters : {plain, linear}) {
    const AttentionMixerConfig replaced = read(parameters, {{"type", "linear"}, {"factor", 2}});
    EXPECT_EQ(replaced.rope_base, 5e5);
    EXPECT_EQ(replaced.rope_scaling, twice);
  }
  for (const json& none : {json::object(), json()}) {
    EXPECT_EQ(read(linear, none).rope_base, 1e6);
    EXPECT_EQ(read(linear, none).rope_scaling, thrice);
    EXPECT_EQ(read(plain, none).rope_scaling.type, Type::kNone);
  }
}

// Our fields have other names, which nobody finds in the file.
TEST(Llama, MessagesNameTheKeysOfTheFile) {
  const auto error = [](const json& changes, const char* layout = "llama") {
    json config = llama_config();
    config.update(changes);
    return test::error_of([&] { read_config(find_family(layout, "test"), config, "config.json"); });
  };
  EXPECT_EQ(error({{"num_hidden_layers", 0}}), "config.json: num_hidden_layers = 0; must be > 0");
  EXPECT_EQ(error({{"num_attention_heads", 5}}),
            "config.json: num_attention_heads = 5; must divide hidden_size = 32, or set head_dim");
  EXPECT_EQ(error({{"num_key_value_heads", 3}}),
            "config.json: num_key_value_heads = 3; must divide num_attention_heads = 4");
  EXPECT_EQ(error({{"hidden_size", 2048}}),
            "config.json: head_dim: 512 (hidden_size / num_attention_heads unless given) must be 1 "
            "to 256");
  EXPECT_EQ(error({{"head_dim", 5}}),
            "config.json: head_dim = 5; 5 (hidden_size / num_attention_heads unless given) must be "
            "even for rotary positions");
  EXPECT_EQ(error({{"rms_norm_eps", 0}, {"num_key_value_heads", 2}}, "qwen3"),
            "config.json: rms_norm_eps = 0; must be > 0");
  EXPECT_EQ(error({{"sliding_window", -1}, {"num_key_value_heads", 2}}, "mistral"),
            "config.json: sliding_window = -1; -1 must be >= 0 (0: all)");
  EXPECT_EQ(
      error({{"last_context_length", 3000}}, "longllama"),
      "config.json: last_context_length = 3000; must be at most max_position_embeddings = 2048");
  EXPECT_EQ(error({{"rope_parameters", {{"rope_type", "linear"}, {"factor", -1}}}}),
            "config.json: rope_parameters.factor = -1; -1 must be > 0 and at most 1000000");
  EXPECT_EQ(error({{"rope_scaling", {{"rope_type", "linear"}, {"factor", "2"}}}}),
            "config.json: rope_scaling.factor = \"2\"; expected a number");
  const json yarn = {{"rope_type", "yarn"}, {"original_max_position_embeddings", int64_t{1} << 50}};
  EXPECT_EQ(error({{"rope_scaling", yarn}}),
            "config.json: rope_scaling.original_max_position_embeddings = 1125899906842624; "
            "expected 1 to 1099511627776");
  EXPECT_EQ(error({{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}}}),
            "config.json: max_position_embeddings = (absent); expected the context of "
            "pre-training");
  // Ours of 0 means the published factor.
  const json none = {{"rope_type", "yarn"},
                     {"factor", 2},
                     {"original_max_position_embeddings", 100},
                     {"attention_factor", 0.0}};
  EXPECT_EQ(error({{"rope_scaling", none}}),
            "config.json: rope_scaling.attention_factor = 0.0; expected a number above 0");
}

// What the layout has no key for stands under "reynard".
TEST(Fox, MessagesNameTheKeysOfTheExtension) {
  const auto error = [](const json& changes) {
    json config = {
        {"vocab_size", 48}, {"hidden_size", 32}, {"num_hidden_layers", 1}, {"num_heads", 4}};
    config.update(changes);
    const Family& family = find_family("forgetting_transformer-project_fox", "test");
    return test::error_of([&] { read_config(family, config, "config.json"); });
  };
  EXPECT_EQ(error({{"num_heads", 5}}),
            "config.json: num_heads = 5; must divide hidden_size = 32, or set reynard.head_dim");
  EXPECT_EQ(error({{"reynard", {{"head_dim", 300}}}}),
            "config.json: reynard.head_dim = 300; 300 (hidden_size / num_heads unless given) must "
            "be 1 to 256");
  EXPECT_EQ(
      error({{"reynard", {{"memory", {{"last_context", 9}, {"window", 8}}}}}}),
      "config.json: reynard.memory.last_context = 9; must be at most reynard.memory.window = 8");
}

// Nothing there is left unread: who wrote it expects an effect.
// The initial bias of a full gate is among the weights; the layout's readers refuse decay times of
// one.
TEST(Fox, DecayTimesAreWrittenOfDataIndependentGatesOnly) {
  DecoderConfig config = test::small_config();
  config.attention.decay_time_min = 2;
  config.attention.decay_time_max = 30;
  for (const ForgetGate gate : {ForgetGate::kFull, ForgetGate::kDataIndependent}) {
    config.attention.forget_gate = gate;
    const auto written =
        write_config(find_family("forgetting_transformer-project_fox", "test"), config);
    const bool has_times = gate == ForgetGate::kDataIndependent;
    EXPECT_EQ(written["fgate_bias_init"], has_times);
    EXPECT_EQ(written["decay_time_min"], has_times ? json(2.0) : json());
    EXPECT_EQ(written["decay_time_max"], has_times ? json(30.0) : json());
  }
}

TEST(Families, WhatIsOursInConfigJsonIsReadOrRefused) {
  const auto error = [](const json& extension) {
    json config = llama_config();
    config["reynard"] = extension;
    return test::error_of(
        [&] { read_config(find_family("llama", "test"), config, "config.json"); });
  };
  EXPECT_EQ(error({{"log_pruning_tolerance", -10}, {"qk_norm", "temperature"}}), "no error");
  EXPECT_EQ(error({{"log_pruning_tolerance", 2.5}}),
            "config.json: reynard.log_pruning_tolerance = 2.5; must be <= 0");
  EXPECT_EQ(error({{"qk_norm", "per_head"}}),
            "config.json: reynard.qk_norm = \"per_head\"; expected \"temperature\" (all we "
            "support)");
  EXPECT_EQ(error({{"log_prunning_tolerance", -10}}),
            "config.json: reynard.log_prunning_tolerance is not a known key; did you mean "
            "reynard.log_pruning_tolerance?");
  EXPECT_EQ(error({{"memory", {{"windows", 8}}}}),
            "config.json: reynard.memory: windows is not a known key; did you mean window?");
  EXPECT_EQ(error({{"qkv_bias", true}}),
            "config.json: reynard.qkv_bias = true; expected reynard.memory beside it");
}

// Where the layout derives the number of positions from the config, the published one is not it.
TEST(Families, NumbersOfPositionsMayBeDerived) {
  const test::TempDir parent;
  const auto written = [&](const char* layout,
                           const DecoderConfig& config,
                           std::optional<int64_t> published = 4096) {
    const Family& family = find_family(layout, "test");
    return write_config(family, config, published).at("max_position_embeddings").get<int64_t>();
  };
  DecoderConfig config = test::small_config();
  config.attention.forget_gate = ForgetGate::kNone;
  config.attention.rope = true;
  ops::RotaryScaling& scaling = config.attention.rope_scaling;
  using Type = ops::RotaryScalingType;
  for (const auto& [type, expected] : {std::pair{Type::kNone, 4096},
                                       {Type::kLinear, 4096},
                                       {Type::kLlama3, 4096},
                                       {Type::kDynamic, 100},
                                       {Type::kYarn, 4096}}) {
    scaling = {.type = type, .factor = 4, .original_length = 100};
    EXPECT_EQ(written("llama", config), expected) << config::name_of(type);
  }
  EXPECT_EQ(written("llama", config, {}), 400) << "yarn's own";
  scaling = {};
  config.mixer = "memory_attention";
  config.memory.window = 16;
  EXPECT_EQ(written("longllama", config), 16);
  Decoder decoder(config);
  save_model(decoder, parent / "memory", "longllama");
  EXPECT_EQ(load_layout(parent / "memory").max_positions, std::nullopt);
}

// Where it says false, transformers lets every token see the whole text.
TEST(Families, AttentionIsCausal) {
  for (const char* layout : {"llama", "mistral", "qwen2", "qwen3"}) {
    const auto error = [&](const json& is_causal) {
      json config = llama_config();
      config.update({{"num_key_value_heads", 2}, {"is_causal", is_causal}});
      return test::error_of(
          [&] { read_config(find_family(layout, "test"), config, "config.json"); });
    };
    EXPECT_EQ(error(nullptr), "no error") << layout;
    EXPECT_EQ(error(true), "no error") << layout;
    EXPECT_EQ(error(false), "config.json: is_causal = false; expected true (all we support)")
        << layout;
  }
}

// As the published classes read it.
TEST(Families, AnAbsentSlidingWindowIsTheDefaultAndNullIsNone) {
  const auto window = [](const char* layout, const json& changes) {
    json config = llama_config();
    config["num_key_value_heads"] = 2;
    config["use_sliding_window"] = true;  // asked of Qwen only
    config["max_window_layers"] = 0;
    config.update(changes);
    return read_config(find_family(layout, "test"), config, "config.json").attention.window;
  };
  for (const char* layout : {"mistral", "qwen2", "qwen3"}) {
    EXPECT_EQ(window(layout, json::object()), 4096) << layout;
    EXPECT_EQ(window(layout, {{"sliding_window", nullptr}}), 0) << layout;
    EXPECT_EQ(window(layout, {{"sliding_window", 5}}), 5) << layout;
  }
}

TEST(Families, AbsentKeysHaveThePublishedDefaults) {
  const auto read = [](const char* layout, const json& changes = json::object()) {
    json config = llama_config();
    config["num_key_value_heads"] = 2;
    config["num_heads"] = 4;  // of FoX layouts
    config.update(changes);
    return read_config(find_family(layout, "test"), config, "config.json");
  };
  for (const char* layout : {"llama", "mistral", "qwen2", "qwen3"}) {
    EXPECT_EQ(read(layout).norm_eps, 1e-6) << layout;
    EXPECT_FALSE(read(layout).tie_embeddings) << layout;
  }
  EXPECT_EQ(read("qwen3").head_dim(), 128);
  EXPECT_EQ(read("qwen3").attention.qk_norm_eps, 1e-6);
  const json windowed = {{"use_sliding_window", true}, {"sliding_window", 5}};
  json deep = windowed;
  deep["num_hidden_layers"] = 29;
  EXPECT_EQ(read("qwen2", windowed).attention.window, 0);  // the first 28 layers have none
  EXPECT_THROW(read("qwen2", deep), Error);
  const DecoderConfig long_llama = read("longllama", {{"mem_layers", {0}}});
  EXPECT_EQ(long_llama.memory.window, 2048);
  EXPECT_EQ(long_llama.memory.last_context, 1024);
  EXPECT_TRUE(long_llama.memory.positions);
  for (const char* layout : {"forgetting_transformer-project_fox", "transformer-project_fox"}) {
    const DecoderConfig fox = read(layout, {{"intermediate_size", nullptr}});
    EXPECT_EQ(fox.hidden_ratio, 4) << layout;
    EXPECT_EQ(fox.norm_eps, 1e-6) << layout;
    EXPECT_EQ(fox.attention.rope_base, 500000) << layout;
    EXPECT_EQ(fox.attention.rope, layout == std::string("transformer-project_fox"));
  }
}

TEST(Qwen, WindowsOfAllLayersOrNone) {
  const auto window = [](const json& changes) {
    json config = llama_config();
    config["num_key_value_heads"] = 2;
    config["num_hidden_layers"] = 2;
    config["sliding_window"] = 5;
    config.update(changes);
    return read_config(find_family("qwen2", "test"), config, "config.json").attention.window;
  };
  EXPECT_EQ(window(json::object()), 0);
  EXPECT_EQ(window({{"use_sliding_window", true}, {"max_window_layers", 2}}), 0);
  EXPECT_EQ(window({{"use_sliding_window", true}, {"max_window_layers", 0}}), 5);
  const json all = {"sliding_attention", "sliding_attention"};
  EXPECT_EQ(window({{"use_sliding_window", true}, {"layer_types", all}}), 5);
  EXPECT_EQ(window({{"layer_types", all}}), 0);
  EXPECT_THROW(window({{"use_sliding_window", true}, {"max_window_layers", 1}}), Error);
  EXPECT_THROW(window({{"layer_types", {"full_attention", "sliding_attention"}}}), Error);
  EXPECT_THROW(window({{"layer_types", {"linear_attention", "linear_attention"}}}), Error);
  EXPECT_THROW(window({{"layer_types", 3}}), Error);
  EXPECT_THROW(window({{"quantization_config", {{"bits", 4}}}}), Error);
}

}  // namespace
}  // namespace reynard::models

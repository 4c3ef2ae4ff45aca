// Parameter counts, costs and initial values, without allocating the large models.

#include "reynard/models/cost.h"
#include "reynard/models/decoder.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>

namespace reynard::models {
namespace {

struct Size {
  int64_t width, layers, fox_heads, transformer_heads;
};
constexpr Size k125m{768, 12, 12, 12}, k360m{1024, 24, 16, 16}, k760m{1536, 24, 24, 12};

DecoderConfig llama_config(const Size& size, int64_t heads) {
  DecoderConfig config;
  config.vocab_size = 50257;
  config.hidden_size = size.width;
  config.num_layers = size.layers;
  config.attention.num_heads = heads;
  return config;
}
DecoderConfig fox_llama(const Size& size) {
  return llama_config(size, size.fox_heads);
}
DecoderConfig transformer_llama(const Size& size) {
  DecoderConfig config = llama_config(size, size.transformer_heads);
  config.attention.forget_gate = ForgetGate::kNone;
  config.attention.rope = true;
  return config;
}
DecoderConfig pro(DecoderConfig config, QKNorm qk_norm) {
  config.hidden_ratio = 3.5;
  config.attention.qk_norm = qk_norm;
  config.attention.output_gate = OutputGate::kSigmoid;
  config.attention.output_norm = true;
  config.attention.key_shift = config.attention.value_shift = true;
  return config;
}

// All but the input embedding, as the FoX paper counts (its Table 6 truncates these).
TEST(Parameters, CountsOfThePaper) {
  const auto count = [](const DecoderConfig& config) {
    return model_cost(config, 16384).non_embedding_parameters;
  };
  EXPECT_EQ(count(fox_llama(k125m)), 123'661'968);
  EXPECT_EQ(count(fox_llama(k360m)), 360'188'288);
  EXPECT_EQ(count(fox_llama(k760m)), 757'632'576);
  EXPECT_EQ(count(pro(fox_llama(k125m), QKNorm::kPerHead)), 123'910'800);
  EXPECT_EQ(count(pro(fox_llama(k360m), QKNorm::kPerHead)), 367'339'904);
  EXPECT_EQ(count(pro(fox_llama(k760m), QKNorm::kPerHead)), 759'512'640);
  EXPECT_EQ(count(pro(fox_llama(k125m), QKNorm::kShared)), 123'893'904);
  EXPECT_EQ(count(pro(fox_llama(k360m), QKNorm::kShared)), 367'293'824);
  EXPECT_EQ(count(pro(fox_llama(k760m), QKNorm::kShared)), 759'441'984);
  EXPECT_EQ(count(transformer_llama(k125m)), 123'551'232);
  EXPECT_EQ(count(transformer_llama(k360m)), 359'794'688);
  EXPECT_EQ(count(transformer_llama(k760m)), 756'747'264);
  EXPECT_EQ(count(pro(transformer_llama(k125m), QKNorm::kShared)), 123'783'168);
  EXPECT_EQ(count(pro(transformer_llama(k360m), QKNorm::kShared)), 366'900'224);
  EXPECT_EQ(count(pro(transformer_llama(k760m), QKNorm::kShared)), 757'675'008);
}

TEST(Cost, FlopsOfThePaperAndExactOnes) {
  const ModelCost cost = model_cost(pro(fox_llama(k760m), QKNorm::kPerHead), 16384);
  EXPECT_NEAR(cost.paper_flops, 2.727e9, 0.0005e9);
  EXPECT_EQ(cost.parameters, 759'512'640 + 50257 * 1536);
  // The paper counts norms as products and T/2 visible keys; both differ by less than 1e-3.
  EXPECT_NEAR(cost.exact_flops / cost.paper_flops, 1, 1e-3);
  EXPECT_EQ(cost.weight_bytes, 4 * cost.parameters);
  EXPECT_EQ(cost.optimizer_bytes, 8 * cost.parameters);
  EXPECT_EQ(cost.kv_cache_bytes, int64_t{24} * 16384 * (2 * 2 * 1536 + 8 * 24));
}

TEST(Cost, PartsAreThoseOfThePaper) {
  const DecoderConfig config = pro(fox_llama(k760m), QKNorm::kPerHead);
  const ModelCost at_4k = model_cost(config, 4096);
  const ModelCost at_16k = model_cost(config, 16384);
  EXPECT_NEAR(at_4k.attention_flops / at_4k.paper_flops, 0.166, 0.0005);
  EXPECT_NEAR(at_16k.attention_flops / at_16k.paper_flops, 0.443, 0.0005);
  const double parts =
      at_4k.attention_flops + at_4k.mixer_flops + at_4k.mlp_flops + at_4k.head_flops;
  EXPECT_NEAR(parts / at_4k.paper_flops, 1, 1e-3);  // norms are missing
}

// A head is multiplied whether or not its weight is also looked up.
TEST(Cost, ATiedHeadDoesTheWorkOfItsOwn) {
  DecoderConfig config = transformer_llama(k125m);
  const ModelCost own = model_cost(config, 1024);
  config.tie_embeddings = true;
  const ModelCost tied = model_cost(config, 1024);
  EXPECT_EQ(own.parameters - tied.parameters, 50257 * 768);
  EXPECT_EQ(own.non_embedding_parameters - tied.non_embedding_parameters, 50257 * 768);
  EXPECT_DOUBLE_EQ(tied.head_flops, 2.0 * 50257 * 768);
  EXPECT_DOUBLE_EQ(tied.head_flops, own.head_flops);
  EXPECT_DOUBLE_EQ(tied.paper_flops, own.paper_flops);
  EXPECT_DOUBLE_EQ(tied.exact_flops, own.exact_flops);
}

TEST(Cost, WindowLimitsKeysAndCache) {
  DecoderConfig config = transformer_llama(k125m);
  const ModelCost all = model_cost(config, 4);
  config.attention.window = 2;  // 1 + 2 + 2 + 2 keys instead of 1 + 2 + 3 + 4
  const ModelCost windowed = model_cost(config, 4);
  const double flops_per_key = 4.0 * 12 * 768;
  EXPECT_DOUBLE_EQ(all.exact_flops - windowed.exact_flops, flops_per_key * (10 - 7) / 4);
  EXPECT_EQ(windowed.kv_cache_bytes * 2, all.kv_cache_bytes);
}

TEST(Cost, ACacheBeyondIntegersIsRefused) {
  DecoderConfig config = transformer_llama(k125m);
  config.num_layers = 4096;
  config.attention.num_heads = 65536;
  config.attention.head_dim = 256;
  // 65536 heads of 256 dimensions take 2^26 bytes a token and layer.
  EXPECT_EQ(model_cost(config, 1 << 20).kv_cache_bytes, int64_t{1} << (26 + 12 + 20));
  EXPECT_EQ(test::error_of([&] { model_cost(config, int64_t{1} << 31); }),
            "model_cost: keys and values of 2147483648 tokens take more than 9223372036854775807 "
            "bytes; expected a shorter length or a smaller model");
  config.mixer = "memory_attention";
  config.memory.layers = {0};
  config.memory.window = 2;
  config.memory.capacity = std::numeric_limits<int64_t>::max();
  config.num_layers = 1;
  EXPECT_EQ(model_cost(config, 1 << 20).kv_cache_bytes, int64_t{1} << (26 + 20));
}

std::map<std::string, at::Tensor> weights(const DecoderConfig& config, uint64_t seed) {
  Decoder decoder(config, seed);
  std::map<std::string, at::Tensor> values;
  decoder.parameters([&](const std::string& name, Parameter& parameter) {
    values[name] = parameter.value.detach();
  });
  return values;
}

TEST(Initialisation, FollowsTheFoxAuthors) {
  DecoderConfig config = pro(fox_llama({128, 2, 2, 2}), QKNorm::kPerHead);
  config.vocab_size = 4096;
  auto values = weights(config, 3);
  EXPECT_EQ(values.size(), 2 * 16 + 3);
  const at::Tensor& embedding = values.at("model.embeddings.weight");
  EXPECT_NEAR(embedding.std().item<double>(), 0.02, 2e-4);
  EXPECT_NEAR(embedding.mean().item<double>(), 0, 2e-4);
  EXPECT_EQ(values.at("model.layers.1.attn.fgate_proj.bias").abs().max().item<float>(), 0);
  EXPECT_EQ(values.at("model.layers.1.attn.k_norm.weight").min().item<float>(), 1);
  EXPECT_EQ(values.at("model.norm.weight").max().item<float>(), 1);
  EXPECT_BITWISE_EQUAL(embedding, weights(config, 3).at("model.embeddings.weight"));
  EXPECT_FALSE(test::bitwise_equal(embedding, weights(config, 4).at("model.embeddings.weight")));

  config.attention.forget_bias_init = 4;
  EXPECT_EQ(weights(config, 3).at("model.layers.0.attn.fgate_proj.bias").min().item<float>(), 4);
}

TEST(Initialisation, TemperaturesBeginWhereTheConfigSays) {
  DecoderConfig config = fox_llama({64, 1, 4, 4});
  config.vocab_size = 16;
  config.attention.qk_norm = QKNorm::kTemperature;
  EXPECT_EQ(weights(config, 0).at("model.layers.0.attn.temperature").min().item<float>(), 1);
  config.attention.temperature_init = 2;
  EXPECT_EQ(weights(config, 0).at("model.layers.0.attn.temperature").min().item<float>(), 2);
}

TEST(Initialisation, DecayTimesAreGeometric) {
  DecoderConfig config = fox_llama({64, 1, 4, 4});
  config.vocab_size = 16;
  config.attention.forget_gate = ForgetGate::kFixed;
  config.attention.decay_time_min = 2;
  config.attention.decay_time_max = 128;
  const at::Tensor bias = weights(config, 0).at("model.layers.0.attn.fgate_bias");
  config.attention.forget_gate = ForgetGate::kFull;  // the same times begin a data-dependent gate
  EXPECT_BITWISE_EQUAL(weights(config, 0).at("model.layers.0.attn.fgate_proj.bias"), bias);
  for (int64_t h = 0; h < 4; ++h) {
    const double time = 2 * std::pow(4, h);  // 2, 8, 32, 128
    const double gate = 1 / (1 + std::exp(-bias[h].item<double>()));
    EXPECT_NEAR(std::pow(gate, time), std::exp(-1.0), 1e-5) << h;
  }
}

// AdamW's published groups: matrices and embeddings decay, norms and biases do not; fixed gates are
// never trained.
TEST(Parameters, DecayAndFrozenFlags) {
  DecoderConfig config = pro(fox_llama({64, 1, 2, 2}), QKNorm::kShared);
  config.vocab_size = 16;
  config.attention.forget_gate = ForgetGate::kFixed;
  config.attention.decay_time_min = 2;
  config.attention.decay_time_max = 8;
  Decoder decoder(config);
  decoder.parameters([](const std::string& name, Parameter& parameter) {
    EXPECT_EQ(parameter.decay, parameter.value.dim() == 2) << name;
    EXPECT_EQ(parameter.frozen, name.ends_with("fgate_bias")) << name;
    EXPECT_EQ(parameter.value.requires_grad(), !parameter.frozen) << name;
  });
}

// Against the sum over all queries: those of context u see their own context up to themselves and,
// of the u W tokens before it, what the memory keeps and the search returns.
TEST(Cost, KeysOfAMemoryAreCountedOnTopOfTheLocalContext) {
  struct Case {
    int64_t window, capacity, top_k, length;
  };
  constexpr Case kCases[] = {{128, 128, 0, 16384},
                             {128, 0, 0, 16384},
                             {128, 100, 0, 1000},
                             {128, 300, 0, 1000},
                             {128, 0, 32, 512},
                             {128, 0, 32, 140},
                             {128, 0, 200, 1000},
                             {128, 150, 200, 1000},
                             {128, 200, 150, 1000},
                             {128, 1000, 0, 640},
                             {128, 8, 8, 100},
                             {1, 3, 0, 17},
                             {7, 0, 5, 50}};
  for (const Case& c : kCases) {
    DecoderConfig config = transformer_llama(k125m);
    config.mixer = "memory_attention";
    config.memory.window = c.window;
    config.memory.capacity = c.capacity;
    config.memory.top_k = c.top_k;
    const double near = model_cost(config, c.length).exact_flops;
    config.memory.layers = {3};
    const double far = model_cost(config, c.length).exact_flops;
    double local = 0, memory = 0;
    for (int64_t t = 0; t < c.length; ++t) {
      int64_t keys = t / c.window * c.window;
      if (c.capacity > 0) keys = std::min(keys, c.capacity);
      if (c.top_k > 0) keys = std::min(keys, c.top_k);
      local += static_cast<double>(t % c.window + 1);
      memory += static_cast<double>(keys);
    }
    const double weights = model_cost(config, 1).exact_flops - 4.0 * 768 * 12;  // one key a layer
    const auto T = static_cast<double>(c.length);
    const auto what = [&] {
      return "W " + std::to_string(c.window) + ", capacity " + std::to_string(c.capacity) +
             ", top_k " + std::to_string(c.top_k) + ", T " + std::to_string(c.length);
    };
    EXPECT_NEAR((near - weights) / (4.0 * 768 * 12), local / T, 1e-6) << what();
    EXPECT_NEAR((far - near) / (4.0 * 768), memory / T, 1e-6) << what();
  }
}

}  // namespace
}  // namespace reynard::models

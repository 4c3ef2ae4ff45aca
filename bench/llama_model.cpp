#include "bench/llama_model.h"

namespace reynard::bench {

models::DecoderConfig llama_config(int64_t width, int64_t layers) {
  models::DecoderConfig config;
  config.vocab_size = kLlamaVocabulary;
  config.hidden_size = width;
  config.num_layers = layers;
  config.intermediate_size = width / 3 * 8;
  config.attention.num_heads = width / 64;
  config.attention.forget_gate = models::ForgetGate::kNone;
  config.attention.rope = true;
  config.attention.rope_base = 10'000;
  return config;
}

}  // namespace reynard::bench

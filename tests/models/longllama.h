#pragma once
// A small model with LongLLaMA's layers, for tests of memory attention.

#include "reynard/models/decoder_config.h"
#include "tests/support/decoder_variants.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdint>

namespace reynard::test {

// Three layers of width 32 and four heads; the first and the last have a memory.
inline models::DecoderConfig longllama(int64_t window, int64_t last_context, int64_t num_kv_heads) {
  models::DecoderConfig config = small_config();
  config.num_layers = 3;
  config.mixer = "memory_attention";
  config.attention.forget_gate = models::ForgetGate::kNone;
  config.attention.rope = true;
  config.attention.rope_base = 100;
  config.attention.num_kv_heads = num_kv_heads;
  config.memory.window = window;
  config.memory.last_context = last_context;
  config.memory.layers = {0, 2};
  return config;
}

// Where the only sequence of a call begins.
inline at::Tensor one_sequence() {
  return at::zeros({1}, at::kLong);
}

}  // namespace reynard::test

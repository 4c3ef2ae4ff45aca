#pragma once
// A small model with a memory that is trained in rows of short contexts.

#include "reynard/models/crossbatch.h"
#include "reynard/models/decoder.h"
#include "tests/support/decoder_variants.h"

#include <ATen/ops/arange.h>

#include <cstdint>

namespace reynard::models {

inline constexpr int64_t kL = 5;  // tokens of a context

// One layer with a memory: then tokens reach each other through its keys only.
inline DecoderConfig config_of(bool gated, MemoryDecay decay = MemoryDecay::kNone) {
  DecoderConfig config = test::small_config();
  config.vocab_size = 128;
  config.num_layers = 1;
  config.mixer = "memory_attention";
  config.attention.num_kv_heads = 2;
  config.attention.qk_norm = QKNorm::kTemperature;
  config.attention.rope = true;
  config.attention.forget_gate =
      decay == MemoryDecay::kNone ? ForgetGate::kNone : ForgetGate::kFull;
  config.memory.window = kL;
  config.memory.layers = {0};
  config.memory.positions = false;
  config.memory.decay = decay;
  config.memory.merge = gated ? MemoryMerge::kGated : MemoryMerge::kJoint;
  return config;
}

inline Decoder crossbatch_decoder(const DecoderConfig& config) {
  Decoder decoder(config, /*seed=*/2);
  test::spread_weights(decoder, 7);
  return decoder;
}

inline at::Tensor hidden(Decoder& decoder, const at::Tensor& tokens, const Crossbatch& cross) {
  const at::Tensor offsets = at::arange(0, tokens.size(0), kL, at::kLong);
  return decoder.hidden(tokens, offsets, {}, {.crossbatch = cross});
}

inline at::Tensor context(const at::Tensor& rows, int64_t u) {
  return rows.narrow(0, u * kL, kL);
}

}  // namespace reynard::models

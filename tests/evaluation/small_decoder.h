#pragma once
// The smallest decoder that tests of requests read: two layers over 50 tokens, with weights wide
// enough that its predictions differ.

#include "reynard/models/decoder_config.h"

namespace reynard::evaluation {

inline models::DecoderConfig small_decoder() {
  models::DecoderConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.num_layers = 2;
  config.initializer_range = 0.3;
  config.attention.num_heads = 2;
  return config;
}

}  // namespace reynard::evaluation

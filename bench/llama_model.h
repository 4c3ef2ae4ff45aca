#pragma once
// The sizes of a llama with random weights: what benches of loading and generation run.

#include "reynard/models/decoder_config.h"

#include <cstdint>

namespace reynard::bench {

inline constexpr int64_t kLlamaVocabulary = 32'000;

// Heads of 64, MLPs of 8/3 of the width, a head of its own. 768 x 12 layers: 134M parameters.
models::DecoderConfig llama_config(int64_t width, int64_t layers);

}  // namespace reynard::bench

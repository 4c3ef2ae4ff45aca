#pragma once
// What a model costs: parameters, work per token, memory. Computed from shapes; nothing is
// allocated.

#include "reynard/models/decoder_config.h"

#include <cstdint>

namespace reynard::models {

struct ModelCost {
  int64_t parameters = 0;
  int64_t non_embedding_parameters = 0;  // all but the input embedding; the head counts (as in FoX)
  // Forward work per token of a sequence of `length` tokens, in FLOPs:
  // 2 N + 2 L d T, N non-embedding parameters (FoX paper, Table 6) and a head that is tied
  double paper_flops = 0;
  double exact_flops =
      0;  // matrix products of this model: weights and visible keys, mean over tokens
  // paper_flops by part; the rest is the norms.
  double attention_flops = 0;  // 2 L d T: scores and weighted values
  double mixer_flops = 0;      // projections, gates and what else the mixers hold
  double mlp_flops = 0;
  double head_flops = 0;
  int64_t weight_bytes = 0;     // f32 masters
  int64_t compute_bytes = 0;    // bf16 copies in mixed precision
  int64_t gradient_bytes = 0;   // f32
  int64_t optimizer_bytes = 0;  // AdamW: two f32 moments
  int64_t kv_cache_bytes =
      0;  // of one sequence of `length` tokens in bf16: keys, values, gate sums
};

// length: 1 to 2^31 tokens. Throws reynard::Error where a cache of them has more than 2^63 bytes.
ModelCost model_cost(const DecoderConfig& config, int64_t length);

}  // namespace reynard::models

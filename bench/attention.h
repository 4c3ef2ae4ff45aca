#pragma once
// Speed of attention: dense forward and backward against torch's scaled dot product attention, and
// pruned against own dense; and the peak memory of one long pass.

#include "bench/rows.h"

#include <cstdint>
#include <string>
#include <vector>

namespace reynard::bench {

struct AttentionShape {
  int64_t B = 1, H = 8, G = 8, T = 4096, D = 64;
};

struct AttentionBench {
  std::vector<AttentionShape> dense_shapes = {
      {}, {.H = 4, .G = 4, .T = 16384}, {.H = 4, .G = 4, .D = 128}};
  AttentionShape pruned_shape = {.T = 16384};
  std::vector<std::string> dtypes = {"f32", "bf16"};
  std::vector<std::string> names = {
      "dense_forward", "dense_backward", "pruned_forward", "pruned_backward", "kept_tiles"};
  int repeats = 7;  // of pruned rows half as many, but at least 3
};

// Rows of kept_tiles are shares of tiles that are read with gate logits N(5, 1), measured norms and
// tolerance e^-10: the tight rule's against the published one's. Throws reynard::Error where
// results of ours and the peer differ by more than rounding.
Rows bench_attention(const AttentionBench& options);

struct AttentionMemoryBench {
  int64_t T = 65536;
  std::string dtype = {};  // f32 or bf16; empty: f32, on a GPU bf16, for which torch has kernels
  std::string device = "cpu";  // or cuda, auto (tensor::choose_device)
};

// Peak memory, resident or of tensors on a GPU, of forward and backward with grouped heads, gates,
// packed documents and left padding at once, over that of inputs + outputs + gradients. The peer is
// torch's causal attention on the same heads, without gates and documents, at T = 8192 at most: it
// too grows with T alone.
Rows bench_attention_memory(const AttentionMemoryBench& options);

}  // namespace reynard::bench

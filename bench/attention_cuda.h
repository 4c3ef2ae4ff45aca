#pragma once
// Speed of attention on a GPU: own dense, pruned, grouped and packed against other libraries, timed
// by events in one Python process (peers/attention_cuda_peer.py) that loads this library.

#include "bench/rows.h"

#include <cstdint>
#include <vector>

namespace reynard::bench {

struct AttentionCudaBench {
  std::vector<int64_t> lengths = {4096, 8192, 16384, 65536};
  std::vector<int64_t> head_dims = {64, 128, 256};
  bool peers = false;  // time cuDNN, FlashAttention-2 and FLA too, where they run
  int repeats = 20;
  // Called behind each length and head dimension, with rows sorted as below.
  Measured measured = [](const Rows&, int64_t, int64_t) {};
};

// Rows in milliseconds, the worst ratio first; a row's device holds clocks, torch and commit.
// Throws reynard::Error where sampled rows differ from f64 by more than bf16 explains; nothing of
// that shape is timed then.
Rows bench_attention_cuda(const AttentionCudaBench& options);

}  // namespace reynard::bench

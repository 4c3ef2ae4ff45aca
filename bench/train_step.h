#pragma once
// Tokens per second of whole training steps: a FoX (Pro) here against a PyTorch eager Transformer
// of the same size (bench/peers/train_step_peer.py), by turns on the same threads or the same GPU.

#include "bench/rows.h"
#include "reynard/models/decoder_config.h"

#include <cstdint>
#include <string>
#include <vector>

namespace reynard::bench {

struct TrainStepBench {
  std::string model = "10M";  // or 125M, as the recipes in configs/125m: 162M with its embeddings
  int64_t batch_size = 4;     // rows of a step
  int64_t length = 1024;      // tokens of a row
  std::vector<std::string> dtypes = {"f32", "bf16"};
  double log_tolerance = 0;  // of ours, 0: no pruning; gates are as they are at initialisation
  int repeats = 7;
  std::string device = "cpu";  // or cuda, auto (tensor::choose_device): of both
};

// The FoX (Pro) of this size: 10M or 125M; another name is a reynard::Error.
models::DecoderConfig fox_config(const std::string& model);

// Throws reynard::Error when the peer does not run or one of the two does not learn, and for rows
// too short to see that.
Rows bench_train_step(const TrainStepBench& options);

}  // namespace reynard::bench

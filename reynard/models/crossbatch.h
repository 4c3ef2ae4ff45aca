#pragma once
// Which contexts of a training batch see which others in memory layers (Focused Transformer,
// Tworkowski et al. 2023, section 3.2; docs/memory.md). The batch is `rows` rows of `contexts`
// consecutive contexts of L tokens; a row is one document. Plain data; mixers/memory_attention does
// the work.

#include "reynard/config/fields.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reynard::models {

class BatchMemory;  // models/batch_memory.h

enum class CrossbatchRule {
  // Context c of row i sees contexts 0 .. c - 1 of rows i, i + 1, ..., i + documents - 1 (mod
  // rows).
  kRows,
  // LongLLaMA's single forward pass: contexts are one list u = row * contexts + c, and context u
  // sees u - 1, u - 2, ...: at most s c of them (none before the first), with
  // s = ceil((range + 1) / (contexts - 1)) and range = contexts * documents - 1.
  kPacks,
};

config::EnumNames<CrossbatchRule> enum_names(CrossbatchRule);

struct Crossbatch {
  int64_t rows = 0;       // b
  int64_t contexts = 0;   // of a row: w + 1
  int64_t documents = 1;  // d: the own one and d - 1 others
  CrossbatchRule rule = CrossbatchRule::kRows;
  bool stop_gradient = false;  // keys and values of other contexts are constants
  // (rows) integers: tokens at the begin of each row that no other context sees; undefined: none.
  // With kRows and one document only.
  at::Tensor padding = {};
  // What rows saw in earlier steps; read, and this step's keys are staged. With kRows only.
  BatchMemory* memory = nullptr;
  int64_t memory_from_context = 0;  // contexts of a row before this one do not read it
};

}  // namespace reynard::models

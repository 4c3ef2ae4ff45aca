#pragma once
// A look inside every head of a model on some texts: gates, how far it looks, what pruning skips
// and what that costs, and maps of the first text. Works layer by layer, so that the memory is that
// of a forward pass and one layer's queries and keys. The result is JSON (docs/formats.md).

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::models {
class Decoder;
}

namespace reynard::evaluation {

struct InspectedText {
  std::string name;
  std::vector<int64_t> tokens;  // as the model reads them, BOS included
};

struct HeadIndex {
  int64_t layer = 0, head = 0;  // from 0
};

struct InspectOptions {
  std::vector<HeadIndex> heads = {};  // shown in full; empty: the one that looks farthest, the
                                      // middle one and the one that looks nearest
  int64_t overview_cells = 32;        // maps of all heads
  int64_t cells = 64;                 // maps of the heads shown in full
  int64_t queries_per_cell = 16;      // that are read; 0: all
  int64_t window_begin = 0;           // tokens that are shown one by one ...
  int64_t window_end = 0;             // ... up to here; 0: the last 64
  int64_t gate_tokens = 160;          // last tokens whose gates are shown one by one
  double log_tolerance = -10;         // of the pruning that is shown
  int64_t sweep_tokens = 4096;        // of each text, for the loss at every tolerance; 0: no sweep
};

// The model's pruning tolerance is changed meanwhile. Throws reynard::Error for heads or windows
// that are not there.
//   decode    tokens -> text
//   progress  called with (done, all), in tokens times layers of all forward passes, at the
//             beginning too; may be empty
nlohmann::json inspect(models::Decoder& decoder,
                       const std::vector<InspectedText>& texts,
                       const InspectOptions& options,
                       const std::function<std::string(const std::vector<int64_t>&)>& decode,
                       const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace reynard::evaluation

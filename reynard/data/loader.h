#pragma once
// Batches of training tokens from token files: seeded, resumable to the token.

#include "reynard/config/fields.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace reynard::data {

enum class LoaderMode {
  kPacked,   // documents one after the other, each with its BOS; no attention across boundaries
  kSlices,   // long slices: every row is one piece of a document, boundaries ignored inside
  kOrdered,  // each row walks one document after the other (segment recurrence)
};
config::EnumNames<LoaderMode> enum_names(LoaderMode);

// One micro-batch of B rows of T tokens.
struct Batch {
  at::Tensor tokens;     // (B, T) i64 inputs
  at::Tensor targets;    // (B, T) i64 next tokens
  at::Tensor loss_mask;  // (B, T) f32: 1 where the target counts
  at::Tensor starts;     // (B, T) bool: true where a document (or the row) starts: attention, shift
                      // and RoPE restart here; in kOrdered false at a row start that goes on from
                      // the last batch
};

class Loader {
 public:
  virtual ~Loader() = default;
  virtual Batch next() = 0;
  // Everything needed to go on with the very next token.
  virtual nlohmann::json state() const = 0;
  virtual void restore(const nlohmann::json& state) = 0;
};

struct LoaderConfig {
  std::string path;  // token file of `reynard prepare`
  LoaderMode mode = LoaderMode::kPacked;
  int64_t batch_size = 4;  // rows B of a micro-batch
  int64_t length = 1024;   // tokens T of a row
  int64_t seed = 0;        // order of documents or slices

  static void fields(auto& self, auto&& field) {
    field("path", self.path, "token file written by `reynard prepare`");
    field("mode", self.mode, "how rows are cut from documents");
    field("batch_size", self.batch_size, "rows of a micro-batch", config::positive);
    field("length", self.length, "tokens of a row", config::positive);
    field("seed", self.seed, "seed of the order of documents");
  }
};

std::unique_ptr<Loader> make_loader(const LoaderConfig& config);

}  // namespace reynard::data

#pragma once
// Where the rows of a batch come from: one class per loader mode. A row is T pairs (input, target);
// a document of n tokens has n - 1 of them, so EOS is never an input and BOS never a target.

#include "reynard/data/loader.h"
#include "reynard/data/random.h"
#include "reynard/data/token_file.h"

#include <cstdint>
#include <memory>
#include <span>

#include <nlohmann/json.hpp>

namespace reynard::data {

// One row of a batch, to be filled.
struct Row {
  std::span<int64_t> tokens;   // (T)
  std::span<int64_t> targets;  // (T)
  std::span<bool> starts;      // (T), all false at first
  std::span<float> counts;     // (T), all 1 at first: whether the target counts in the loss
};

class RowSource {
 public:
  // Both must outlive it. num_walks: of kOrdered, at least 1. Throws reynard::Error when no
  // document fits the mode.
  RowSource(const TokenFile& file, const LoaderConfig& config, int64_t num_walks);
  ~RowSource();
  // walk: which one the row goes on with (kOrdered). Returns how many tokens of padding it begins
  // with.
  int64_t fill(int64_t walk, const Row& row);
  nlohmann::json state() const;
  void restore(const nlohmann::json& state);
  int64_t rows_of_one_pass() const;

 private:
  struct Rows;
  std::unique_ptr<Rows> rows_;
};

// Streams of random_bits(): one per use, so that uses do not share numbers.
enum RandomStream : uint64_t {
  kOrderStream = 1,
  kOffsetStream = 2,
  kRepeatStream = 3,
  kPaddingStream = 4
};

// Fills a row with [BOS, piece, BOS, piece, ...]: a random piece of the text, its length drawn
// log-uniformly (by octaves) between repeat_min_length and T / 2. counter selects the piece.
void fill_repeated(const TokenFile& file,
                   const LoaderConfig& config,
                   uint64_t counter,
                   const Row& row);

// An integer of a saved state; throws reynard::Error unless it is in [0, limit).
int64_t state_integer(const nlohmann::json& state, const char* key, int64_t limit);

}  // namespace reynard::data

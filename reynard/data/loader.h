#pragma once
// Batches of training tokens from token files: seeded, resumable to the token, the same order on
// every machine. docs/formats.md says exactly what a row holds in each mode.

#include "reynard/config/fields.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace reynard::data {

class TokenFile;

enum class LoaderMode {
  kPacked,   // documents one after the other; no attention across boundaries
  kSlices,   // every row is one slice of a document of more than T tokens
  kOrdered,  // each row walks one document after the other (segment recurrence)
  kPadded,   // every row is one document, cut at T tokens, at a random place (instruction tuning)
};
config::EnumNames<LoaderMode> enum_names(LoaderMode);

// One micro-batch of B rows of T tokens.
struct Batch {
  at::Tensor tokens;     // (B, T) i64 inputs
  at::Tensor targets;    // (B, T) i64 next tokens
  at::Tensor loss_mask;  // (B, T) f32: 1 where the target counts
  at::Tensor starts;     // (B, T) bool: true where a document (or the row) starts: attention, shift
                      // and RoPE restart here; in kOrdered false at a row start that goes on from
                      // an earlier row
  at::Tensor padding = {};  // (B) i64 tokens before the document (kPadded); undefined: none
};

class Loader {
 public:
  virtual ~Loader() = default;
  virtual Batch next() = 0;
  // Everything needed to go on with the very next token.
  virtual nlohmann::json state() const = 0;
  // Throws reynard::Error when the state is that of another file or of other settings.
  virtual void restore(const nlohmann::json& state) = 0;
  virtual const TokenFile& file() const = 0;
  // Rows after which the text begins anew, a last one that it does not fill left out: at least one.
  virtual int64_t rows_of_one_pass() const = 0;
};

struct LoaderConfig {
  std::string path;  // token file of `reynard prepare`
  LoaderMode mode = LoaderMode::kPacked;
  int64_t batch_size = 4;          // rows B of a micro-batch
  int64_t length = 1024;           // tokens T of a row
  int64_t overlap = 0;             // ordered: a row's last tokens, with which its next one begins
  int64_t seed = 0;                // order of documents or slices
  double repeat_fraction = 0;      // share of rows that repeat one piece; 0: none
  int64_t repeat_min_length = 16;  // tokens of the shortest such piece; the longest is T / 2
  bool random_padding = true;      // padded: the document's place in its row is drawn
  int64_t answer_mark = -1;        // token id; -1: what the token file says counts in the loss
  int64_t answer_tokens = 0;       // else only so many behind each mark; 0: all up to the end mark
  int64_t answer_end_mark = -1;    // token id, itself counted; -1: the document's end

  static void fields(auto& self, auto&& field) {
    field("path", self.path, "token file written by `reynard prepare`");
    field("mode", self.mode, "how rows are cut from documents");
    field("batch_size", self.batch_size, "rows of a micro-batch", kDimension);
    field("length", self.length, "tokens of a row", kDimension);
    field("overlap",
          self.overlap,
          "mode = \"ordered\": so many of a row's last tokens begin the next row too",
          config::non_negative);
    field("seed", self.seed, "seed of the order of documents");
    field("repeat_fraction",
          self.repeat_fraction,
          "share of rows that are one random piece repeated, which teaches a small model to copy",
          config::fraction);
    field("repeat_min_length",
          self.repeat_min_length,
          "tokens of the shortest repeated piece; the longest is half a row",
          config::positive);
    field("random_padding",
          self.random_padding,
          "with mode = \"padded\": padding stands at random before and behind the document; else "
          "behind it");
    field(
        "answer_mark",
        self.answer_mark,
        "token id behind which tokens count in the loss, and no others do; -1: all, or the answers "
        "of a file of `reynard prepare --dialogues`",
        kTokenId);
    field("answer_tokens",
          self.answer_tokens,
          "how many tokens count behind each such mark; 0: those up to data.answer_end_mark",
          config::non_negative);
    field("answer_end_mark",
          self.answer_end_mark,
          "token id that ends what counts, itself included; -1: the end of the document",
          kTokenId);
  }
  void check(config::Problems& problems, const std::string& path) const;
  // Tokens of a row that no later one holds.
  int64_t new_tokens() const { return length - overlap; }

  static constexpr config::Rule kTokenId{-1, 2147483647, false, "-1 or a token id"};
  static constexpr config::Rule kDimension{1, 2147483647, false, "between 1 and 2147483647"};
};

// num_walks: of kOrdered, walks through documents of their own, to which the rows of all batches
// are dealt in turn. With A * batch_size walks a row goes on A batches later (a step has A
// micro-batches), with 1 the rows of a batch follow each other; 0: batch_size walks, so that a row
// goes on in the next batch. Other modes have none. Throws reynard::Error when the file is bad or
// has no document that fits the mode.
std::unique_ptr<Loader> make_loader(const LoaderConfig& config, int64_t num_walks = 0);

}  // namespace reynard::data

#pragma once
// One text being written: its prompt, what was chosen so far, and the model's state. A Generator
// advances it; whoever reads the text may end it early.

#include "reynard/generation/sampler.h"
#include "reynard/generation/token_score.h"
#include "reynard/models/state.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace reynard::models {
class Decoder;
}

namespace reynard::generation {

struct SequenceOptions {
  int64_t max_tokens = 256;
  SamplerOptions sampler = {};
  std::vector<int64_t> stop = {};  // ids that end the text; not part of it
  // Ids that end it too once it holds another id; before, they are text. As line ends are, where
  // one line is wanted.
  std::vector<int64_t> stop_after_text = {};
  ScoreOptions scores = {};  // of the tokens written
  ScoreOptions prompt_scores = {};
  // Tokens guessed from earlier text and checked in one step; the text stays the same up to the
  // rounding of its logits. 0: off
  int64_t lookup_tokens = 0;
};

enum class FinishReason {
  kNone,    // still being written
  kStop,    // an id of `stop`, or the reader ended it
  kLength,  // max_tokens
};

// Throws reynard::Error for what is wrong with every model, the sampler's values included.
void check_options(const SequenceOptions& options);

// As well for an empty prompt and for an id outside the vocabulary.
void check_sequence(const models::Decoder& decoder,
                    std::span<const int64_t> prompt,
                    const SequenceOptions& options);

class Sequence {
 public:
  // Checks as check_sequence does.
  Sequence(const models::Decoder& decoder,
           const std::shared_ptr<attention::PagePool>& pool,
           std::vector<int64_t> prompt,
           SequenceOptions options);

  const std::vector<int64_t>& prompt() const { return prompt_; }
  const SequenceOptions& options() const { return options_; }
  // Of prompt()[1], prompt()[2], ...: as far as it was read; empty without prompt_scores. Shared
  // with forks; never null.
  std::shared_ptr<const std::vector<ScoredToken>> prompt_scores() const { return prompt_scores_; }
  const std::vector<ScoredToken>& written() const { return written_; }
  // The id of `stop` that ended the text.
  const std::optional<ScoredToken>& end() const { return end_; }

  // Every token of the prompt but the last is in the state: the next step chooses a token.
  bool is_prefilled() const { return state_.length() + 1 >= num_tokens(); }
  int64_t num_unread() const { return num_tokens() - 1 - state_.length(); }
  FinishReason finished() const { return finished_; }
  void finish(FinishReason reason) { finished_ = reason; }

  // A text of its own after the same prompt, before any token was chosen; pages are shared.
  Sequence fork(uint64_t seed) const;
  // Takes over a state that holds the first tokens of the prompt, all but the last one at most.
  void adopt(models::SequenceState state);

  models::SequenceState& state() { return state_; }
  const models::SequenceState& state() const { return state_; }
  // Guesses that were checked and those that were right (lookup_tokens), an id of `stop` too.
  int64_t num_guessed() const { return num_guessed_; }
  int64_t num_accepted() const { return num_accepted_; }

 private:
  friend class Generator;

  Sequence(const Sequence& other, models::SequenceState state);
  int64_t num_tokens() const { return static_cast<int64_t>(prompt_.size() + written_.size()); }
  int64_t token_at(int64_t position) const;
  // Tokens that followed the last occurrence of the newest few tokens.
  std::vector<int64_t> guess() const;
  // Takes the tokens after the newest one by their logits (R, V), as long as they are those that
  // were guessed. Returns how many were taken.
  int64_t take(const at::Tensor& logits, std::span<const int64_t> guessed);
  void add_prompt_scores(const std::vector<ScoredToken>& scores);

  std::vector<int64_t> prompt_;
  SequenceOptions options_;
  Sampler sampler_;
  models::SequenceState state_;
  std::shared_ptr<std::vector<ScoredToken>> prompt_scores_;
  std::vector<ScoredToken> written_;
  bool has_text_ = false;  // of other ids than those of stop_after_text
  std::optional<ScoredToken> end_;
  FinishReason finished_ = FinishReason::kNone;
  int64_t num_guessed_ = 0, num_accepted_ = 0;
};

}  // namespace reynard::generation

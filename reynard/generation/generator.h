#pragma once
// Writes text with a model: reads prompts chunk by chunk in bounded memory, then adds tokens to any
// number of texts in one pass over the weights. `generate` is the whole of it for given prompts.
//
//   Generator generator(decoder);
//   Sequence text = generator.start(prompt, {.max_tokens = 100});
//   while (!text.is_prefilled()) generator.prefill(text);
//   while (text.finished() == FinishReason::kNone) generator.step(std::array{&text});

#include "reynard/generation/sequence.h"
#include "reynard/tensor/error.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace reynard::models {
class Stepper;
}

namespace reynard::generation {

struct GeneratorOptions {
  // Of a prompt per call. Without a number chunks grow with what was read of a long prompt, up to a
  // size whose activations stay small: each chunk copies the cache before it.
  std::optional<int64_t> chunk_tokens = {};
  // Frees pages that no later query can need, within the decoder's pruning tolerance (nothing
  // without one). Pages left of a window are always freed.
  bool evict = true;
  int64_t max_pages = 0;  // of the cache, over all texts; 0: no limit
  // What every text has in its memories before its prompt (models/saved_memory.h); null: nothing.
  std::shared_ptr<const models::StateSnapshot> memories = {};
};

// The next tokens of a prompt.
struct PromptChunk {
  Sequence* sequence = nullptr;
  int64_t tokens = 0;  // at most; at least 1
};

// Texts of one pass that cannot go on, as where their logits or keys are not finite: all others are
// as after a pass that did not fail.
struct FailedTexts : Error {
  struct Text {
    const Sequence* sequence;
    std::string reason;
  };
  // failed: at least one; the first one's reason is what() says.
  explicit FailedTexts(std::vector<Text> failed)
      : Error(failed.front().reason), texts(std::move(failed)) {}
  std::vector<Text> texts;
};

class Generator {
 public:
  // The decoder must outlive it.
  explicit Generator(models::Decoder& decoder, const GeneratorOptions& options = {});
  ~Generator();

  Sequence start(std::vector<int64_t> prompt, SequenceOptions options) const;
  // Reads the next chunk of the prompt, at most max_tokens of it (0: as the options say). Its pages
  // are freed when the next one begins, so that until then the text can go back to all of them.
  void prefill(Sequence& sequence, int64_t max_tokens = 0);
  // The same for chunks of several prompts, none of them prefilled: in one pass over the weights,
  // but for chunks that are only remembered (Decoder::remember). Throws FailedTexts.
  void prefill(std::span<const PromptChunk> chunks);
  // Tokens that the next chunk of a prompt must have to be read the way that is least work: a local
  // context is remembered as a whole. 1 where there is one way only.
  int64_t least_chunk(const Sequence& sequence) const;
  // Frees pages of the prompt's last chunk, as the first step does: before a text is forked, once
  // for all its forks.
  void free_pages(Sequence& sequence);
  // Adds at least one token to each text, which must be prefilled and not finished. Throws
  // FailedTexts.
  void step(std::span<Sequence* const> sequences);

  models::Decoder& decoder() { return decoder_; }
  const std::shared_ptr<attention::PagePool>& pool() const { return pool_; }
  int64_t num_evicted() const { return num_evicted_; }        // pages freed early so far
  int64_t num_remembered() const { return num_remembered_; }  // tokens of prompts so far

 private:
  class Failures;
  int64_t remembered_end(const Sequence& sequence) const;
  int64_t rememberable(const Sequence& sequence) const;
  bool remember(const PromptChunk& chunk);
  int64_t begin_chunk(const PromptChunk& chunk);
  void read(std::span<const PromptChunk> chunks, Failures& failures);
  void score(Sequence& sequence, const at::Tensor& hidden, int64_t first);
  int64_t take(Sequence& sequence, const at::Tensor& logits, std::span<const int64_t> guessed);
  void evict(std::span<models::SequenceState* const> states);

  models::Decoder& decoder_;
  GeneratorOptions options_;
  std::shared_ptr<attention::PagePool> pool_;
  std::unique_ptr<models::Stepper> stepper_;  // null on a CPU
  int64_t num_evicted_ = 0, num_remembered_ = 0;
};

struct Prompt {
  std::vector<int64_t> tokens;
  SequenceOptions options;
};

// The tokens after each prompt. Prompts need not be equally long: each is read by itself, then
// every pass over the weights adds a token to all texts that are not finished. memories: as the
// generator's options. Throws reynard::Error where check_sequence does.
std::vector<std::vector<int64_t>> generate(
    models::Decoder& decoder,
    std::span<const Prompt> prompts,
    std::shared_ptr<const models::StateSnapshot> memories = {});

}  // namespace reynard::generation

#pragma once
// From API requests to jobs of the engine, and from the engine's pieces to choices: all that
// depends on the model and its tokenizer, and nothing that depends on HTTP.

#include "reynard/generation/chat_template.h"
#include "reynard/generation/token_bytes.h"
#include "reynard/protocol/requests.h"
#include "reynard/protocol/responses.h"
#include "reynard/serving/engine.h"
#include "reynard/serving/text_offsets.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::tokenizer {
class Tokenizer;
}

namespace reynard::serving {

struct ServedModel {
  std::string name;
  const tokenizer::Tokenizer* tokenizer = nullptr;
  int64_t vocab_size = 0;
  int64_t max_length = 0;      // of prompt and text together
  bool uses_template = false;  // the tokenizer says what is put around prompts that are text ...
  std::optional<int64_t> bos;  // ... or this begins them
  std::vector<int64_t> stop;   // tokens that end a text
  std::optional<generation::ChatTemplate> chat;
  std::string no_chat = {};  // why there is no chat template
};

// A request as the engine takes it, and what is needed to write its answer.
struct Ask {
  Job job;
  std::vector<std::string> echoes;  // per prompt, whole characters; empty: not echoed
  int64_t texts_shown = 1;          // per prompt: the best of those that are written
  bool is_chat = false;
  bool stream = false;
  bool include_usage = false;
  bool logprobs = false;
};
// Throw protocol::ApiError: unknown model, too long a prompt, ids outside the vocabulary.
Ask ask_completion(const protocol::CompletionRequest& request, const ServedModel& model);
Ask ask_chat(const protocol::ChatRequest& request, const ServedModel& model);

// Throws ApiError 404 for a name that is neither empty nor the model's.
void check_model(const std::string& name, const ServedModel& model);

// with_template: with what begins a text.
std::vector<int64_t> encode(const ServedModel& model, std::string_view text, bool with_template);

// Collects the pieces of one ask.
class Answer {
 public:
  Answer(const Ask& ask, const ServedModel& model);

  // What a stream sends for this piece.
  protocol::Choice add(const Piece& piece);
  // Everything so far, best texts first where fewer are shown than were written. Of a stream
  // nothing is kept.
  std::vector<protocol::Choice> choices() const;
  protocol::Usage usage() const { return usage_; }

 private:
  struct Text {
    protocol::Choice choice;
    double logprob = 0;
    int64_t num_tokens = 0;
    std::optional<generation::TokenBytes> bytes;  // of its tokens, once it has begun
    TextOffsets offsets;                          // whatever may stop it, behind the echo
  };
  void begin(Text& text, const Piece& piece, protocol::Choice& delta);
  protocol::TokenLogprob token_logprob(const generation::ScoredToken& token) const;
  std::vector<protocol::TokenLogprob> prompt_logprobs(const Piece& piece, int64_t prompt) const;

  const Ask& ask_;
  const ServedModel& model_;
  std::vector<Text> texts_;
  // Per prompt, once the first piece of one of its texts is there.
  std::vector<std::shared_ptr<const std::vector<protocol::TokenLogprob>>> prompt_logprobs_;
  protocol::Usage usage_;
};

}  // namespace reynard::serving

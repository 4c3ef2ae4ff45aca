#pragma once
// What the engine tells the one client that asked for a job: pieces of its texts, in order. Written
// by the engine's thread, read by the client's.

#include "reynard/generation/sequence.h"
#include "reynard/models/state.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace reynard::serving {

struct Piece {
  int64_t index = 0;                                 // of the text in its job
  std::string text = {};                             // whole characters
  std::vector<generation::ScoredToken> tokens = {};  // chosen since the last piece
  // Of the prompt, with the first piece: shared by its texts, empty where not asked for.
  std::shared_ptr<const std::vector<generation::ScoredToken>> prompt_scores = {};
  int64_t reused_tokens = 0;  // of the prompt, with the first piece
  generation::FinishReason finished = generation::FinishReason::kNone;
  std::optional<models::CacheUse> cache = {};       // with the last piece, where asked for
  std::optional<generation::ScoredToken> end = {};  // the id that ended the text
  std::string error = {};                           // the text ended with this failure
};

class Reply {
 public:
  explicit Reply(int64_t num_texts) : num_open_(num_texts) {}

  // The next piece; nothing when none came in time or all texts have ended.
  std::optional<Piece> next(std::chrono::milliseconds patience);
  // All texts have ended and every piece was taken.
  bool is_done();
  // The client has gone: its texts end at the next step.
  void cancel();
  // Nobody waits for its texts: the client has gone, or they have failed.
  bool is_cancelled() const { return cancelled_; }
  bool has_failed() const { return failed_; }

  // For the engine.
  void add(Piece piece);
  void fail(const std::string& error);  // ends all texts

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> pieces_;
  int64_t num_open_;
  std::atomic<bool> cancelled_{false}, failed_{false};
};

}  // namespace reynard::serving

#include "reynard/serving/reply.h"

#include <utility>

namespace reynard::serving {

std::optional<Piece> Reply::next(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [&] { return !pieces_.empty() || num_open_ == 0; });
  if (pieces_.empty()) return {};
  Piece piece = std::move(pieces_.front());
  pieces_.pop_front();
  return piece;
}

bool Reply::is_done() {
  const std::lock_guard lock(mutex_);
  return pieces_.empty() && num_open_ == 0;
}

void Reply::cancel() {
  const std::lock_guard lock(mutex_);
  if (num_open_ > 0) cancelled_ = true;
}

void Reply::add(Piece piece) {
  {
    const std::lock_guard lock(mutex_);
    if (piece.finished != generation::FinishReason::kNone) --num_open_;
    if (!cancelled_) pieces_.push_back(std::move(piece));
  }
  changed_.notify_all();
}

void Reply::fail(const std::string& error) {
  {
    const std::lock_guard lock(mutex_);
    if (num_open_ == 0) return;
    num_open_ = 0;
    failed_ = true;  // first: who sees that it is cancelled can tell why
    cancelled_ = true;
    Piece piece;
    piece.error = error;
    pieces_.push_back(std::move(piece));
  }
  changed_.notify_all();
}

}  // namespace reynard::serving

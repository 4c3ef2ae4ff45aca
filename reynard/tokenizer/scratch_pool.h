#pragma once
// What threads that encode with one tokenizer need for themselves, kept from text to text: as many
// as were at work at once.

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace reynard::tokenizer {

template <class Scratch>
class ScratchPool {
 public:
  std::unique_ptr<Scratch> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Scratch>();
    auto scratch = std::move(idle_.back());
    idle_.pop_back();
    return scratch;
  }
  // What an exception left half used is better dropped.
  void give_back(std::unique_ptr<Scratch> scratch) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace reynard::tokenizer

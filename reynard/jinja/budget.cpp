#include "reynard/jinja/budget.h"

#include "reynard/jinja/value.h"
#include "reynard/tensor/error.h"

namespace reynard::jinja {

namespace {

// Qwen3's template takes fewer than a million for a conversation of 4,096 messages.
constexpr int64_t kMaxSteps = 20'000'000;
constexpr int64_t kBytesPerStep = 64;

}  // namespace

void Budget::spend(int64_t bytes) {
  steps_ += 1 + bytes / kBytesPerStep;
  if (steps_ > kMaxSteps) throw Error("the template takes too long");
}

void Budget::spend_items(const Value& value) {
  if (value.list() || value.map()) spend(value.weight());
}

}  // namespace reynard::jinja

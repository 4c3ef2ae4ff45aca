#include "reynard/serving/chunk_cost.h"

#include <algorithm>

namespace reynard::serving {

namespace {

constexpr double kNewest = 0.2;  // weight of the newest chunk in a running mean
constexpr double kFading = 0.9;  // of a chunk's weight with each one that follows
// Variance of the tokens by the square of their mean, from which on a line is looked for.
constexpr double kLeastSpread = 0.05;

}  // namespace

void ChunkCost::add(int64_t tokens, double seconds) {
  const auto n = static_cast<double>(tokens);
  per_token_ = is_known() ? per_token_ + kNewest * (seconds / n - per_token_) : seconds / n;
  for (double* sum : {&weight_, &tokens_, &seconds_, &tokens_squared_, &products_}) *sum *= kFading;
  weight_ += 1, tokens_ += n, seconds_ += seconds;
  tokens_squared_ += n * n, products_ += n * seconds;
}

ChunkCost::Line ChunkCost::line() const {
  const double spread = weight_ * tokens_squared_ - tokens_ * tokens_;
  if (spread < kLeastSpread * tokens_ * tokens_) return {.begin = 0, .per_token = per_token_};
  const double least = 1e-3 * seconds_ / tokens_;  // a line that falls is noise
  const double slope = (weight_ * products_ - tokens_ * seconds_) / spread;
  const double per_token = std::clamp(slope, least, seconds_ / tokens_);
  return {.begin = (seconds_ - per_token * tokens_) / weight_, .per_token = per_token};
}

double ChunkCost::tokens_within(double seconds) const {
  const double tokens = seconds / per_token_;
  const Line cost = line();
  return cost.begin > seconds ? std::max(tokens, cost.begin / cost.per_token) : tokens;
}

}  // namespace reynard::serving

#include "reynard/serving/chunk_cost.h"

#include <algorithm>
#include <cmath>

namespace reynard::serving {

namespace {

constexpr double kFading = 0.9;  // of a chunk's weight with each one that follows
// Variance of the tokens by the square of their mean, from which on they tell a line.
constexpr double kLeastSpread = 0.05;
constexpr double kMostGrowth = 4;
constexpr double kLeastSeconds = 1e-9;  // what a clock tells of a chunk
// A length that is less than this part away from the others tells nothing new.
constexpr double kAlike = 0.25;

}  // namespace

ChunkCost::ChunkCost(int64_t least, int64_t most) : least_(least), most_(most) {}

void ChunkCost::add(int64_t tokens, double seconds) {
  const auto n = static_cast<double>(tokens);
  seconds = std::max(seconds, kLeastSeconds);
  for (double* sum : {&weight_, &tokens_, &seconds_, &tokens_squared_, &products_}) *sum *= kFading;
  weight_ += 1, tokens_ += n, seconds_ += seconds;
  tokens_squared_ += n * n, products_ += n * seconds;
  if (tells_a_line()) line_ = fitted();
}

bool ChunkCost::tells_a_line() const {
  return weight_ * tokens_squared_ - tokens_ * tokens_ >= kLeastSpread * tokens_ * tokens_;
}

ChunkCost::Line ChunkCost::fitted() const {
  const double spread = weight_ * tokens_squared_ - tokens_ * tokens_;
  const double mean = seconds_ / tokens_, least = 1e-3 * mean;  // a line that falls is noise
  const double slope = (weight_ * products_ - tokens_ * seconds_) / spread;
  const double per_token = std::clamp(slope, least, mean);
  return {.begin = (seconds_ - per_token * tokens_) / weight_, .per_token = per_token};
}

double ChunkCost::wanted(double seconds) const {
  if (line_) {
    // Since the line was told the machine may have become slower, for all of it alike.
    const double factor = seconds_ / (line_->begin * weight_ + line_->per_token * tokens_);
    const double begin = line_->begin * factor, per_token = line_->per_token * factor;
    return std::max(seconds - begin, begin) / per_token;
  }
  // All is taken for the tokens', but for a length that tells more.
  const double mean = tokens_ / weight_;
  const double tokens = std::clamp(
      seconds / seconds_ * tokens_, static_cast<double>(least_), static_cast<double>(most_));
  if (std::abs(tokens - mean) > kAlike * mean) return tokens;
  return 2 * mean <= static_cast<double>(most_) ? 2 * mean : mean / 2;
}

int64_t ChunkCost::tokens_within(double seconds) const {
  if (weight_ == 0) return least_;
  const double tokens = std::min(wanted(seconds), kMostGrowth * tokens_ / weight_);
  return std::clamp(static_cast<int64_t>(tokens), least_, most_);
}

}  // namespace reynard::serving

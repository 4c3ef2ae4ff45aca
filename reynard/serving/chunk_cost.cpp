#include "reynard/serving/chunk_cost.h"

#include <algorithm>
#include <cmath>

namespace reynard::serving {

namespace {

constexpr double kFading = 0.9;  // of a chunk's weight with each one that follows
// Variance of the tokens by the square of their mean, from which on they tell a line.
constexpr double kLeastSpread = 0.02;
constexpr double kMostGrowth = 2;
constexpr double kLeastSeconds = 1e-9;  // what a clock tells of a chunk
// Of what was expected counts of a chunk, at most: others' work may have held it up.
constexpr double kMostOfExpected = 2;
// A length that is less than this part away from the others tells nothing new.
constexpr double kAlike = 0.25;
// Chunks that tell nothing new before one of another length: less often with each.
constexpr int64_t kLeastPatience = 4, kMostPatience = 32;

}  // namespace

ChunkCost::ChunkCost(int64_t least, int64_t most)
    : least_(least), most_(most), patience_(kLeastPatience) {}

void ChunkCost::add(int64_t tokens, double seconds) {
  const auto n = static_cast<double>(tokens);
  seconds = std::max(seconds, kLeastSeconds);
  if (line_) {
    const auto [begin, per_token] = line_now();
    seconds = std::min(seconds, kMostOfExpected * (begin + per_token * n));
  }
  for (double* sum : {&weight_, &tokens_, &seconds_, &tokens_squared_, &products_}) *sum *= kFading;
  weight_ += 1, tokens_ += n, seconds_ += seconds;
  tokens_squared_ += n * n, products_ += n * seconds;
  ++untold_;
  if (!tells_a_line()) return;
  if (untold_ > patience_) patience_ = std::min(2 * patience_, kMostPatience);
  line_ = fitted();
  untold_ = 0;
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

// Since the line was told the machine may have become slower, for all of it alike.
ChunkCost::Line ChunkCost::line_now() const {
  const double factor = seconds_ / (line_->begin * weight_ + line_->per_token * tokens_);
  return {.begin = line_->begin * factor, .per_token = line_->per_token * factor};
}

double ChunkCost::another_length() const {
  const double mean = tokens_ / weight_;
  return mean / 2 >= static_cast<double>(least_) ? mean / 2 : 2 * mean;
}

double ChunkCost::wanted(double seconds) const {
  if (untold_ >= patience_) return another_length();
  if (line_) {
    const auto [begin, per_token] = line_now();
    return std::max(seconds - begin, begin) / per_token;
  }
  // All is taken for the tokens', but for a length that tells more.
  const double mean = tokens_ / weight_;
  const double tokens = std::clamp(
      seconds / seconds_ * tokens_, static_cast<double>(least_), static_cast<double>(most_));
  return std::abs(tokens - mean) > kAlike * mean ? tokens : another_length();
}

int64_t ChunkCost::tokens_within(double seconds) const {
  if (weight_ == 0) return least_;
  const double tokens = std::min(wanted(seconds), kMostGrowth * tokens_ / weight_);
  return std::clamp(static_cast<int64_t>(tokens), least_, most_);
}

}  // namespace reynard::serving

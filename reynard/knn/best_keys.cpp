#include "reynard/knn/best_keys.h"

#include <algorithm>
#include <utility>

namespace reynard::knn {

namespace {

constexpr int64_t kSlack = 64;  // candidates beyond 2k before the pool is thinned out

}  // namespace

int64_t ExactScore::offset(int64_t id) const {
  const KeyRun* run = &rows->runs.front();
  if (id >= run->id + run->size) run = &rows->runs.back();
  return key_head * rows->head_stride + (run->slot + id - run->id) * rows->slot_stride;
}

float ExactScore::operator()(int64_t id) const {
  const int64_t at = offset(id);
  return bf16_keys ? score(query, static_cast<const BFloat16*>(rows->data) + at, head_dim)
                   : score(query, static_cast<const float*>(rows->data) + at, head_dim);
}

void ExactScore::prefetch(int64_t id) const {
  constexpr int64_t kLine = 64;
  const int64_t element_bytes = bf16_keys ? 2 : 4;
  const auto* key = static_cast<const char*>(rows->data) + offset(id) * element_bytes;
  for (int64_t at = 0; at < head_dim * element_bytes; at += kLine) __builtin_prefetch(key + at);
}

void BestKeys::add(const Candidate& candidate) {
  pool_.push_back(candidate);
  if (std::ssize(pool_) >= 2 * k_ + kSlack) shrink();
}

void BestKeys::add_exact(int64_t id) {
  const float value = rank(exact_(id));
  if (value >= floor()) add({value, value, id});
}

// Drops what cannot be among the best. Where many candidates remain, their bounds overlap: then
// they are scored, which leaves exactly k, so that each candidate is scored at most once and the
// work per added key is constant.
void BestKeys::shrink() {
  const auto kth = pool_.begin() + (k_ - 1);
  std::nth_element(pool_.begin(), kth, pool_.end(), [](const Candidate& a, const Candidate& b) {
    return a.lower > b.lower;
  });
  floor_->raise(kth->lower);
  std::erase_if(pool_, [least = floor()](const Candidate& c) { return c.upper < least; });
  if (std::ssize(pool_) > k_ + (k_ + kSlack) / 2) settle();
}

void BestKeys::settle() {
  // Keys of candidates lie anywhere: all are asked for before the first is read.
  for (const Candidate& c : pool_) {
    if (c.lower != c.upper) exact_.prefetch(c.id);
  }
  for (Candidate& c : pool_) {
    if (c.lower != c.upper) c.lower = c.upper = rank(exact_(c.id));
  }
  if (std::ssize(pool_) <= k_) return;
  const auto kth = pool_.begin() + (k_ - 1);
  std::nth_element(pool_.begin(), kth, pool_.end(), [](const Candidate& a, const Candidate& b) {
    return a.upper != b.upper ? a.upper > b.upper : a.id < b.id;
  });
  floor_->raise(kth->lower);
  pool_.resize(static_cast<size_t>(k_));
}

std::vector<Candidate> BestKeys::take_candidates() {
  std::erase_if(pool_, [least = floor()](const Candidate& c) { return c.upper < least; });
  return std::exchange(pool_, {});
}

std::vector<Scored> BestKeys::take() {
  if (std::ssize(pool_) > k_) shrink();
  settle();
  std::vector<Scored> best;
  best.reserve(pool_.size());
  for (const Candidate& c : pool_) {
    const bool known = c.upper > -std::numeric_limits<float>::infinity();
    best.push_back({known ? c.upper : exact_(c.id), c.id});  // a rank of -inf may be a score of NaN
  }
  pool_ = {};
  return best;
}

}  // namespace reynard::knn

#include "reynard/training/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace reynard::training {

namespace {

// From 1 at `decayed` = 0 to 0 at 1.
double decay(ScheduleShape shape, double decayed, double decay_share) {
  switch (shape) {
    case ScheduleShape::kConstant:
      return 1;
    case ScheduleShape::kLinear:
      return 1 - decayed;
    case ScheduleShape::kCosine:
      return 0.5 * (1 + std::cos(std::numbers::pi * decayed));
    case ScheduleShape::kOneMinusSqrt:
      return 1 - std::sqrt(decayed);
    case ScheduleShape::kWSD:
    case ScheduleShape::kInverseSqrt:
      break;
  }
  if (decay_share <= 0) return 1;
  return 1 - std::sqrt(std::clamp((decayed - (1 - decay_share)) / decay_share, 0.0, 1.0));
}

}  // namespace

double Progress::fraction() const {
  const double by_tokens = token_budget > 0 ? static_cast<double>(tokens) / token_budget : 0;
  const double by_time = second_budget > 0 ? seconds / second_budget : 0;
  return std::clamp(std::max(by_tokens, by_time), 0.0, 1.0);
}

double learning_rate(const ScheduleConfig& schedule, double peak, const Progress& progress) {
  const double fraction = progress.fraction();
  const double warmup_end =
      schedule.warmup_tokens > 0 && progress.token_budget > 0
          ? static_cast<double>(schedule.warmup_tokens) / progress.token_budget
          : schedule.warmup_fraction;
  if (fraction < warmup_end) return peak * fraction / warmup_end;
  if (schedule.shape == ScheduleShape::kInverseSqrt) {
    return peak * std::max(schedule.final_fraction, std::sqrt(warmup_end / fraction));
  }
  const double rest = 1 - warmup_end;
  const double decayed = rest > 0 ? (fraction - warmup_end) / rest : 1;
  const double share = rest > 0 ? schedule.decay_fraction / rest : 1;
  const double factor = decay(schedule.shape, decayed, share);
  return peak * (schedule.final_fraction + (1 - schedule.final_fraction) * factor);
}

}  // namespace reynard::training

#pragma once
// The learning rate of a step from what has been seen before it.

#include "reynard/training/experiment.h"

namespace reynard::training {

// How far a run is before a step.
struct Progress {
  int64_t tokens = 0;        // input tokens seen
  int64_t token_budget = 0;  // 0: none
  double seconds = 0;        // spent in training
  double second_budget = 0;  // 0: none

  // Share of the budget that is used: of the tokens or of the time, whichever is further; in [0,1].
  double fraction() const;
  // Whether the budget of time, where there is one, lasts for so many seconds more.
  bool has_time_for(double more) const {
    return second_budget == 0 || seconds + more < second_budget;
  }
};

// Peak rate times the schedule's factor: rises linearly from 0 at the first step to the peak over
// the warm-up, then follows the shape down to final_fraction of the peak at fraction 1.
double learning_rate(const ScheduleConfig& schedule, double peak, const Progress& progress);

}  // namespace reynard::training

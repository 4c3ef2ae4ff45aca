#include "reynard/evaluation/retries.h"

#include "reynard/tensor/counted.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace reynard::evaluation {

namespace {

constexpr double kLongestPause = 30;  // seconds

}  // namespace

Retries::Retries(RetryOptions options, std::string who)
    : options_(std::move(options)), who_(std::move(who)), pause_s_(options_.first_pause_s) {}

void Retries::failed(const std::string& problem, double asked_pause_s) {
  if (attempt_ >= options_.attempts) {
    throw Error(
        fmt::format("eval: {}: {} ({}); what was answered before is kept, the same "
                    "command goes on from there",
                    who_,
                    problem,
                    counted(attempt_, "attempt")));
  }
  const double seconds = std::max(pause_s_, asked_pause_s);
  if (options_.note) {
    options_.note(fmt::format("{}: {}; again in {:.1f} s ({} of {})",
                              who_,
                              problem,
                              seconds,
                              attempt_,
                              options_.attempts));
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  pause_s_ = std::min(2 * pause_s_, kLongestPause);
  ++attempt_;
}

}  // namespace reynard::evaluation

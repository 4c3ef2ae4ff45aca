#pragma once
// How something outside this program that fails, stalls or answers nonsense is asked again: with
// growing pauses, a number of times, and then it is reported.

#include <cstdint>
#include <functional>
#include <string>

namespace reynard::evaluation {

struct RetryOptions {
  int64_t attempts = 6;
  double first_pause_s = 0.5;  // before the second attempt; doubled each time, up to 30 s
  // Told about every attempt that failed; may be empty. Several threads may call it.
  std::function<void(const std::string&)> note = {};
};

// Of one request.
class Retries {
 public:
  // who: is asked, for messages.
  Retries(RetryOptions options, std::string who);
  // After an attempt that failed: waits until the next one, at least asked_pause_s. Throws
  // reynard::Error when no attempt is left.
  void failed(const std::string& problem, double asked_pause_s = 0);

 private:
  RetryOptions options_;
  std::string who_;
  int64_t attempt_ = 1;
  double pause_s_;
};

}  // namespace reynard::evaluation

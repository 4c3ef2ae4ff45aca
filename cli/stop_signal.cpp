#include "cli/stop_signal.h"

#include <csignal>

namespace reynard::cli {

namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

void request_stop(int /*signal*/) {
  stop_requested = true;
}

}  // namespace

const std::atomic<bool>& stop_flag() {
  struct sigaction action = {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return stop_requested;
}

}  // namespace reynard::cli

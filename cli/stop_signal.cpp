#include "cli/stop_signal.h"

#include <csignal>
#include <cstdint>
#include <ctime>

namespace reynard::cli {

namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");
std::atomic<int64_t> first_request_ns{0};
std::atomic<bool> only_interrupted{true};

// One Ctrl-C may arrive several times: the terminal sends it to the whole process group and
// wrappers such as timeout pass it on. So only a request half a second after the first ends the
// process at once.
constexpr int64_t kSameRequestNs = 500'000'000;

void request_stop(int signal) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t now_ns = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  int64_t first = 0;
  if (first_request_ns.compare_exchange_strong(first, now_ns)) first = now_ns;
  if (signal != SIGINT) only_interrupted = false;
  stop_requested = true;
  if (now_ns - first > kSameRequestNs) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

const std::atomic<bool>& stop_flag() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_handler = request_stop;
    action.sa_flags = SA_RESTART;
    struct sigaction of_hangup = {};
    sigaction(SIGHUP, nullptr, &of_hangup);
    if (of_hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
    return sigaction(SIGINT, &action, nullptr) == 0 && sigaction(SIGTERM, &action, nullptr) == 0;
  }();
  static_cast<void>(installed);
  return stop_requested;
}

bool clear_interrupt() {
  if (!only_interrupted) return false;
  first_request_ns = 0;
  stop_requested = false;
  return true;
}

}  // namespace reynard::cli

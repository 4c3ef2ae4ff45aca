#pragma once
// Ctrl-C and SIGTERM as a flag that a run looks at between steps. A second signal, half a
// second or more after the first, ends the process as usual.

#include <atomic>

namespace reynard::cli {

// Installs the handlers (once) and returns the flag that they set.
const std::atomic<bool>& stop_flag();

// The next Ctrl-C is a first one again: what was interrupted has ended, the process goes on.
void clear_stop();

// What a shell expects of a process that was interrupted.
inline constexpr int kInterruptedExitCode = 130;

// Thrown to leave the program with an exit code after everything was reported.
struct ExitWith {
  int code;
};

}  // namespace reynard::cli

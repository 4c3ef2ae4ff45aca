#pragma once
// Ctrl-C, SIGTERM and the end of the terminal (SIGHUP, unless it is ignored as under nohup) as a
// flag that a run looks at between steps. A second signal, half a second or more after the first,
// ends the process as usual.

#include <atomic>

namespace reynard::cli {

// Installs the handlers (once) and returns the flag that they set.
const std::atomic<bool>& stop_flag();

// Where it was Ctrl-C: the next one is a first one again, since what was interrupted has ended and
// the process goes on. False where another signal asks the process itself to end.
bool clear_interrupt();

// What a shell expects of a process that was interrupted.
inline constexpr int kInterruptedExitCode = 130;

// Thrown to leave the program with an exit code after everything was reported.
struct ExitWith {
  int code;
};

}  // namespace reynard::cli

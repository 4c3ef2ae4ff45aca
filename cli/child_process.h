#pragma once
// Another program, run beside this one.

#include <sys/types.h>

#include <string>
#include <vector>

namespace reynard::cli {

class ChildProcess {
 public:
  struct Options {
    std::vector<std::string> arguments;  // the program, looked for in PATH, and what it is given
    std::string output_file = {};        // its standard output; empty: this program's
    bool read_errors = false;            // its standard error goes to read_error_line()
  };
  // Throws reynard::Error, naming the program, when it cannot be started.
  explicit ChildProcess(const Options& options);
  ~ChildProcess();  // asks it to end and waits
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The next line of its standard error; empty at its end.
  std::string read_error_line();
  void ask_to_end() const;  // SIGTERM
  // Waits for its end. Returns its exit code, or 128 + the signal that ended it.
  int wait();

 private:
  pid_t process_ = -1;
  int errors_ = -1;
};

}  // namespace reynard::cli

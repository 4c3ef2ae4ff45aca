#pragma once
// Another program, run beside this one: how it is started, how it ends. Its standard streams are
// this program's but for those that are asked for; what it says is its caller's business.

#include "reynard/process/line_socket.h"

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace reynard::process {

// How a program ended.
struct Ending {
  int exit_code = 0;                // 128 + the signal where one ended it
  int signal = 0;                   // 0: none ended it
  int64_t peak_resident_bytes = 0;  // of main memory that it held, or this program before it
};

class ChildProcess {
 public:
  struct Options {
    std::vector<std::string> arguments;  // the program, looked for in PATH, and what it is given
    std::vector<std::string> environment = {};  // NAME=value, beside or instead of this program's
    bool converse = false;         // its standard input and output are the other end of lines()
    bool read_output = false;      // its standard output goes to read_output()
    bool read_errors = false;      // its standard error goes to read_error_line()
    std::string output_file = {};  // for its standard output
    std::string errors_file = {};  // for its standard error
    bool own_group = false;        // it and all that it starts get the signals that we send
    double patience_s = 5;         // from end() until it is killed
  };
  // Throws reynard::Error, naming the program, when it cannot be started.
  explicit ChildProcess(Options options);
  ~ChildProcess();  // as end()
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Lines to its standard input and from its standard output.
  LineSocket& lines() { return *lines_; }
  // What it has written to its standard output since, once there is something; empty at its end.
  std::string read_output();
  // The next line of its standard error; empty at its end.
  std::string read_error_line();

  void kill() const;  // SIGKILL
  Ending wait();      // until it ends by itself
  // Asks it to end, by the end of its input if it converses, else by SIGTERM, and waits. Kills what
  // does not end.
  Ending end();

 private:
  class Descriptor {
   public:
    Descriptor() = default;
    ~Descriptor() { reset(-1); }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    void reset(int descriptor);
    int get() const { return descriptor_; }

   private:
    int descriptor_ = -1;
  };

  void send_signal(int signal) const;
  bool has_ended(int wait_options);  // takes its status then

  Options options_;
  pid_t process_ = -1;  // -1: it has ended
  Ending ending_;
  std::optional<LineSocket> lines_;
  Descriptor output_, errors_;
};

}  // namespace reynard::process

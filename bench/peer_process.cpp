#include "bench/peer_process.h"

#include "reynard/tensor/check.h"
#include "reynard/tensor/installation.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace reynard::bench {

namespace {

[[noreturn]] void become(const std::vector<std::string>& command, int in, int out, int threads) {
  const bool redirected = dup2(in, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0;
  if (!redirected) _exit(126);
  setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

struct Pipe {
  int ends[2] = {-1, -1};  // to read from, to write to

  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0) {
      throw Error(fmt::format("bench: cannot make a pipe to a peer: {}", std::strerror(errno)));
    }
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    for (const int end : ends) {
      if (end >= 0) close(end);
    }
  }
  int release(int end) { return std::exchange(ends[end], -1); }
};

}  // namespace

PeerProcess::PeerProcess(const std::string& script, const std::vector<std::string>& arguments)
    : script_(script),
      python_(tensor::named_in_environment("REYNARD_PEER_PYTHON", REYNARD_BENCH_PYTHON)) {
  std::vector<std::string> command = {python_, tensor::project_file("bench/peers/" + script)};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const int threads = at::get_num_threads();
  // The peer's ends are closed here in any case.
  Pipe to, from;
  to_.reset(fdopen(to.release(1), "w"));
  from_.reset(fdopen(from.release(0), "r"));
  if (!to_ || !from_) throw Error(fmt::format("bench: cannot make pipes to {}", script));
  process_ = fork();
  if (process_ < 0) throw Error(fmt::format("bench: cannot start {}", script));
  if (process_ == 0) become(command, to.ends[0], from.ends[1], threads);
  std::signal(SIGPIPE, SIG_IGN);  // a peer that ended is an error of ask(), not of this process
}

PeerProcess::~PeerProcess() {
  to_.reset();  // the end of its input ends the peer
  from_.reset();
  int status = 0;
  waitpid(process_, &status, 0);
}

std::string PeerProcess::ask(const std::string& line) {
  std::string text;
  const auto read_line = [&] {  // of any length
    for (char part[4096]; text.empty() || text.back() != '\n'; text += part) {
      if (!std::fgets(part, sizeof part, from_.get())) return false;
    }
    return true;
  };
  if (std::fputs((line + "\n").c_str(), to_.get()) < 0 || std::fflush(to_.get()) != 0 ||
      !read_line()) {
    throw Error(fmt::format(
        "bench: the peer {} ended early or was not started (its messages are above); it runs with "
        "{}, $REYNARD_PEER_PYTHON names another Python",
        script_,
        python_));
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

double PeerProcess::ask_number(const std::string& line) {
  const std::string answer = ask(line);
  char* end = nullptr;
  const double number = std::strtod(answer.c_str(), &end);
  if (end != answer.c_str() && *end == '\0') return number;
  throw Error(fmt::format(
      "bench: the peer {} answered {:?} to \"{}\"; expected a number", script_, answer, line));
}

}  // namespace reynard::bench

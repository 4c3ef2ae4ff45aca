#include "bench/peer_process.h"

#include "reynard/tensor/check.h"
#include "reynard/tensor/installation.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

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

}  // namespace

PeerProcess::PeerProcess(const std::string& script, const std::vector<std::string>& arguments)
    : script_(script),
      python_(tensor::named_in_environment("REYNARD_PEER_PYTHON", REYNARD_BENCH_PYTHON)) {
  std::vector<std::string> command = {python_, tensor::project_file("bench/peers/" + script)};
  command.insert(command.end(), arguments.begin(), arguments.end());
  int to[2], from[2];
  if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) {
    throw Error(fmt::format("bench: cannot make pipes to {}", script));
  }
  const int threads = at::get_num_threads();
  process_ = fork();
  if (process_ < 0) throw Error(fmt::format("bench: cannot start {}", script));
  if (process_ == 0) become(command, to[0], from[1], threads);
  close(to[0]);
  close(from[1]);
  to_.reset(fdopen(to[1], "w"));
  from_.reset(fdopen(from[0], "r"));
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

}  // namespace reynard::bench

#include "cli/child_process.h"

#include "reynard/tensor/check.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

extern char** environ;

namespace reynard::cli {

ChildProcess::ChildProcess(const Options& options) {
  std::array<int, 2> ends = {-1, -1};
  if (options.read_errors && ::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (options.read_errors) posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  if (!options.output_file.empty()) {
    posix_spawn_file_actions_addopen(
        &actions, STDOUT_FILENO, options.output_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  }
  std::vector<std::string> texts = options.arguments;
  std::vector<char*> arguments;
  for (std::string& text : texts) arguments.push_back(text.data());
  arguments.push_back(nullptr);
  const int failed =
      posix_spawnp(&process_, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (ends[1] >= 0) ::close(ends[1]);
  errors_ = ends[0];
  if (failed != 0) {
    process_ = -1;
    if (errors_ >= 0) ::close(errors_);
    throw Error(fmt::format("cannot start {}: {}", options.arguments[0], std::strerror(failed)));
  }
}

ChildProcess::~ChildProcess() {
  if (errors_ >= 0) ::close(errors_);
  ask_to_end();
  wait();
}

void ChildProcess::ask_to_end() const {
  if (process_ > 0) ::kill(process_, SIGTERM);
}

std::string ChildProcess::read_error_line() {
  std::string line;
  char c = 0;
  for (;;) {
    const ssize_t n = ::read(errors_, &c, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return line;
    line += c;
    if (c == '\n') return line;
  }
}

int ChildProcess::wait() {
  int status = 0;
  while (process_ > 0 && ::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
  }
  process_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace reynard::cli

#include "reynard/process/child_process.h"

#include "reynard/tensor/error.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <utility>

extern char** environ;

namespace reynard::process {

namespace {

constexpr int kUnknownStatus = 255 << 8;  // as of exit(255): somebody else took it
constexpr useconds_t kPollMicroseconds = 20'000;

// Strings as exec takes them.
std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

bool same_name(std::string_view a, std::string_view b) {
  return a.substr(0, a.find('=')) == b.substr(0, b.find('='));
}

// This program's environment with the given variables in the place of its own.
std::vector<std::string> environment_with(const std::vector<std::string>& given) {
  std::vector<std::string> all = given;
  for (char** own = environ; *own != nullptr; ++own) {
    bool is_given = false;
    for (const std::string& variable : given) is_given |= same_name(variable, *own);
    if (!is_given) all.emplace_back(*own);
  }
  return all;
}

// What becomes of the streams and the group of a program that starts.
class Start {
 public:
  Start() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
  }
  ~Start() {
    posix_spawnattr_destroy(&attributes_);
    posix_spawn_file_actions_destroy(&actions_);
    for (const int end : given_) ::close(end);
  }
  Start(const Start&) = delete;
  Start& operator=(const Start&) = delete;

  // The child's end of a connection, closed here in any case.
  void own(int end) { given_.push_back(end); }
  void redirect(int stream, int end) { posix_spawn_file_actions_adddup2(&actions_, end, stream); }
  void redirect(int stream, const std::string& file) {
    posix_spawn_file_actions_addopen(
        &actions_, stream, file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  }
  void lead_group() {
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes_, 0);
  }
  pid_t run(std::vector<std::string> arguments, const std::vector<std::string>& environment) {
    std::vector<std::string> variables = environment_with(environment);
    pid_t process = -1;
    const int failed = posix_spawnp(&process,
                                    arguments[0].c_str(),
                                    &actions_,
                                    &attributes_,
                                    pointers_to(arguments).data(),
                                    pointers_to(variables).data());
    if (failed == 0) return process;
    throw Error(fmt::format("cannot start {}: {}", arguments[0], std::strerror(failed)));
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
  std::vector<int> given_;
};

[[noreturn]] void fail_to_connect(const std::string& program) {
  throw Error(fmt::format("cannot make a connection to {}: {}", program, std::strerror(errno)));
}

}  // namespace

void ChildProcess::Descriptor::reset(int descriptor) {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = descriptor;
}

ChildProcess::ChildProcess(Options options) : options_(std::move(options)) {
  const std::string& program = options_.arguments.at(0);
  Start start;
  std::array<int, 2> ends = {-1, -1};  // ours, the child's
  const auto read_from = [&](int stream, Descriptor& ours) {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_to_connect(program);
    ours.reset(ends[0]);
    start.own(ends[1]);
    start.redirect(stream, ends[1]);
  };
  if (options_.converse) {
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      fail_to_connect(program);
    }
    lines_.emplace(ends[0]);
    start.own(ends[1]);
    start.redirect(STDIN_FILENO, ends[1]);
    start.redirect(STDOUT_FILENO, ends[1]);
  }
  if (options_.read_output) read_from(STDOUT_FILENO, output_);
  if (options_.read_errors) read_from(STDERR_FILENO, errors_);
  if (!options_.output_file.empty()) start.redirect(STDOUT_FILENO, options_.output_file);
  if (!options_.errors_file.empty()) start.redirect(STDERR_FILENO, options_.errors_file);
  if (options_.own_group) start.lead_group();
  process_ = start.run(options_.arguments, options_.environment);
}

ChildProcess::~ChildProcess() {
  end();
}

std::string ChildProcess::read_output() {
  std::string text(65536, '\0');
  ssize_t n = 0;
  do {
    n = ::read(output_.get(), text.data(), text.size());
  } while (n < 0 && errno == EINTR);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

std::string ChildProcess::read_error_line() {
  std::string line;
  char c = 0;
  for (;;) {
    const ssize_t n = ::read(errors_.get(), &c, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return line;
    line += c;
    if (c == '\n') return line;
  }
}

void ChildProcess::send_signal(int signal) const {
  if (process_ > 0) ::kill(options_.own_group ? -process_ : process_, signal);
}

void ChildProcess::kill() const {
  send_signal(SIGKILL);
}

bool ChildProcess::has_ended(int wait_options) {
  if (process_ < 0) return true;
  int status = kUnknownStatus;
  struct rusage use = {};
  pid_t ended = -1;
  do {
    ended = ::wait4(process_, &status, wait_options, &use);
  } while (ended < 0 && errno == EINTR);
  if (ended == 0) return false;
  process_ = -1;
  ending_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  ending_.exit_code = ending_.signal > 0 ? 128 + ending_.signal : WEXITSTATUS(status);
  ending_.peak_resident_bytes = int64_t{use.ru_maxrss} * 1024;
  return true;
}

Ending ChildProcess::wait() {
  has_ended(/*wait_options=*/0);
  return ending_;
}

Ending ChildProcess::end() {
  lines_.reset();
  if (!options_.converse) send_signal(SIGTERM);
  const Deadline deadline = deadline_in(options_.patience_s);
  while (!has_ended(WNOHANG)) {
    if (std::chrono::steady_clock::now() >= deadline) {
      kill();
      return wait();
    }
    ::usleep(kPollMicroseconds);
  }
  return ending_;
}

}  // namespace reynard::process

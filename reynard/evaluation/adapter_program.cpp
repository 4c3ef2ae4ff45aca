#include "reynard/evaluation/adapter_program.h"

#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

extern char** environ;

namespace reynard::evaluation {

namespace {

constexpr size_t kLongestLine = size_t{1} << 30;  // bytes of an answer
constexpr int kPatienceAtEnd = 250;               // times 20 ms before it is killed

// Takes `socket`, which becomes the program's standard input and output: unlike a pipe, writing to
// one whose reader is gone is an error and no signal. The shell and all that it starts are a
// process group, so that they can be killed together.
int spawn(const std::string& command, int socket) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, socket, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  std::string shell = "/bin/sh";
  std::string option = "-c";
  std::string text = command;
  std::array<char*, 4> arguments = {shell.data(), option.data(), text.data(), nullptr};
  pid_t process = -1;
  const int failed =
      posix_spawn(&process, shell.c_str(), &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  ::close(socket);
  if (failed != 0) {
    throw Error(fmt::format("eval: --adapter: cannot start /bin/sh: {}", std::strerror(failed)));
  }
  return process;
}

std::optional<int64_t> token_of(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return {};
  return found->get<int64_t>();
}

int64_t count_of(const nlohmann::json& object, const char* key) {
  return std::max<int64_t>(0, token_of(object, key).value_or(0));
}

AdapterFacts facts_of(const nlohmann::json& hello) {
  if (!hello.contains("name") || !hello["name"].is_string()) {
    throw AdapterFailure("its first line has no \"name\"");
  }
  return {.name = hello["name"].get<std::string>(),
          .vocab_size = count_of(hello, "vocab_size"),
          .train_length = count_of(hello, "train_length"),
          .bos = token_of(hello, "bos"),
          .eos = token_of(hello, "eos"),
          .generates = hello.value("generates", nlohmann::json()) == true};
}

}  // namespace

AdapterProgram::AdapterProgram(const std::string& command, double timeout_s)
    : timeout_s_(timeout_s) {
  std::array<int, 2> ends = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Error(fmt::format("eval: --adapter: no socket: {}", std::strerror(errno)));
  }
  socket_ = ends[0];
  try {
    process_ = spawn(command, ends[1]);
    facts_ = facts_of(read_object(deadline()));
  } catch (...) {  // the destructor does not run
    kill();
    ::close(socket_);
    if (process_ > 0) ::waitpid(process_, nullptr, 0);
    throw;
  }
}

AdapterProgram::~AdapterProgram() {
  ::close(socket_);
  wait_for_end();
}

void AdapterProgram::kill() const {
  if (process_ > 0) ::kill(-process_, SIGKILL);
}

AdapterProgram::Deadline AdapterProgram::deadline() const {
  return std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s_);
}

nlohmann::json AdapterProgram::ask(const nlohmann::json& request) {
  const Deadline end = deadline();
  write_line(request.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n", end);
  return read_object(end);
}

bool AdapterProgram::wait_for(short events, Deadline deadline) const {
  const std::chrono::duration<double, std::milli> left =
      deadline - std::chrono::steady_clock::now();
  if (left.count() <= 0) return false;
  pollfd waiting{socket_, events, 0};
  ::poll(&waiting, 1, static_cast<int>(std::min(left.count() + 1, 1e8)));
  return true;
}

void AdapterProgram::write_line(const std::string& line, Deadline deadline) const {
  for (size_t sent = 0; sent < line.size();) {
    if (!wait_for(POLLOUT, deadline)) {
      throw AdapterFailure(fmt::format("it did not read its request within {:g} s", timeout_s_));
    }
    const ssize_t n =
        ::send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return;  // it has ended: reading its answer says so
    sent += static_cast<size_t>(n);
  }
}

nlohmann::json AdapterProgram::read_object(Deadline deadline) {
  const std::string line = read_line(deadline);
  nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    throw AdapterFailure(fmt::format("no JSON object in its line: {}", line.substr(0, 200)));
  }
  return object;
}

std::string AdapterProgram::read_line(Deadline deadline) {
  std::array<char, 65536> buffer;
  size_t searched = 0;
  size_t end = std::string::npos;
  while ((end = unread_.find('\n', searched)) == std::string::npos) {
    searched = unread_.size();
    if (unread_.size() > kLongestLine) throw AdapterFailure("an answer is longer than 1 GiB");
    if (!wait_for(POLLIN, deadline)) {
      throw AdapterFailure(fmt::format("no answer within {:g} s", timeout_s_));
    }
    const ssize_t n = ::recv(socket_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) {
      const int status = wait_for_end();
      throw AdapterFailure(WIFEXITED(status)
                               ? fmt::format("it ended with status {}", WEXITSTATUS(status))
                               : fmt::format("it was killed by signal {}", WTERMSIG(status)));
    }
    unread_.append(buffer.data(), static_cast<size_t>(n));
  }
  std::string line = unread_.substr(0, end);
  unread_.erase(0, end + 1);
  return line;
}

int AdapterProgram::wait_for_end() {
  int status = 0;
  for (int i = 0; process_ > 0 && ::waitpid(process_, &status, WNOHANG) == 0; ++i) {
    if (i >= kPatienceAtEnd) kill();
    ::usleep(20'000);
  }
  process_ = -1;
  return status;
}

}  // namespace reynard::evaluation

#include "tests/support/program.h"

#include "tests/support/files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace reynard::test {

namespace {

[[noreturn]] void run_child(const ProgramRun& run,
                            const std::string& program,
                            const std::string& output,
                            const std::string& errors) {
  std::vector<char*> arguments{const_cast<char*>("reynard")};
  for (const std::string& argument : run.arguments) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  const int files[] = {
      open(run.input_file.empty() ? "/dev/null" : run.input_file.c_str(), O_RDONLY),
      open((run.output_file.empty() ? output : run.output_file).c_str(), O_WRONLY | O_CREAT, 0600),
      open(errors.c_str(), O_WRONLY | O_CREAT, 0600)};
  for (int i = 0; i < 3; ++i) {
    if (dup2(files[i], i) != i) _exit(126);
  }
  if (!run.folder.empty() && chdir(run.folder.c_str()) != 0) _exit(126);
  if (run.memory_limit > 0) {
    const auto bytes = static_cast<rlim_t>(run.memory_limit);
    const rlimit limit{bytes, bytes};
    setrlimit(RLIMIT_DATA, &limit);
  }
  if (run.file_limit > 0) {
    const auto bytes = static_cast<rlim_t>(run.file_limit);
    const rlimit limit{bytes, bytes};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  execv(program.c_str(), arguments.data());
  _exit(127);
}

bool has_bytes(const std::string& path) {
  std::error_code missing;
  const std::uintmax_t size = std::filesystem::file_size(path, missing);
  return !missing && size > 0;
}

}  // namespace

ProgramResult run_program(const ProgramRun& run) {
  const TempDir folder;
  const std::string program = std::string(REYNARD_BINARY_DIR) + "/bin/reynard";
  const std::string output = folder / "output";
  const std::string errors = folder / "errors";
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot start " + program);
  if (child == 0) run_child(run, program, output, errors);
  const auto begin = std::chrono::steady_clock::now();
  int status = 0;
  bool interrupt = !run.interrupt_at_file.empty();
  while (waitpid(child, &status, WNOHANG) == 0) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (passed.count() > run.seconds_limit) kill(child, SIGKILL);
    if (interrupt && has_bytes(run.interrupt_at_file)) {
      kill(child, SIGINT);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      kill(child, SIGINT);
      interrupt = false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ProgramResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (run.output_file.empty()) result.output = read_file(output);
  result.errors = read_file(errors);
  return result;
}

}  // namespace reynard::test

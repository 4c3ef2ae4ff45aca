#include "bench/peer_process.h"

#include "reynard/tensor/check.h"
#include "reynard/tensor/installation.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cstdlib>
#include <limits>
#include <utility>

namespace reynard::bench {

PeerProcess::PeerProcess(const std::string& script, const std::vector<std::string>& arguments)
    : script_(script),
      python_(tensor::named_in_environment("REYNARD_PEER_PYTHON", REYNARD_BENCH_PYTHON)) {
  std::vector<std::string> command = {python_, tensor::project_file("bench/peers/" + script)};
  command.insert(command.end(), arguments.begin(), arguments.end());
  try {
    process_.emplace(process::ChildProcess::Options{
        .arguments = std::move(command),
        .environment = {fmt::format("OMP_NUM_THREADS={}", at::get_num_threads())},
        .converse = true});
  } catch (const Error&) {
    fail();
  }
}

void PeerProcess::fail() const {
  throw Error(fmt::format(
      "bench: the peer {} ended early or was not started (its messages are above); it runs with "
      "{}, $REYNARD_PEER_PYTHON names another Python",
      script_,
      python_));
}

std::string PeerProcess::ask(const std::string& line) {
  using Outcome = process::LineSocket::Outcome;
  const auto never = process::deadline_in(std::numeric_limits<double>::infinity());
  if (process_->lines().send(line, never) != Outcome::kDone) fail();
  process::LineSocket::Received answer = process_->lines().receive(never);
  if (answer.outcome != Outcome::kDone) fail();
  return std::move(answer.line);
}

double PeerProcess::ask_number(const std::string& line) {
  return ask_numbers(line, 1)[0];
}

std::vector<double> PeerProcess::ask_numbers(const std::string& line, size_t count) {
  const std::string answer = ask(line);
  std::vector<double> numbers;
  const char* rest = answer.c_str();
  for (char* end = nullptr;; rest = end) {
    const double number = std::strtod(rest, &end);
    if (end == rest) break;
    numbers.push_back(number);
  }
  if (*rest == '\0' && numbers.size() == count) return numbers;
  throw Error(fmt::format("bench: the peer {} answered {:?} to \"{}\"; expected {}",
                          script_,
                          answer,
                          line,
                          count == 1 ? "a number" : fmt::format("{} numbers", count)));
}

}  // namespace reynard::bench

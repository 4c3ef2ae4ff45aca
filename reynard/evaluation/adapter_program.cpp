#include "reynard/evaluation/adapter_program.h"

#include "reynard/config/json_file.h"

#include <fmt/format.h>

#include <algorithm>

namespace reynard::evaluation {

namespace {

using Outcome = process::LineSocket::Outcome;

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
    : timeout_s_(timeout_s),
      program_({.arguments = {"/bin/sh", "-c", command}, .converse = true, .own_group = true}) {
  try {
    facts_ = facts_of(read_object(process::deadline_in(timeout_s_)));
  } catch (...) {
    kill();  // what does not begin as it must is not waited for
    throw;
  }
}

nlohmann::json AdapterProgram::ask(const nlohmann::json& request) {
  const process::Deadline deadline = process::deadline_in(timeout_s_);
  const Outcome sent = program_.lines().send(
      request.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), deadline);
  if (sent == Outcome::kLate) {
    throw AdapterFailure(fmt::format("it did not read its request within {:g} s", timeout_s_));
  }
  return read_object(deadline);  // says so where it has ended
}

nlohmann::json AdapterProgram::read_object(process::Deadline deadline) {
  const auto [outcome, line] = program_.lines().receive(deadline);
  if (outcome == Outcome::kTooLong) throw AdapterFailure("an answer is longer than 1 GiB");
  if (outcome == Outcome::kLate) {
    throw AdapterFailure(fmt::format("no answer within {:g} s", timeout_s_));
  }
  if (outcome == Outcome::kEnded) {
    const process::Ending ending = program_.end();
    throw AdapterFailure(ending.signal > 0
                             ? fmt::format("it was killed by signal {}", ending.signal)
                             : fmt::format("it ended with status {}", ending.exit_code));
  }
  nlohmann::json object = config::parse_json_text(line);
  if (!object.is_object()) {
    throw AdapterFailure(fmt::format("no JSON object in its line: {}", line.substr(0, 200)));
  }
  return object;
}

}  // namespace reynard::evaluation

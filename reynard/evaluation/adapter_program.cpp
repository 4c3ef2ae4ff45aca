#include "reynard/evaluation/adapter_program.h"

#include "reynard/config/json_file.h"

#include <fmt/format.h>

#include <algorithm>

namespace reynard::evaluation {

namespace {

using Outcome = process::LineSocket::Outcome;

// No vocabulary or text is larger.
constexpr int64_t kMostTokens = int64_t{1} << 31;

[[noreturn]] void bad_field(const char* key, const nlohmann::json& value, const std::string& what) {
  throw AdapterFailure(
      fmt::format("its first line has \"{}\": {}; expected {}", key, value.dump(), what));
}

int64_t count_of(const nlohmann::json& hello, const char* key) {
  const nlohmann::json value = hello.value(key, nlohmann::json());
  if (value.is_null()) return 0;
  const std::optional<int64_t> count = index_below(kMostTokens, value);
  if (!count) bad_field(key, value, "a whole number below 2^31, or null for unknown");
  return *count;
}

std::optional<int64_t> token_of(const nlohmann::json& hello, const char* key, int64_t end) {
  const nlohmann::json value = hello.value(key, nlohmann::json());
  if (value.is_null() || value.dump() == "-1") return {};  // to == 2^64 - 1 equals -1
  const std::optional<int64_t> token = index_below(end, value);
  if (!token) {
    bad_field(key, value, fmt::format("a token id below {}, or -1 or null for none", end));
  }
  return token;
}

AdapterFacts facts_of(const nlohmann::json& hello) {
  if (!hello.contains("name") || !hello["name"].is_string()) {
    throw AdapterFailure("its first line has no \"name\"");
  }
  AdapterFacts facts{.name = hello["name"].get<std::string>(),
                     .vocab_size = count_of(hello, "vocab_size"),
                     .train_length = count_of(hello, "train_length"),
                     .generates = hello.value("generates", nlohmann::json()) == true};
  facts.bos = token_of(hello, "bos", facts.end_of_ids());
  facts.eos = token_of(hello, "eos", facts.end_of_ids());
  return facts;
}

std::string beginning(const std::string& text) {
  return text.substr(0, std::min<size_t>(text.find('\n'), 200));
}

}  // namespace

std::optional<int64_t> index_below(int64_t end, const nlohmann::json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(end)) return {};
  return value.get<int64_t>();
}

int64_t AdapterFacts::end_of_ids() const {
  return vocab_size > 0 ? vocab_size : kMostTokens;
}

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

nlohmann::json AdapterProgram::ask(nlohmann::json request) {
  if (const std::string& unasked = program_.lines().unread(); !unasked.empty()) {
    throw AdapterFailure("it wrote a line that nobody asked for: " + beginning(unasked));
  }
  request["id"] = ++asked_;
  const process::Deadline deadline = process::deadline_in(timeout_s_);
  const Outcome sent = program_.lines().send(config::json_text(request), deadline);
  if (sent == Outcome::kLate) {
    throw AdapterFailure(fmt::format("it did not read its request within {:g} s", timeout_s_));
  }
  nlohmann::json answer = read_object(deadline);  // says so where it has ended
  if (answer.contains("id") && answer["id"] != asked_) {
    throw AdapterFailure(
        fmt::format("it answered request {}; expected {}", answer["id"].dump(), asked_));
  }
  return answer;
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
  if (object.is_object()) return object;
  // As Python's json.dumps writes them. Another run would write the same.
  if (line.starts_with('{') &&
      (line.find("NaN") != std::string::npos || line.find("Infinity") != std::string::npos)) {
    throw Error("eval: the adapter's answer holds NaN or Infinity, which JSON does not have: " +
                beginning(line));
  }
  throw AdapterFailure("no JSON object in its line: " + beginning(line));
}

}  // namespace reynard::evaluation

#include "reynard/evaluation/adapter.h"

#include "reynard/tensor/check.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <string>
#include <utility>

extern char** environ;

namespace reynard::evaluation {

namespace {

constexpr size_t kLongestLine = size_t{1} << 30;  // bytes of an answer
constexpr double kRounding = 1e-3;  // a probability of one may come out a little above
constexpr int kPatienceAtEnd = 50;  // tenths of a second before it is killed

// Takes `socket`, which becomes the program's standard input and output: unlike a pipe, writing to
// one whose reader is gone is an error and no signal.
int spawn(const std::string& command, int socket) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, socket, STDOUT_FILENO);
  std::string shell = "/bin/sh";
  std::string option = "-c";
  std::string text = command;
  std::array<char*, 4> arguments = {shell.data(), option.data(), text.data(), nullptr};
  pid_t process = -1;
  const int failed =
      posix_spawn(&process, shell.c_str(), &actions, nullptr, arguments.data(), environ);
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

class AdapterScorer final : public Scorer {
 public:
  explicit AdapterScorer(Adapter& adapter) : adapter_(adapter) {}

  std::string cannot_answer(const Request& request) const override {
    if (std::holds_alternative<Probe>(request.query)) return "a look inside the model";
    if (std::holds_alternative<Generate>(request.query)) {
      return adapter_.facts().generates ? "" : "text written by the model";
    }
    return std::get<Score>(request.query).log_pruning_tolerance ? "pruning of its own" : "";
  }

  std::vector<Response> answer(std::span<const Request> requests) override {
    std::vector<Response> responses;
    for (const Request& request : requests) responses.push_back(ask(request));
    return responses;
  }
  void answer_each(std::span<const Request> requests, const Taker& take) override {
    for (size_t i = 0; i < requests.size(); ++i) take(i, ask(requests[i]));
  }

 private:
  Response ask(const Request& request) {
    if (const std::string what = cannot_answer(request); !what.empty()) {
      throw Error(fmt::format("eval: the adapter cannot give {}", what));
    }
    if (const auto* score = std::get_if<Score>(&request.query)) return ask_scores(*score);
    return ask_text(std::get<Generate>(request.query));
  }

  [[noreturn]] static void bad_answer(const std::string& problem) {
    throw Error(fmt::format("eval: the adapter's answer: {}", problem));
  }

  static const nlohmann::json& list_of(const nlohmann::json& answer,
                                       const char* name,
                                       size_t expected) {
    if (!answer.contains(name) || !answer[name].is_array() || answer[name].size() != expected) {
      bad_answer(fmt::format(
          "\"{}\" is no list of {} entries, one for each token but the first", name, expected));
    }
    return answer[name];
  }

  Scored ask_scores(const Score& score) {
    tensor::check_value(!score.continuation.empty(), "eval", "continuation", "", "not empty");
    std::vector<int64_t> tokens = score.context;
    tokens.insert(tokens.end(), score.continuation.begin(), score.continuation.end());
    Scored scored;
    nlohmann::json answer;
    if (tokens.size() > 1) {
      answer = adapter_.ask({{"tokens", tokens}});
      list_of(answer, "logprobs", tokens.size() - 1);
      list_of(answer, "hits", tokens.size() - 1);
    }
    for (size_t i = score.context.size(); i < tokens.size(); ++i) {
      if (i == 0) {  // nothing comes before it
        scored.logprobs.push_back(std::nanf(""));
        scored.hits.push_back(0);
        continue;
      }
      const nlohmann::json& logprob = answer["logprobs"][i - 1];
      const nlohmann::json& hit = answer["hits"][i - 1];
      if (!logprob.is_number() || !(logprob.get<double>() <= kRounding)) {
        bad_answer(fmt::format("logprobs[{}] is {}", i - 1, logprob.dump()));
      }
      const bool is_hit = hit == true || hit == 1;
      if (!is_hit && hit != false && hit != 0) {
        bad_answer(fmt::format("hits[{}] is {}; expected 0 or 1", i - 1, hit.dump()));
      }
      scored.logprobs.push_back(logprob.get<float>());
      scored.hits.push_back(is_hit ? 1 : 0);
    }
    return scored;
  }

  Generated ask_text(const Generate& query) {
    const nlohmann::json answer = adapter_.ask({{"prompt", query.prompt},
                                                {"max_tokens", query.max_tokens},
                                                {"temperature", query.temperature},
                                                {"seed", query.seed},
                                                {"stop", query.stop}});
    Generated generated;
    if (!answer.contains("tokens") || !answer["tokens"].is_array()) {
      bad_answer("\"tokens\" is no list");
    }
    for (const nlohmann::json& token : answer["tokens"]) {
      if (!token.is_number_unsigned()) bad_answer("\"tokens\" holds something that is no token id");
      generated.tokens.push_back(token.get<int64_t>());
    }
    return generated;
  }

  Adapter& adapter_;
};

}  // namespace

Adapter::Adapter(std::string command, double timeout_s)
    : command_(std::move(command)), timeout_s_(timeout_s) {
  std::array<int, 2> ends = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Error(fmt::format("eval: --adapter: no socket: {}", std::strerror(errno)));
  }
  program_.socket = ends[0];
  program_.process = spawn(command_, ends[1]);
  const nlohmann::json hello = read_object();
  if (!hello.contains("name") || !hello["name"].is_string()) {
    fail("its first line has no \"name\"");
  }
  facts_.name = hello["name"].get<std::string>();
  facts_.vocab_size = count_of(hello, "vocab_size");
  facts_.train_length = count_of(hello, "train_length");
  facts_.bos = token_of(hello, "bos");
  facts_.eos = token_of(hello, "eos");
  facts_.generates = hello.value("generates", nlohmann::json()) == true;
}

Adapter::Program::~Program() {
  if (socket >= 0) ::close(socket);
  for (int i = 0; process >= 0 && ::waitpid(process, nullptr, WNOHANG) == 0; ++i) {
    if (i >= kPatienceAtEnd) ::kill(process, SIGKILL);
    ::usleep(100'000);
  }
}

nlohmann::json Adapter::ask(const nlohmann::json& request) {
  write_line(request.dump() + "\n");
  nlohmann::json answer = read_object();
  if (answer.contains("error")) fail(answer["error"].dump());
  return answer;
}

void Adapter::fail(const std::string& problem) {
  throw Error(fmt::format("eval: --adapter \"{}\": {}", command_, problem));
}

void Adapter::write_line(const std::string& line) const {
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t n = ::send(program_.socket, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // it has ended: reading its answer says so
    sent += static_cast<size_t>(n);
  }
}

nlohmann::json Adapter::read_object() {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s_);
  std::array<char, 65536> buffer;
  size_t searched = 0;
  size_t end = std::string::npos;
  while ((end = unread_.find('\n', searched)) == std::string::npos) {
    searched = unread_.size();
    if (unread_.size() > kLongestLine) fail("an answer is longer than 1 GiB");
    const std::chrono::duration<double, std::milli> left = deadline - Clock::now();
    if (left.count() <= 0) fail(fmt::format("no answer within {:g} s", timeout_s_));
    pollfd waiting{program_.socket, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::min(left.count() + 1, 1e8)));
    if (ready <= 0) continue;
    const ssize_t n = ::read(program_.socket, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      int status = 0;
      ::waitpid(program_.process, &status, 0);
      program_.process = -1;
      fail(WIFEXITED(status) ? fmt::format("it ended with status {}", WEXITSTATUS(status))
                             : std::string("it was killed"));
    }
    unread_.append(buffer.data(), static_cast<size_t>(n));
  }
  const std::string line = unread_.substr(0, end);
  unread_.erase(0, end + 1);
  nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) fail(fmt::format("no JSON object in its line: {}", line.substr(0, 200)));
  return object;
}

std::unique_ptr<Scorer> make_adapter_scorer(Adapter& adapter) {
  return std::make_unique<AdapterScorer>(adapter);
}

}  // namespace reynard::evaluation

#include "reynard/evaluation/adapter.h"

#include <fmt/format.h>

#include <utility>

namespace reynard::evaluation {

Adapter::Adapter(AdapterOptions options) : options_(std::move(options)) {
  try {
    start();
  } catch (const AdapterFailure& failure) {
    throw Error(fmt::format("eval: --adapter \"{}\": {}", options_.command, failure.what()));
  }
  facts_ = program_->facts();
}

void Adapter::start() {
  program_ = std::make_unique<AdapterProgram>(options_.command, options_.timeout_s);
}

nlohmann::json Adapter::ask(const nlohmann::json& request) {
  const std::string who = fmt::format("--adapter \"{}\"", options_.command);
  Retries retries(options_.retries, who);
  for (;;) {
    try {
      if (!program_) start();
      if (program_->facts() != facts_) {
        throw Error(fmt::format(
            "eval: {}: started again it is another model: {}", who, program_->facts().name));
      }
      nlohmann::json answer = program_->ask(request);
      if (!answer.contains("error")) return answer;
      throw Error(fmt::format("eval: {}: {}", who, answer["error"].dump()));
    } catch (const AdapterFailure& failure) {
      if (program_) program_->kill();
      program_.reset();
      retries.failed(failure.what());
    }
  }
}

}  // namespace reynard::evaluation

// Settings of tasks: what would overflow in sums and products is refused.

#include "reynard/evaluation/evaluation_config.h"

#include "reynard/config/config.h"
#include "tests/support/errors.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace reynard::evaluation {
namespace {

TEST(EvaluationConfig, NumbersBeyondTheirLimitsAreRefused) {
  const auto expect_limit = [](const std::string& setting, const std::string& limit) {
    const std::vector<std::string> settings{"--" + setting + "=9223372036854775807"};
    EXPECT_SAYS(
        test::error_of([&] { config::from_toml<EvaluationConfig>("", "command line", settings); }),
        setting + " = 9223372036854775807; must be between " + limit);
  };
  for (const char* tokens : {"text_sample.prompt",
                             "text_sample.tokens",
                             "inside.gate_tokens",
                             "needle.max_tokens",
                             "passkey.max_tokens",
                             "babilong.max_tokens",
                             "few_shot.max_tokens",
                             "dictionary.query_tokens",
                             "dictionary.vocabulary",
                             "perplexity.tokens"}) {
    expect_limit(tokens, "1 and 2^40");
  }
  for (const char* tokens : {"needle.buffer", "dictionary.block", "dictionary.first_token"}) {
    expect_limit(tokens, "0 and 2^40");
  }
  for (const char* count : {"needle.lengths",
                            "needle.depths",
                            "needle.trials",
                            "passkey.trials",
                            "ruler.samples",
                            "babilong.samples",
                            "dictionary.repeats",
                            "few_shot.draws",
                            "forgetting_curve.points",
                            "attention_mass.contexts",
                            "attention_mass.samples",
                            "perplexity.documents",
                            "perplexity.streams"}) {
    expect_limit(count, "1 and 2^20");
  }
}

}  // namespace
}  // namespace reynard::evaluation

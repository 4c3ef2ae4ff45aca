#include "cli/eval_lengths.h"

#include "reynard/config/config.h"
#include "reynard/evaluation/evaluation_config.h"
#include "reynard/evaluation/length_rules.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace reynard::cli {

namespace {

bool is_given(const std::vector<std::string>& overrides, const std::string& option) {
  return std::any_of(overrides.begin(), overrides.end(), [&](const std::string& o) {
    return o.rfind(option, 0) == 0;
  });
}

void add_unless_given(std::vector<std::string>& overrides,
                      const char* key,
                      const std::string& value) {
  const std::string option = fmt::format("--{}", key);
  if (!is_given(overrides, option)) overrides.push_back(fmt::format("{}={}", option, value));
}

// Of the papers and the released code (docs/evaluation.md names them).
constexpr std::pair<const char*, const char*> kPublishedLengths[] = {
    {"per_position_loss.length", "65536"},
    {"needle.longest", "32000"},
    {"passkey.lengths", "2048,8192,16384,102400,262144"},
    {"ruler.lengths", "4096,8192,16384,32768,65536,131072"},
    {"babilong.lengths", "1000,2000,4000,8000,16000,32000,64000,128000,512000,1000000"},
    {"dictionary.lengths", "256,1024,4096,16384,65536,262144,1048576,4194304,16777216"},
    {"few_shot.lengths", "2048,4096,6144,8192"},
};

}  // namespace

std::vector<std::string> with_extrapolation(std::vector<std::string> overrides,
                                            int64_t times,
                                            int64_t train_length) {
  if (times == 0) return overrides;
  if (train_length == 0) {
    throw Error(
        "eval: --extrapolate: nothing says what length the model was trained on; give "
        "--train-length");
  }
  using evaluation::kMaxLength;
  tensor::check_value(
      times <= kMaxLength / train_length,
      "eval",
      "--extrapolate",
      times,
      fmt::format("at most {} times {} tokens", kMaxLength / train_length, train_length));
  std::string lengths;
  for (int64_t at = 1; at < times; at *= 2) lengths += fmt::format("{},", at * train_length);
  const int64_t longest = times * train_length;
  lengths += std::to_string(longest);
  add_unless_given(overrides, "per_position_loss.length", std::to_string(longest));
  // The model reads twice the target.
  add_unless_given(overrides, "forgetting_curve.length", std::to_string(longest / 2));
  add_unless_given(overrides, "needle.longest", std::to_string(longest));
  for (const char* key : {"passkey.lengths",
                          "ruler.lengths",
                          "babilong.lengths",
                          "dictionary.lengths",
                          "few_shot.lengths"}) {
    add_unless_given(overrides, key, lengths);
  }
  return overrides;
}

std::vector<std::string> with_published_lengths(std::vector<std::string> overrides) {
  for (const auto& [key, lengths] : kPublishedLengths) add_unless_given(overrides, key, lengths);
  return overrides;
}

std::vector<std::string> with_length(std::vector<std::string> overrides, int64_t length) {
  if (length == 0) return overrides;
  for (const char* key : {"per_position_loss.length",
                          "forgetting_curve.length",
                          "pruning.length",
                          "needle.longest",
                          "passkey.lengths",
                          "ruler.lengths",
                          "babilong.lengths",
                          "dictionary.lengths",
                          "perplexity.window",
                          "perplexity.length",
                          "few_shot.lengths",
                          "longbench.length",
                          "lm_eval.length"}) {
    add_unless_given(overrides, key, std::to_string(length));
  }
  // Its maps have whole cells.
  const auto config =
      config::from_toml<evaluation::EvaluationConfig>("", "command line", overrides);
  const int64_t cells = config.inside.cells;
  add_unless_given(
      overrides, "inside.length", std::to_string(std::max(cells, length - length % cells)));
  return overrides;
}

}  // namespace reynard::cli

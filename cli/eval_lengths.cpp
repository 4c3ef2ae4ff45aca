#include "cli/eval_lengths.h"

#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>

namespace reynard::cli {

namespace {

bool is_given(const std::vector<std::string>& overrides, const std::string& option) {
  return std::any_of(overrides.begin(), overrides.end(), [&](const std::string& o) {
    return o.rfind(option, 0) == 0;
  });
}

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
  std::string lengths;
  for (int64_t at = 1; at < times; at *= 2) lengths += fmt::format("{},", at * train_length);
  const int64_t longest = times * train_length;
  lengths += std::to_string(longest);
  const auto add = [&](const char* key, const std::string& value) {
    const std::string option = fmt::format("--{}", key);
    if (!is_given(overrides, option)) overrides.push_back(fmt::format("{}={}", option, value));
  };
  add("per_position_loss.length", std::to_string(longest));
  // The model reads twice the target.
  add("forgetting_curve.length", std::to_string(longest / 2));
  add("needle.longest", std::to_string(longest));
  for (const char* key : {"passkey.lengths",
                          "ruler.lengths",
                          "babilong.lengths",
                          "dictionary.lengths",
                          "few_shot.lengths"}) {
    add(key, lengths);
  }
  return overrides;
}

std::vector<std::string> with_length(std::vector<std::string> overrides, int64_t length) {
  if (length == 0) return overrides;
  for (const char* key : {"per_position_loss.length",
                          "forgetting_curve.length",
                          "pruning.length",
                          "inside.length",
                          "needle.longest",
                          "passkey.lengths",
                          "ruler.lengths",
                          "babilong.lengths",
                          "dictionary.lengths",
                          "few_shot.lengths",
                          "longbench.length"}) {
    const std::string option = fmt::format("--{}", key);
    if (!is_given(overrides, option)) overrides.push_back(fmt::format("{}={}", option, length));
  }
  return overrides;
}

}  // namespace reynard::cli

// Passkey retrieval with the prompt of Landmark Attention and LongLLaMA: a number between two
// stretches of the same five sentences.

#include "reynard/evaluation/prompt_task.h"
#include "reynard/evaluation/tasks/tasks.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <utility>

namespace reynard::evaluation {

namespace {

// Benchmark data, quoted exactly (NOTICE).
constexpr std::string_view kTask =
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I "
    "will quiz you about the important information there.";
constexpr std::string_view kFiller =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
constexpr std::string_view kPasskeyQuestion = "What is the pass key? The pass key is";
constexpr int64_t kLargestKey = 50000;

// The first `characters` characters of the filler unit, repeated with a space between.
std::string filler(int64_t characters) {
  std::string text;
  text.reserve(static_cast<size_t>(characters) + kFiller.size() + 1);
  while (static_cast<int64_t>(text.size()) < characters) {
    if (!text.empty()) text += ' ';
    text += kFiller;
  }
  text.resize(static_cast<size_t>(characters));
  return text;
}

std::string prompt_text(int64_t key, int64_t before, int64_t after) {
  return fmt::format("{}\n{}\nThe pass key is {}. Remember it. {} is the pass key.\n{}\n{}",
                     kTask,
                     filler(before),
                     key,
                     key,
                     filler(after),
                     kPasskeyQuestion);
}

// Tokens of a prompt with so much filler, wherever the key is: 16 more for cuts inside a word.
int64_t tokens_with(const Corpus& corpus, int64_t characters) {
  const std::string text = prompt_text(kLargestKey, characters / 2, characters - characters / 2);
  return static_cast<int64_t>(prompt_tokens(corpus, text).size()) + 16;
}

// The most characters of filler with which a prompt has at most `length` tokens.
int64_t filler_characters(const Corpus& corpus, int64_t length) {
  const auto tokens = [&](int64_t characters) { return tokens_with(corpus, characters); };
  tensor::check_value(tokens(0) <= length,
                      "passkey",
                      "--passkey.lengths",
                      length,
                      fmt::format(">= {}: the prompt without filler", tokens(0)));
  int64_t fits = 0;
  int64_t too_many = 16 * length;  // characters; no tokenizer has longer tokens for this text
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (tokens(middle) <= length ? fits : too_many) = middle;
  }
  return fits;
}

double score_passkey(const std::string& written, const nlohmann::json& line) {
  const size_t begin = written.find_first_of("0123456789");
  if (begin == std::string::npos) return 0;
  const size_t end = written.find_first_not_of("0123456789", begin);
  return written.substr(begin, end - begin) == line.at("answers")[0].get<std::string>() ? 1 : 0;
}

}  // namespace

std::unique_ptr<Task> make_passkey(const Corpus& corpus,
                                   const EvaluationConfig& config,
                                   const ModelFacts& model) {
  PasskeyConfig settings = config.passkey;
  settings.lengths = test_lengths(settings.lengths, model.train_length, [&](int64_t length) {
    return tokens_with(corpus, 0) <= length;
  });
  const auto characters = std::make_shared<std::map<int64_t, int64_t>>();
  for (const int64_t length : settings.lengths) {
    if (characters->contains(length)) continue;
    characters->emplace(length, filler_characters(corpus, length));
  }

  PromptSet set;
  set.name = "passkey";
  set.settings = {{"lengths", settings.lengths},
                  {"trials", settings.trials},
                  {"max_tokens", settings.max_tokens},
                  {"seed", settings.seed}};
  set.size = static_cast<int64_t>(settings.lengths.size()) * settings.trials;
  set.at = [&corpus, settings, characters](int64_t i) {
    const int64_t length = settings.lengths[i / settings.trials];
    const int64_t all = characters->at(length);
    PythonRandom random = sample_random(settings.seed, i);
    const int64_t before = random.up_to(all);
    const int64_t key = 1 + random.up_to(kLargestKey - 1);
    Prompt prompt;
    prompt.id = fmt::format("{} {}", length, i % settings.trials);
    prompt.about = {{"length", length},
                    {"trial", i % settings.trials},
                    {"depth", all > 0 ? static_cast<double>(before) / static_cast<double>(all) : 0},
                    {"filler", all}};
    prompt.tokens = prompt_tokens(corpus, prompt_text(key, before, all - before));
    prompt.answers = {std::to_string(key)};
    prompt.max_tokens = settings.max_tokens;
    return prompt;
  };
  set.score = score_passkey;
  set.group_by = {"length"};
  return make_prompt_task(corpus, std::move(set));
}

}  // namespace reynard::evaluation

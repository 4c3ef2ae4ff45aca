// Needle in a haystack: one sentence hidden at every depth of texts of every length, with the
// prompts of the FoX paper (Lin et al. 2025, section 4.3).

#include "reynard/evaluation/needle_judge.h"
#include "reynard/evaluation/prompt_task.h"
#include "reynard/evaluation/tasks/tasks.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <utility>

namespace reynard::evaluation {

namespace {

// Benchmark data, quoted exactly (NOTICE).
constexpr std::string_view kNeedle =
    "\nThe best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny "
    "day.\n";
constexpr std::string_view kEasyNeedle =
    "\nWhat is the best thing to do in San Francisco? Answer: The best thing to do in San "
    "Francisco "
    "is eat a sandwich and sit in Dolores Park on a sunny day.\n";
constexpr std::string_view kNeedleQuestion =
    "\n\nThere is an important piece of information hidden inside the above document. Now that "
    "you've read the document, I will quiz you about it. Answer the following question: What is "
    "the "
    "best thing to do in San Francisco? Answer: The best thing to do in San Francisco is";
// What the prompt does not already give away.
constexpr std::string_view kCore = "eat a sandwich and sit in Dolores Park on a sunny day";

// 1: full stops are those inside a text, and an answer may begin with line ends.
constexpr int64_t kNeedleScoring = 1;

std::vector<int64_t> grid(int64_t first, int64_t last, int64_t count) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < count; ++i) {
    const double step =
        count > 1 ? static_cast<double>(last - first) / static_cast<double>(count - 1) : 0;
    values.push_back(std::llround(static_cast<double>(first) + step * static_cast<double>(i)));
  }
  return values;
}

struct NeedleGrid {
  NeedleConfig config;
  Haystack haystack;
  std::vector<int64_t> needle, question, full_stop;
  std::vector<int64_t> lengths, depths;

  // Tokens of text around the needle.
  int64_t room(int64_t length) const {
    const auto suffix = static_cast<int64_t>(question.size()) + 1;
    return length - std::max(config.buffer, suffix) - static_cast<int64_t>(needle.size());
  }
};

// Where the needle goes: at the depth, or left of it behind the end of a sentence.
size_t insertion_place(const NeedleGrid& grid, const std::vector<int64_t>& text, int64_t depth) {
  if (depth >= 100) return text.size();
  size_t place = text.size() * static_cast<size_t>(depth) / 100;
  const bool known = grid.full_stop.size() == 1;
  while (place > 0 && known && text[place - 1] != grid.full_stop.front()) --place;
  return place;
}

Prompt prompt_of(const Corpus& corpus, const NeedleGrid& grid, int64_t index) {
  const auto num_depths = static_cast<int64_t>(grid.depths.size());
  const int64_t trial = index % grid.config.trials;
  const int64_t depth = grid.depths[index / grid.config.trials % num_depths];
  const int64_t length = grid.lengths[index / grid.config.trials / num_depths];
  PythonRandom random = sample_random(grid.config.seed, index);
  // The published script reads the same text in every cell, which leaves no variance to see.
  const int64_t begin =
      grid.config.same_haystack ? 0 : random.up_to(grid.haystack.num_tokens() - 1);
  const std::vector<int64_t> text = grid.haystack.read(begin, grid.room(length));
  const size_t place = insertion_place(grid, text, depth);

  Prompt prompt;
  prompt.id = fmt::format("{} {} {}", length, depth, trial);
  prompt.about = {{"length", length}, {"depth", depth}, {"trial", trial}, {"begin", begin}};
  if (corpus.bos) prompt.tokens.push_back(*corpus.bos);
  const auto add = [&](auto first, auto last) {
    prompt.tokens.insert(prompt.tokens.end(), first, last);
  };
  const auto middle = text.begin() + static_cast<std::ptrdiff_t>(place);
  add(text.begin(), middle);
  add(grid.needle.begin(), grid.needle.end());
  add(middle, text.end());
  add(grid.question.begin(), grid.question.end());
  prompt.answers = {std::string(kCore)};
  prompt.max_tokens = grid.config.max_tokens;
  return prompt;
}

// Fields of a sample line: the judge's rating, null where it gave none.
std::function<nlohmann::json(const std::string&)> rated_by_judge(const NeedleConfig& config) {
  EndpointOptions options;
  options.url = config.judge;
  options.model = config.judge_model;
  options.timeout_s = 120;
  if (const char* key = std::getenv(config.judge_key_variable.c_str())) options.api_key = key;
  return [judge = NeedleJudge(options)](const std::string& written) {
    const std::optional<int64_t> rating = judge.rating(written);
    return nlohmann::json{{"rating", rating ? nlohmann::json(*rating) : nlohmann::json()}};
  };
}

}  // namespace

config::EnumNames<NeedleMode> enum_names(NeedleMode) {
  return {{NeedleMode::kStandard, "standard"}, {NeedleMode::kEasy, "easy"}};
}

std::unique_ptr<Task> make_needle(const Corpus& corpus,
                                  const EvaluationConfig& config,
                                  const ModelFacts& model) {
  NeedleConfig settings = config.needle;
  if (settings.longest == 0) settings.longest = model.train_length ? 2 * model.train_length : 32000;
  const bool easy = settings.mode == NeedleMode::kEasy;
  const auto cells =
      std::make_shared<NeedleGrid>(NeedleGrid{settings,
                                              Haystack(corpus, "needle"),
                                              corpus.encode(easy ? kEasyNeedle : kNeedle),
                                              corpus.encode(kNeedleQuestion),
                                              inner_tokens(corpus, "."),
                                              {},
                                              ascending(grid(0, 100, settings.depths))});
  // As published, the shortest is 1/32 of the longest (1000 of 32,000); shorter ones hold no text.
  int64_t shortest = std::max<int64_t>(1, settings.longest / 32);
  if (cells->room(shortest) < 1) shortest += 1 - cells->room(shortest);
  tensor::check_value(
      shortest <= settings.longest,
      "needle",
      "--needle.longest",
      settings.longest,
      fmt::format(">= {}: needle and question alone have so many tokens", shortest));
  cells->lengths = ascending(grid(shortest, settings.longest, settings.lengths));

  PromptSet set;
  set.name = "needle";
  set.settings = {{"mode", config::name_of(settings.mode)},
                  {"lengths", cells->lengths},
                  {"depths", cells->depths},
                  {"trials", settings.trials},
                  {"buffer", settings.buffer},
                  {"same_haystack", settings.same_haystack},
                  {"max_tokens", settings.max_tokens},
                  {"seed", settings.seed},
                  {"scoring", kNeedleScoring}};
  set.size = static_cast<int64_t>(cells->lengths.size() * cells->depths.size()) * settings.trials;
  set.at = [&corpus, cells](int64_t i) { return prompt_of(corpus, *cells, i); };
  set.score = [](const std::string& written, const nlohmann::json& /*line*/) {
    return contains_folded(written, kCore) ? 1.0 : 0.0;
  };
  if (!settings.judge.empty()) {
    set.settings["judge"] = settings.judge;
    set.settings["judge_model"] = settings.judge_model;
    set.rate = rated_by_judge(settings);
  }
  set.group_by = {"length", "depth"};
  set.first_line = true;
  return make_prompt_task(corpus, std::move(set));
}

}  // namespace reynard::evaluation

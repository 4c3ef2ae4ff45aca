// Every task of the registry on real models, the quickstart's before training and a golden llama:
// finite numbers, samples, and a figure or text on the page.

#include "reynard/config/config.h"
#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/registry.h"
#include "reynard/evaluation/scorer.h"
#include "reynard/models/pretrained.h"
#include "reynard/report/page.h"
#include "reynard/training/experiment.h"
#include "tests/support/corpus.h"
#include "tests/support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

namespace reynard::evaluation {
namespace {

using nlohmann::json;

std::string english(int64_t bytes) {
  static const std::vector<std::string> kWords = {
      "river", "stone", "walks", "under", "cloud", "seven", "green", "horse", "quiet", "paper"};
  static const std::vector<std::string> kEndings = {"", "s", "ing", "ed", "ly", "er", "est"};
  std::string text;
  uint64_t state = 1;
  int64_t words = 0;
  while (static_cast<int64_t>(text.size()) < bytes) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    text += kWords[(state >> 33) % kWords.size()];
    text += kEndings[(state >> 40) % kEndings.size()];
    text += ++words % 12 == 0 ? ". " : " ";
  }
  return text;
}

// Eighty documents of English-like bytes. Ids of BOS and EOS where the vocabulary has them.
Corpus bytes_corpus(bool with_marks) {
  const std::string text = english(24000);
  std::vector<int64_t> tokens;
  for (const char c : text.substr(0, 24000)) tokens.push_back(static_cast<unsigned char>(c));
  std::vector<int64_t> ends;
  for (int64_t end = 300; end <= 24000; end += 300) ends.push_back(end);
  Corpus corpus = test::corpus_of(std::move(tokens), ends);
  corpus.bytes_per_token = 1;
  corpus.vocab_size = 256;
  if (with_marks) {
    corpus.bos = 256;
    corpus.eos = 257;
  }
  return corpus;
}

EvaluationConfig smallest(const std::filesystem::path& folder) {
  EvaluationConfig config;
  config.per_position_loss = {.length = 128, .rows = 3};
  config.forgetting_curve.length = 48;
  config.forgetting_curve.points = 3;
  config.forgetting_curve.repeats = 3;
  config.pruning.length = config.inside.length = 128;
  config.pruning.rows = 2;
  config.text_sample.prompt = config.text_sample.tokens = 8;
  config.needle.longest = 600;
  config.needle.lengths = config.needle.depths = 2;
  config.needle.max_tokens = config.passkey.max_tokens = config.babilong.max_tokens = 3;
  config.passkey.lengths = {500};
  config.passkey.trials = 2;
  config.ruler.tasks = {"niah_single_1", "vt"};
  config.ruler.lengths = {3000};
  config.ruler.samples = 1;
  config.babilong.tasks = {"qa1"};
  config.babilong.lengths = {2600};
  config.babilong.samples = 1;
  config.dictionary.lengths = {100};
  config.dictionary.query_tokens = 40;
  config.dictionary.repeats = 2;
  config.perplexity.window = 64;
  config.perplexity.tokens = 512;
  config.perplexity.length = 64;
  config.perplexity.documents = {1, 2};
  config.perplexity.streams = 2;
  std::string lines;
  for (int i = 0; i < 8; ++i) {
    lines += fmt::format("{{\"question\":\"q{}?\",\"answer\":\"{}\"}}\n", i, i % 2 ? "yes" : "no");
  }
  test::write_file(folder / "questions.jsonl", lines);
  config.few_shot.train = config.few_shot.test = (folder / "questions.jsonl").string();
  config.few_shot.lengths = {120};
  config.few_shot.draws = 2;
  test::write_file(
      folder / "trec.jsonl",
      R"({"input":"Q?","context":"text","answers":["yes"],"all_classes":["yes","no"]})");
  config.longbench.data = folder.string();
  config.longbench.length = 200;
  return config;
}

// Every number of a result is one; what may be unknown is null or left out.
void expect_finite(const json& value, const std::string& where) {
  if (value.is_number_float()) {
    EXPECT_TRUE(std::isfinite(value.get<double>())) << where;
  } else if (value.is_structured()) {
    for (const auto& [key, inner] : value.items()) expect_finite(inner, where + "." + key);
  }
}

void expect_every_task_runs(models::Decoder& decoder, bool with_marks) {
  const test::TempDir folder;
  const Corpus corpus = bytes_corpus(with_marks);
  const EvaluationConfig config = smallest(folder.path());
  const bool forgets = decoder.config().attention.forget_gate != models::ForgetGate::kNone;
  const ModelFacts facts{64, 0, forgets};
  const auto scorer = make_decoder_scorer(decoder, 16384);
  EvaluateOptions options{.folder = folder / "eval"};
  options.about = {{"name", "small"}, {"train_length", 64}};
  for (const TaskEntry& entry : tasks()) {
    if (!forgets && (entry.name == "pruning" || entry.name == "inside")) continue;
    SCOPED_TRACE(entry.name);
    const json summary = evaluate(*scorer, *entry.make(corpus, config, facts), options);
    EXPECT_GT(summary.at("effort").at("samples").get<int64_t>(), 0);
    EXPECT_FALSE(summary.at("metrics").empty() && summary.at("series").empty());
    expect_finite(summary.at("metrics"), "metrics");
    expect_finite(summary.at("series"), "series");
    if (entry.name == "text_sample") continue;  // words, no figure
    // Of this task alone.
    report::RunResults run;
    run.name = "small";
    run.evaluations[std::string(entry.name)] = summary;
    size_t figures = 0;
    for (const report::FigureGroup& group : report::figure_groups({run}, {})) {
      figures += group.figures.size();
    }
    EXPECT_GT(figures, 0U);
  }
}

TEST(EveryTask, RunsOnTheQuickstartsModel) {
  const std::string recipe = test::read_file(REYNARD_SOURCE_DIR "/configs/quickstart/fox.toml");
  const auto experiment = config::from_toml<training::Experiment>(recipe, "fox.toml", {});
  models::Decoder decoder(experiment.model, /*seed=*/3);
  ASSERT_NE(decoder.config().attention.forget_gate, models::ForgetGate::kNone);
  expect_every_task_runs(decoder, /*with_marks=*/true);
}

TEST(EveryTask, RunsOnAGoldenLlama) {
  REYNARD_NEED_SHARED();
  models::Decoder decoder = models::load_model(test::shared_folder() / "goldens/llama_gqa");
  ASSERT_EQ(decoder.config().vocab_size, 256);
  expect_every_task_runs(decoder, /*with_marks=*/false);
}

}  // namespace
}  // namespace reynard::evaluation

// Every task of the registry on real models, the quickstart's before training and a golden llama:
// finite numbers, samples, and a figure or text on the page. A log that was cut off anywhere, as a
// killed run leaves it, is gone on from without repeating or dropping a sample.

#include "reynard/config/config.h"
#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/registry.h"
#include "reynard/evaluation/scorer.h"
#include "reynard/models/pretrained.h"
#include "reynard/report/page.h"
#include "reynard/training/experiment.h"
#include "tests/support/corpus.h"
#include "tests/support/damaged_json.h"
#include "tests/support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <sstream>
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
  corpus.num_text_bytes = 24000;
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

// The same but for rounding: other samples share a pass.
void expect_close(const json& a, const json& b, const std::string& where) {
  if (a.is_number_float() && b.is_number()) {
    EXPECT_NEAR(a.get<double>(), b.get<double>(), 1e-3 * (1 + std::abs(a.get<double>()))) << where;
  } else if (a.is_structured()) {
    ASSERT_EQ(a.size(), b.size()) << where;
    if (a.is_object()) {
      for (const auto& [key, inner] : a.items()) expect_close(inner, b.at(key), where + "." + key);
    }
    for (size_t i = 0; a.is_array() && i < a.size(); ++i) expect_close(a[i], b[i], where);
  } else {
    EXPECT_EQ(a, b) << where;
  }
}

std::vector<std::string> sorted_ids(const std::string& log) {
  std::vector<std::string> ids;
  std::istringstream lines(log);
  std::string line;
  std::getline(lines, line);  // settings and identity
  while (std::getline(lines, line)) ids.push_back(json::parse(line).at("id"));
  std::sort(ids.begin(), ids.end());
  return ids;
}

void expect_goes_on(Scorer& scorer, Task& task, const EvaluateOptions& options, const json& whole) {
  const std::filesystem::path file = options.folder / (task.name() + ".jsonl");
  const std::string log = test::read_file(file);
  const size_t header = log.find('\n') + 1;
  for (const size_t end : {header + (log.size() - header) * 3 / 5, log.size() - 1}) {
    SCOPED_TRACE(fmt::format("cut after {} of {} bytes", end, log.size()));
    test::write_file(file, log.substr(0, end));
    const int64_t kept = std::count(log.begin() + static_cast<std::ptrdiff_t>(header),
                                    log.begin() + static_cast<std::ptrdiff_t>(end),
                                    '\n');
    const json again = evaluate(scorer, task, options);
    EXPECT_EQ(again.at("effort").at("reused_samples"), kept);
    EXPECT_EQ(sorted_ids(test::read_file(file)), sorted_ids(log));
    expect_close(whole.at("metrics"), again.at("metrics"), "metrics");
    expect_close(whole.at("series"), again.at("series"), "series");
  }
  // A sample that the task does not ask for counts nowhere.
  test::write_file(file, log + "{\"id\":\"zzz\"}\n");
  EXPECT_EQ(evaluate(scorer, task, options).at("effort").at("samples"),
            whole.at("effort").at("samples"));
  EXPECT_EQ(sorted_ids(test::read_file(file)), sorted_ids(log));
}

// Whatever stands in the summary where a number, a text or a list should.
void expect_page_of_damaged(report::RunResults run, json summary) {
  const std::string task = summary.at("task");
  test::with_each_part_damaged(summary, [&](const std::string& place, const json& damage) {
    run.evaluations[task] = summary;
    EXPECT_NO_THROW(report::page({run}, {}, "vegaEmbed"))
        << task << place << " = " << damage.dump();
  });
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
    const std::unique_ptr<Task> task = entry.make(corpus, config, facts);
    const json summary = evaluate(*scorer, *task, options);
    EXPECT_GT(summary.at("effort").at("samples").get<int64_t>(), 0);
    EXPECT_FALSE(summary.at("metrics").empty() && summary.at("series").empty());
    expect_finite(summary.at("metrics"), "metrics");
    expect_finite(summary.at("series"), "series");
    expect_goes_on(*scorer, *task, options, summary);
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
    if (with_marks) expect_page_of_damaged(run, summary);
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

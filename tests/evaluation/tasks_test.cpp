// Tasks run on a scorer made by hand: what they ask and what they make of the answers.

#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/packed_floats.h"
#include "reynard/evaluation/registry.h"
#include "reynard/evaluation/rows.h"
#include "reynard/evaluation/sample_log.h"
#include "reynard/tensor/check.h"
#include "tests/evaluation/copier.h"
#include "tests/support/corpus.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

namespace reynard::evaluation {
namespace {

TEST(ForgettingCurveTask, MeasuresHowFarAModelCopies) {
  const test::TempDir folder;
  const Corpus corpus = counting_corpus(1000);
  const auto task = task_named("forgetting_curve").make(corpus, small_config(), {});
  Copier copier(/*memory=*/33);  // reaches back over [bos] and a target of 32 tokens
  const auto summary = evaluate(copier, *task, {.folder = folder.path()});
  EXPECT_EQ(summary.at("metrics").at("fine_length").at("text"), "32");
  EXPECT_EQ(summary.at("metrics").at("coarse_length").at("text"), "32");
  EXPECT_EQ(summary.at("metrics").at("copies"), true);
  EXPECT_EQ(summary.at("series").at("points").size(), 8);
  EXPECT_EQ(summary.at("settings").at("bos"), 1);
}

TEST(ForgettingCurveTask, LastTestedLengthIsOpen) {
  const test::TempDir folder;
  const Corpus corpus = counting_corpus(1000);
  const auto task = task_named("forgetting_curve").make(corpus, small_config(), {});
  Copier copier(/*memory=*/1000);
  const auto summary = evaluate(copier, *task, {.folder = folder.path()});
  EXPECT_EQ(summary.at("metrics").at("fine_length").at("text"), ">64");
}

TEST(ForgettingCurveTask, SaysThatAModelHasNoSpecialTokens) {
  const test::TempDir folder;
  Corpus corpus = counting_corpus(1000);
  corpus.bos.reset();
  corpus.eos.reset();
  const auto task = task_named("forgetting_curve").make(corpus, small_config(), {});
  Copier copier(1000);
  const auto summary = evaluate(copier, *task, {.folder = folder.path()});
  EXPECT_TRUE(summary.at("metrics").at("bos").is_null());
  EXPECT_TRUE(summary.at("metrics").at("eos").is_null());
}

TEST(ForgettingCurveTask, CopyAndLmShareTheTargetAndScoreItsLaterHalf) {
  const Corpus corpus = counting_corpus(1000);
  const auto task = task_named("forgetting_curve").make(corpus, small_config(), {});
  const Requests requests = task->requests();
  ASSERT_EQ(requests.size, 8 * 3 * 2);
  const Request copy_request = requests.at(0);
  const Request lm_request = requests.at(1);
  const auto& copy = std::get<Score>(copy_request.query);
  const auto& lm = std::get<Score>(lm_request.query);
  EXPECT_EQ(copy.continuation, lm.continuation);
  EXPECT_EQ(copy.continuation.size(), 4);         // ceil(8 / 2)
  EXPECT_EQ(copy.context.size(), 1 + 8 + 1 + 4);  // [bos] S [bos] and half of S
  // Irrelevant text is the end of the corpus.
  EXPECT_EQ(std::vector<int64_t>(lm.context.begin() + 1, lm.context.begin() + 9),
            corpus.read(992, 1000));
}

TEST(ForgettingCurveTask, TargetsAndPrefixesComeFromTheTextsThatAreNamed) {
  const test::TempDir folder;
  Corpus corpus = counting_corpus(1000);
  Corpus train = counting_corpus(1000);
  train.name = "train";
  train.read = [](int64_t begin, int64_t end) {
    std::vector<int64_t> tokens(end - begin);
    std::iota(tokens.begin(), tokens.end(), 5000 + begin);
    return tokens;
  };
  corpus.others = {train};
  EvaluationConfig config = small_config();
  config.forgetting_curve.targets = {"text", "train", "random"};
  config.forgetting_curve.prefixes = {"same", "train", "random"};
  const auto task = task_named("forgetting_curve").make(corpus, config, {});
  const Requests requests = task->requests();
  ASSERT_EQ(requests.size, 8 * 3 * 3 * 4);
  const Request request = requests.at(2);  // text, prefix train
  EXPECT_EQ(request.id, "text lm train 8 0");
  const auto& score = std::get<Score>(request.query);
  EXPECT_EQ(std::vector<int64_t>(score.context.begin() + 1, score.context.begin() + 9),
            train.read(992, 1000));

  Copier copier(/*memory=*/33);
  const auto summary = evaluate(copier, *task, {.folder = folder.path()});
  const auto& curves = summary.at("series").at("curves");
  ASSERT_EQ(curves.size(), 9);
  EXPECT_EQ(curves[3].at("target"), "train");
  EXPECT_EQ(curves[3].at("fine_length").at("text"), "32");
  // Two natural prefixes at eight lengths for each of three targets.
  EXPECT_EQ(summary.at("series").at("prefix_tests").size(), 24);
  const auto& point = summary.at("series").at("points")[7];
  EXPECT_GT(point.at("lm_loss").get<double>(), 0);
}

TEST(ForgettingCurveTask, RandomPrefixesAreNotTheBeginningOfRandomTargets) {
  Corpus corpus = counting_corpus(1000);
  corpus.vocab_size = 1000;
  EvaluationConfig config = small_config();
  config.forgetting_curve.targets = config.forgetting_curve.prefixes = {"random"};
  const auto task = task_named("forgetting_curve").make(corpus, config, {});
  const Requests requests = task->requests();
  const Request request = requests.at(requests.size - 1);
  ASSERT_EQ(request.about.at("length"), 64);
  const auto& context = std::get<Score>(request.query).context;
  const std::vector<int64_t> prefix(context.begin() + 1, context.begin() + 65);
  EXPECT_NE(prefix, source_named(corpus, "random", 64, config.forgetting_curve.seed).read(0, 64));
}

TEST(ForgettingCurveTask, ATextNamedTwiceCountsOnce) {
  const Corpus corpus = counting_corpus(1000);
  EvaluationConfig config = small_config();
  const auto once = task_named("forgetting_curve").make(corpus, config, {});
  config.forgetting_curve.targets = {"text", "text"};
  config.forgetting_curve.prefixes = {"same", "same"};
  const auto twice = task_named("forgetting_curve").make(corpus, config, {});
  EXPECT_EQ(twice->settings(), once->settings());
  EXPECT_EQ(twice->requests().size, once->requests().size);
}

TEST(ForgettingCurveTask, UnknownSourceListsTheKnownOnes) {
  const Corpus corpus = counting_corpus(1000);
  EvaluationConfig config = small_config();
  config.forgetting_curve.prefixes = {"train"};
  try {
    task_named("forgetting_curve").make(corpus, config, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no text is called 'train'; known: text, random"),
              std::string::npos);
  }
}

TEST(Corpus, RandomTextIsTheSameForTheSameSeedAndHasNoSpecialTokens) {
  Corpus corpus = counting_corpus(10);
  corpus.bos = 20;
  corpus.eos = 21;
  const auto tokens = source_named(corpus, "random", 5000, 3).read(0, 5000);
  EXPECT_EQ(tokens, source_named(corpus, "random", 5000, 3).read(0, 5000));
  EXPECT_NE(tokens, source_named(corpus, "random", 5000, 4).read(0, 5000));
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 20), 0);
  EXPECT_EQ(*std::min_element(tokens.begin(), tokens.end()), 10);
  EXPECT_EQ(*std::max_element(tokens.begin(), tokens.end()), 257);
}

TEST(PerPositionLossTask, AveragesOverRowsAtEveryPosition) {
  const test::TempDir folder;
  const Corpus corpus = counting_corpus(600);
  const auto task = task_named("per_position_loss").make(corpus, small_config(), {});
  Copier scorer(0);
  const auto summary = evaluate(scorer, *task, {.folder = folder.path()});
  const auto& loss = summary.at("series").at("loss");
  ASSERT_EQ(loss.size(), 128);
  double total = 0;
  for (int i = 0; i < 128; ++i) {  // position i has BOS and i tokens before it
    EXPECT_FLOAT_EQ(loss[i].get<float>(), 1.0F / static_cast<float>(i + 1));
    total += loss[i].get<double>();
  }
  EXPECT_EQ(summary.at("metrics").at("rows"), 4);
  EXPECT_NEAR(summary.at("metrics").at("loss").get<double>(), total / 128, 1e-12);
  EXPECT_NEAR(summary.at("metrics").at("val/perplexity_len_128").get<double>(),
              std::exp(total / 128),
              1e-12);
  EXPECT_NEAR(summary.at("series").at("perplexity")[1].get<double>(), std::exp(0.75), 1e-6);
  // All rows are equal here.
  EXPECT_NEAR(summary.at("metrics").at("standard_error").get<double>(), 0, 1e-7);
}

TEST(PerPositionLossTask, ALineWithOtherNumbersOfLossesIsNamed) {
  const Corpus corpus = counting_corpus(600);
  const auto task = task_named("per_position_loss").make(corpus, small_config(), {});
  for (const size_t count : {127, 129}) {
    const test::TempDir folder;
    const std::filesystem::path path = folder / "t.jsonl";
    const nlohmann::json header = {{"task", "per_position_loss"}};
    SampleLog log(path, header, SampleLog::Others::kReplace);
    log.append({{"id", "a"}, {"losses", pack_floats(std::vector<float>(count, 1.0F))}});
    log.flush();
    EXPECT_SAYS(test::error_of([&] { task->measure(log.samples()); }),
                fmt::format("t.jsonl:2: {} losses; expected 128, one for each position; delete "
                            "this line",
                            count));
  }
}

// Losses of the i-th token are a + b log2 i with a slope b of the row's own.
class LogLine final : public Scorer {
 public:
  std::vector<Response> answer(std::span<const Request> requests) override {
    std::vector<Response> responses;
    for (const Request& request : requests) {
      const Score& score = std::get<Score>(request.query);
      seen.push_back(score.continuation);
      const double slope = -0.5 + 0.1 * static_cast<double>(answered++);
      Scored scored;
      for (size_t i = 1; i <= score.continuation.size(); ++i) {
        scored.logprobs.push_back(
            static_cast<float>(-(7 + slope * std::log2(static_cast<double>(i)))));
        scored.hits.push_back(0);
      }
      responses.emplace_back(std::move(scored));
    }
    return responses;
  }
  int64_t answered = 0;
  std::vector<std::vector<int64_t>> seen;
};

TEST(PerPositionLossTask, SlopesAreFittedWithinAndBeyondTheTrainingLength) {
  const test::TempDir folder;
  const Corpus corpus = counting_corpus(600);
  const auto task =
      task_named("per_position_loss").make(corpus, small_config(), {.train_length = 64});
  LogLine scorer;
  const auto summary = evaluate(scorer, *task, {.folder = folder.path()});
  const auto& slopes = summary.at("metrics").at("slopes");
  ASSERT_EQ(slopes.size(), 2);
  EXPECT_EQ(slopes[0].at("from"), 8);
  EXPECT_EQ(slopes[0].at("to"), 64);
  EXPECT_EQ(slopes[1].at("to"), 128);
  // Slopes -0.5, -0.4, -0.3, -0.2: mean -0.35, deviation 0.1291; t(3) = 3.1824.
  for (const auto& fit : slopes) {
    EXPECT_NEAR(fit.at("slope").get<double>(), -0.35, 1e-5);
    EXPECT_NEAR(fit.at("half_width").get<double>(), 3.1824 * 0.129099 / 2, 1e-4);
  }
  EXPECT_NEAR(slopes[0].at("loss_from").get<double>(), 7 - 0.35 * 3, 1e-5);
  EXPECT_NEAR(slopes[1].at("loss_to").get<double>(), 7 - 0.35 * 7, 1e-5);
  // The bands: four values at position 128 have the same deviation times log2 of the position.
  const double last = summary.at("series").at("half_width")[127].get<double>();
  EXPECT_NEAR(last, 3.1824 * 0.129099 / 2 * 6.6, 0.05);
  // Rows that are hardly longer tell nothing of what is beyond.
  const auto slopes_of = [&](int64_t train_length) {
    const test::TempDir other;
    const auto short_rows = task_named("per_position_loss")
                                .make(corpus, small_config(), {.train_length = train_length});
    return evaluate(scorer, *short_rows, {.folder = other.path()})
        .at("metrics")
        .at("slopes")
        .size();
  };
  EXPECT_EQ(slopes_of(85), 2U);  // 128 is 1.5 times as long
  EXPECT_EQ(slopes_of(86), 1U);
}

TEST(PerPositionLossTask, RolledRowsAreTheSameTokensRotated) {
  const Corpus corpus = counting_corpus(600);
  EvaluationConfig config = small_config();
  const auto plain = task_named("per_position_loss").make(corpus, config, {});
  config.per_position_loss.rolled = true;
  const auto rolled = task_named("per_position_loss").make(corpus, config, {});
  EXPECT_EQ(plain->settings().at("rolled"), false);
  EXPECT_EQ(rolled->settings().at("rolled"), true);
  int64_t moved = 0;
  for (int64_t i = 0; i < 4; ++i) {
    const Request a = plain->requests().at(i);
    const Request b = rolled->requests().at(i);
    std::vector<int64_t> tokens = std::get<Score>(b.query).continuation;
    EXPECT_EQ(std::get<Score>(rolled->requests().at(i).query).continuation, tokens);
    moved += tokens != std::get<Score>(a.query).continuation ? 1 : 0;
    // Only one seam: sorted, the rotation is the row.
    std::sort(tokens.begin(), tokens.end());
    EXPECT_EQ(tokens, std::get<Score>(a.query).continuation);
  }
  EXPECT_GE(moved, 3);
}

TEST(PerPositionLossTask, FirstTokenWithoutBosIsMasked) {
  const test::TempDir folder;
  Corpus corpus = counting_corpus(600);
  corpus.bos.reset();
  const auto task = task_named("per_position_loss").make(corpus, small_config(), {});
  Copier scorer(0);
  const auto summary = evaluate(scorer, *task, {.folder = folder.path()});
  EXPECT_TRUE(summary.at("series").at("loss")[0].is_null());
  double total = 0;
  for (int i = 1; i < 128; ++i) total += 1.0 / i;
  EXPECT_NEAR(summary.at("metrics").at("loss").get<double>(), total / 127, 1e-7);
}

TEST(PerPositionLossTask, BitsPerByteNeedTheSizeOfTheText) {
  const test::TempDir folder;
  Corpus corpus = counting_corpus(600);
  corpus.num_text_bytes = 1200;
  const auto task = task_named("per_position_loss").make(corpus, small_config(), {});
  Copier scorer(0);
  const auto metrics = evaluate(scorer, *task, {.folder = folder.path()}).at("metrics");
  EXPECT_NEAR(metrics.at("bits_per_byte").get<double>(),
              metrics.at("loss").get<double>() / std::log(2.0) / 2,
              1e-12);
}

TEST(Rows, LieInsideDocumentsAndDoNotOverlap) {
  const Corpus corpus = counting_corpus(1000, {10, 330, 340, 1000});
  const auto rows = cut_rows(corpus, {.length = 100, .rows = 100}, "per_position_loss");
  ASSERT_EQ(rows.size(), 3 + 6);
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool second = rows[i].document == 1;
    EXPECT_GE(rows[i].begin, second ? 10 : 340);
    EXPECT_LE(rows[i].begin + 100, second ? 330 : 1000);
    if (i > 0) {
      EXPECT_GE(rows[i].begin, rows[i - 1].begin + 100);
    }
  }
  EXPECT_EQ(cut_rows(corpus, {.length = 100, .rows = 4}, "per_position_loss").size(), 4);
}

TEST(Rows, FewAreFromAllOfTheTextAndBeginByTheSeed) {
  const Corpus corpus = counting_corpus(1050, {1050});
  const auto begins = [&](int64_t rows, int64_t seed) {
    std::vector<int64_t> begins;
    for (const Row& row :
         cut_rows(corpus, {.length = 100, .rows = rows, .seed = seed}, "pruning")) {
      begins.push_back(row.begin);
    }
    return begins;
  };
  const std::vector<int64_t> all = begins(10, 0);
  ASSERT_EQ(all.size(), 10U);
  EXPECT_EQ(begins(2, 0), (std::vector<int64_t>{all[0], all[5]}));
  EXPECT_EQ(begins(10, 0), all);
  EXPECT_NE(begins(10, 1), all);
}

TEST(Rows, TooShortDocumentsNameTheRemedy) {
  const Corpus corpus = counting_corpus(100, {40, 100});
  try {
    cut_rows(corpus, {.length = 64, .rows = 1}, "per_position_loss");
    FAIL();
  } catch (const Error& e) {
    const std::string message = e.what();
    EXPECT_NE(message.find("no document has 64 tokens, the longest has 60"), std::string::npos);
    EXPECT_NE(message.find("--per_position_loss.across_documents=true"), std::string::npos);
  }
  const RowOptions whole{.length = 64, .rows = 1, .seed = 0, .across_documents = true};
  EXPECT_EQ(cut_rows(corpus, whole, "per_position_loss").size(), 1);
}

TEST(Registry, UnknownTaskListsTheKnownOnes) {
  try {
    task_named("forgetting");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("known: per_position_loss, forgetting_curve"),
              std::string::npos);
  }
}

TEST(PackedFloats, ComeBackBitForBit) {
  for (size_t n = 0; n < 7; ++n) {
    std::vector<float> values;
    for (size_t i = 0; i < n; ++i) values.push_back(std::exp(static_cast<float>(i)) - 2);
    EXPECT_EQ(unpack_floats(pack_floats(values)), values);
  }
  EXPECT_THROW(unpack_floats("AAA*"), Error);
  EXPECT_THROW(unpack_floats("AAAA"), Error);
}

}  // namespace
}  // namespace reynard::evaluation

// Tokenizers that put a mark before a text (SentencePiece): what stands inside a text has other
// tokens than the same characters alone, and tasks measure what they do with other tokenizers.

#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/prompt_task.h"
#include "reynard/evaluation/registry.h"
#include "reynard/evaluation/scorer.h"
#include "tests/support/corpus.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

namespace reynard::evaluation {
namespace {

constexpr int64_t kMark = 300, kMarked = 1000, kEos = 257;

// Sentences of some 40 bytes; a tokenizer of bytes that, with `marks`, puts a mark before a text:
// as a token of its own before a line end, otherwise in one token with the first character.
Corpus sentences(bool marks) {
  std::vector<int64_t> tokens;
  for (int i = 0; i < 300; ++i) {
    for (const char c : "The river number " + std::to_string(i * 7919) + " walks under stones. ") {
      tokens.push_back(static_cast<unsigned char>(c));
    }
  }
  const auto size = std::ssize(tokens);
  Corpus corpus = test::corpus_of(std::move(tokens), {size});
  corpus.eos = kEos;
  if (!marks) return corpus;
  corpus.encode = [plain = corpus.encode](std::string_view text) {
    std::vector<int64_t> ids = plain(text);
    if (text.starts_with('\n')) {
      ids.insert(ids.begin(), kMark);
    } else if (!ids.empty()) {
      ids.front() += kMarked;
    }
    return ids;
  };
  corpus.decode = [plain = corpus.decode](std::vector<int64_t> ids) {
    for (int64_t& id : ids) id -= id >= kMarked ? kMarked : 0;
    return plain(ids);
  };
  return corpus;
}

TEST(MarkedTokenizer, NeedlesLieBehindTheLastFullStopBeforeTheirDepth) {
  EvaluationConfig config;
  config.needle = {.longest = 3000, .lengths = 3, .depths = 3, .trials = 2};
  for (const bool marks : {false, true}) {
    const Corpus corpus = sentences(marks);
    const auto task = task_named("needle").make(corpus, config, {});
    const Requests requests = task->requests();
    for (int64_t i = 0; i < requests.size; ++i) {
      const Request request = requests.at(i);
      const std::string text = corpus.decode(std::get<Generate>(request.query).prompt);
      const size_t needle = text.find("\nThe best thing to do in San Francisco is eat");
      const auto end = static_cast<double>(text.find("\n\nThere is an important piece") - 93);
      const auto depth = request.about.at("depth").get<double>() / 100;
      if (depth != 0.5 || request.about.at("length") < 1000) continue;
      EXPECT_EQ(text[needle - 1], '.') << request.id;
      EXPECT_LE(static_cast<double>(needle), depth * end) << request.id;
      EXPECT_GE(static_cast<double>(needle), depth * end - 60) << request.id;
    }
  }
}

// Writes the bytes of one text up to what stops it.
class Speaker final : public Scorer {
 public:
  explicit Speaker(std::string text) : text_(std::move(text)) {}
  std::vector<Response> answer(std::span<const Request> requests) override {
    std::vector<Response> responses;
    for (const Request& request : requests) {
      const auto& query = std::get<Generate>(request.query);
      const auto among = [](const std::vector<int64_t>& ids, int64_t id) {
        return std::find(ids.begin(), ids.end(), id) != ids.end();
      };
      Generated generated;
      bool has_text = false;
      for (const char c : text_) {
        const auto id = static_cast<int64_t>(static_cast<unsigned char>(c));
        const bool is_late = among(query.stop_after_text, id);
        if (among(query.stop, id) || (is_late && has_text)) break;
        has_text = has_text || !is_late;
        generated.tokens.push_back(id);
      }
      written = std::ssize(generated.tokens);
      responses.emplace_back(std::move(generated));
    }
    return responses;
  }
  int64_t written = 0;  // tokens of the last answer

 private:
  std::string text_;
};

TEST(MarkedTokenizer, AnswersEndWithTheFirstLineThatHasText) {
  const test::TempDir files;
  EvaluationConfig config;
  config.needle = {.longest = 2000, .lengths = 1, .depths = 1};
  config.few_shot.train = config.few_shot.test = (files / "questions.jsonl").string();
  config.few_shot.kind = FewShotKind::kAnswer;
  config.few_shot.lengths = {200};
  config.few_shot.draws = 1;
  test::write_file(config.few_shot.train, "{\"question\":\"who?\",\"answer\":\"the fox\"}\n");
  for (const bool marks : {false, true}) {
    const Corpus corpus = sentences(marks);
    for (const auto& [name, answer] : std::vector<std::pair<const char*, std::string>>{
             {"needle", " eat a sandwich and sit in Dolores Park on a sunny day"},
             {"few_shot", "the fox"}}) {
      for (const std::string before : {"", "\n", "\n\r\n\n"}) {
        Speaker speaker(before + answer + "\nmore");
        const test::TempDir folder;
        const auto summary = evaluate(
            speaker, *task_named(name).make(corpus, config, {}), {.folder = folder.path()});
        EXPECT_EQ(summary.at("metrics").at("score"), 1.0) << name << " " << marks << before;
        EXPECT_EQ(speaker.written, std::ssize(before + answer)) << name << " " << marks << before;
      }
    }
  }
}

TEST(MarkedTokenizer, TokensInsideATextHaveNoMark) {
  const Corpus corpus = sentences(true);
  EXPECT_EQ(inner_tokens(corpus, "."), std::vector<int64_t>{'.'});
  EXPECT_EQ(inner_tokens(corpus, "\n"), std::vector<int64_t>{'\n'});
  EXPECT_EQ(line_ends(corpus), (std::vector<int64_t>{'\n', '\r'}));
  EXPECT_EQ(line_ends(sentences(false)), line_ends(corpus));
  // Where what stands before joins a text, its tokens alone are the best guess.
  Corpus joins = sentences(false);
  joins.encode = [](std::string_view text) {
    return std::vector<int64_t>{static_cast<int64_t>(text.size())};
  };
  EXPECT_EQ(inner_tokens(joins, "."), std::vector<int64_t>{1});
}

}  // namespace
}  // namespace reynard::evaluation

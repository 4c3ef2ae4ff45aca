#pragma once
// Settings of the tasks that ask for something said in a long text; EvaluationConfig holds them.

#include "reynard/config/fields.h"
#include "reynard/evaluation/length_rules.h"

#include <cstdint>
#include <string>
#include <vector>

namespace reynard::evaluation {

enum class NeedleMode {
  kStandard,  // the sentence alone
  kEasy,      // with the question before it, as it is asked at the end
};
config::EnumNames<NeedleMode> enum_names(NeedleMode);

struct NeedleConfig {
  NeedleMode mode = NeedleMode::kStandard;
  int64_t longest = 0;  // 0: twice the training length, 32,000 when it is unknown
  int64_t lengths = 11;
  int64_t depths = 11;
  int64_t trials = 1;
  int64_t buffer = 200;
  bool same_haystack = false;
  int64_t max_tokens = 64;
  int64_t seed = 0;
  std::string judge = {};  // empty: none
  std::string judge_model = "gpt-4o-2024-08-06";
  std::string judge_key_variable = "OPENAI_API_KEY";

  static void fields(auto& self, auto&& field) {
    field("mode", self.mode, "standard: the sentence; easy: the question stands before it");
    field("longest",
          self.longest,
          "longest context; 0: twice the training length, 32000 when unknown",
          kLengthOrZero);
    field("lengths", self.lengths, "context lengths, evenly from longest/32", kCount);
    field("depths", self.depths, "depths, evenly from 0 to 100 %", kCount);
    field("trials", self.trials, "texts per length and depth", kCount);
    field("buffer", self.buffer, "tokens kept free for the question", kLengthOrZero);
    field("same_haystack",
          self.same_haystack,
          "the same text in every cell, as published; otherwise another in each");
    field("max_tokens", self.max_tokens, "tokens of an answer", kLength);
    field("seed", self.seed, "seed of where texts begin", config::non_negative);
    field("judge",
          self.judge,
          "URL of an OpenAI-compatible server that rates answers too; default: none");
    field("judge_model", self.judge_model, "name of the judge there");
    field("judge_key_variable",
          self.judge_key_variable,
          "environment variable that holds the judge's key");
  }
};

struct PasskeyConfig {
  std::vector<int64_t> lengths = {};  // empty: 1/4 to 4 times the training length
  int64_t trials = 50;
  int64_t max_tokens = 10;
  int64_t seed = 0;

  static void fields(auto& self, auto&& field) {
    field("lengths",
          self.lengths,
          "tokens of the prompt; default: 1/4, 1/2, 1, 2 and 4 times the training length",
          kLength);
    field("trials", self.trials, "prompts per length", kCount);
    field("max_tokens", self.max_tokens, "tokens of an answer", kLength);
    field("seed", self.seed, "seed of keys and places", config::non_negative);
  }
};

struct RulerConfig {
  std::vector<std::string> tasks = {};  // empty: all whose data is there
  std::vector<int64_t> lengths = {};    // empty: 1/4 to 4 times the training length
  int64_t samples = 500;
  int64_t seed = 42;
  std::string essays = {}, words = {}, squad = {},
              hotpot = {};  // files; empty: from the text, or left out
  bool skip_bad = false;

  static void fields(auto& self, auto&& field) {
    field("tasks", self.tasks, "of the 13 tasks; default: all whose data is there");
    field("lengths",
          self.lengths,
          "tokens of prompt and answer; default: 1/4, 1/2, 1, 2 and 4 times the training length",
          kLength);
    field("samples", self.samples, "samples per task and length", kCount);
    field("seed", self.seed, "seed of all samples", config::non_negative);
    field("essays", self.essays, "text file of the haystack; default: the text (not comparable)");
    field("words",
          self.words,
          "folder of the lists of the package wonderwords, or a file of words; default: those of "
          "the text (not comparable)");
    field("squad", self.squad, "dev-v2.0.json of SQuAD, for qa_1");
    field("hotpot", self.hotpot, "hotpot_dev_distractor_v1.json of HotpotQA, for qa_2");
    field("skip_bad", self.skip_bad, "leave malformed questions out");
  }
};

struct BabilongConfig {
  std::vector<std::string> tasks = {"qa1", "qa2", "qa3", "qa4", "qa5"};
  std::vector<int64_t> lengths = {};  // empty: 1/4 to 4 times the training length
  int64_t samples = 100;
  int64_t max_tokens = 20;
  int64_t seed = 0;
  std::string facts = {};  // folder of bAbI files; empty: generated
  bool skip_bad = false;

  static void fields(auto& self, auto&& field) {
    field("tasks", self.tasks, "of qa1 to qa5");
    field("lengths",
          self.lengths,
          "tokens of the prompt; default: 1/4, 1/2, 1, 2 and 4 times the training length",
          kLength);
    field("samples", self.samples, "questions per task and length", kCount);
    field("max_tokens", self.max_tokens, "tokens of an answer", kLength);
    field("seed", self.seed, "seed of facts and places", config::non_negative);
    field("facts", self.facts, "folder of bAbI files (qa1_*.txt, ...); default: generated");
    field("skip_bad", self.skip_bad, "leave malformed lines out");
  }
};

struct DictionaryConfig {
  std::vector<int64_t> lengths = {};  // empty: 256, 1024, ... up to 4 times the training length
  int64_t query_tokens = 256;
  int64_t block = 256;
  int64_t repeats = 10;
  int64_t seed = 0;
  int64_t first_token = 33;
  int64_t vocabulary = 64;

  static void fields(auto& self, auto&& field) {
    field("lengths",
          self.lengths,
          "tokens of definitions; default: 256, 1024, ... up to 4 times the training length",
          kLength);
    field("query_tokens", self.query_tokens, "tokens of queries behind them", kLength);
    field("block",
          self.block,
          "tokens that are filled up behind whole records, the model's local context; 0: off",
          kLengthOrZero);
    field("repeats", self.repeats, "dictionaries per length", kCount);
    field("seed", self.seed, "seed of keys and values", config::non_negative);
    field("first_token", self.first_token, "id of the first token", kLengthOrZero);
    field("vocabulary", self.vocabulary, "tokens of the vocabulary, marks included", kLength);
  }
};

struct PerplexityConfig {
  int64_t window = 0;
  int64_t stride = 0;
  int64_t tokens = 65536;
  int64_t length = 0;
  std::vector<int64_t> documents = {1, 2, 4, 8};
  int64_t streams = 16;
  int64_t seed = 0;

  static void fields(auto& self, auto&& field) {
    field("window",
          self.window,
          "tokens of a window; 0: the training length, 1024 when unknown",
          kLengthOrZero);
    field("stride",
          self.stride,
          "tokens scored by an overlapping window; 0: half of it",
          kLengthOrZero);
    field("tokens", self.tokens, "tokens scored in windows, at most", kLength);
    field("length",
          self.length,
          "tokens of each document of a stream; 0: half of the training length",
          kLengthOrZero);
    field("documents",
          self.documents,
          "documents of a stream; the last is scored; fewer when the text has fewer",
          kCount);
    field("streams",
          self.streams,
          "streams of each number of documents; fewer when the text has fewer",
          kCount);
    field("seed", self.seed, "seed of the documents' order", config::non_negative);
  }
};

enum class FewShotKind {
  kChoice,  // the most probable of all labels
  kAnswer,  // what the model writes
};
config::EnumNames<FewShotKind> enum_names(FewShotKind);

struct FewShotConfig {
  std::string train = {}, test = {};
  FewShotKind kind = FewShotKind::kChoice;
  std::vector<int64_t> lengths = {};  // empty: 1/4 to 4 times the training length
  int64_t draws = 20;
  int64_t items = 0;  // 0: all
  int64_t max_tokens = 50;
  int64_t seed = 0;
  bool skip_bad = false;

  static void fields(auto& self, auto&& field) {
    field("train", self.train, "file of examples, one {question, answer} per line");
    field("test", self.test, "file of questions to ask, likewise");
    field("kind", self.kind, "choice: the most probable label (TREC); answer: written (WebQS)");
    field(
        "lengths",
        self.lengths,
        "tokens of examples and question; default: 1/4, 1/2, 1, 2 and 4 times the training length",
        kLength);
    field("draws", self.draws, "draws of examples", kCount);
    field("items", self.items, "questions asked; 0: all of the file", config::non_negative);
    field("max_tokens", self.max_tokens, "tokens of a written answer", kLength);
    field("seed", self.seed, "seed of the draws", config::non_negative);
    field("skip_bad", self.skip_bad, "leave lines out that hold no question and answer");
  }
};

enum class LongbenchScoring {
  kUpstream,  // the first line counts for trec, triviaqa and samsum
  kFox,       // for all tasks
};
config::EnumNames<LongbenchScoring> enum_names(LongbenchScoring);

struct LongbenchConfig {
  std::string data = "longbench";
  std::vector<std::string> tasks = {};  // empty: all whose file is there
  LongbenchScoring scoring = LongbenchScoring::kUpstream;
  int64_t length = 15500;
  int64_t samples = 0;  // 0: all
  bool skip_bad = false;

  static void fields(auto& self, auto&& field) {
    field("data", self.data, "folder of the published files (narrativeqa.jsonl, ...)");
    field("tasks", self.tasks, "of the 14 English tasks; default: all whose file is there");
    field("scoring",
          self.scoring,
          "upstream: the first line counts for trec, triviaqa, samsum; fox: for all tasks");
    field("length", self.length, "tokens of a prompt; longer ones lose their middle", kLength);
    field("samples", self.samples, "first samples of each file; 0: all", config::non_negative);
    field("skip_bad", self.skip_bad, "leave malformed lines out");
  }
};

}  // namespace reynard::evaluation

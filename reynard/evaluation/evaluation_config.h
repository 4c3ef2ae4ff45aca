#pragma once
// The settings of every task, one section each: `reynard eval --forgetting_curve.grid=code`.

#include "reynard/config/fields.h"
#include "reynard/evaluation/forgetting_curve.h"
#include "reynard/evaluation/length_rules.h"
#include "reynard/evaluation/retrieval_config.h"

#include <cstdint>
#include <string>
#include <vector>

namespace reynard::evaluation {

struct PerPositionLossConfig {
  int64_t length = 0;  // tokens of a row; 0: twice the training length, 2048 when it is unknown
  int64_t rows = 64;   // fewer when the text has fewer
  int64_t seed = 0;
  bool across_documents = false;
  bool rolled = false;

  static void fields(auto& self, auto&& field) {
    field("length",
          self.length,
          "tokens of a row; 0: twice the training length, 2048 when unknown",
          kLengthOrZero);
    field("rows", self.rows, "rows to measure; fewer when the text has fewer", config::positive);
    field("seed", self.seed, "seed of where in its document a row begins", config::non_negative);
    field("across_documents",
          self.across_documents,
          "cut rows from the whole text instead of single documents");
    field("rolled",
          self.rolled,
          "rotate every row by a random number of tokens, as the published evaluation does");
  }
};

// As many as the test of their normality takes (shapiro_wilk).
inline constexpr config::Rule kTestable{1, 5000, false, "between 1 and 5000"};

struct ForgettingCurveConfig {
  int64_t length = 0;  // longest target; 0: the training length, 1024 when it is unknown
  CurveGrid grid = CurveGrid::kPaper;
  int64_t points = 32;
  int64_t repeats = 10;
  int64_t seed = 0;
  std::vector<std::string> targets = {"text"};
  std::vector<std::string> prefixes = {"same"};

  static void fields(auto& self, auto&& field) {
    field("length",
          self.length,
          "longest target; a sequence is about twice as long; 0: the training length, 1024 when "
          "unknown",
          kLengthOrZero);
    field("grid", self.grid, "tested lengths: l/n ... l (paper) or 8 ... l (code, log)");
    field("points", self.points, "lengths n of the grid", kCount);
    field("repeats", self.repeats, "targets per length", kTestable);
    field("seed", self.seed, "seed of where targets begin", config::non_negative);
    field("targets",
          self.targets,
          "texts that targets are cut from: text, a name given by --text NAME=FILE, or random");
    field("prefixes",
          self.prefixes,
          "texts that the unrelated prefix is the end of: same (as the target), text, a name, or "
          "random");
  }
};

struct PruningConfig {
  int64_t length = 0;  // tokens of a row; 0: the training length, 1024 when it is unknown
  int64_t rows = 16;
  int64_t seed = 0;
  double log_tolerance = 0;  // 0: the model's own, -10 when it has none

  static void fields(auto& self, auto&& field) {
    field("length",
          self.length,
          "tokens of a row; 0: the training length, 1024 when unknown",
          kLengthOrZero);
    field("rows", self.rows, "rows to measure; fewer when the text has fewer", config::positive);
    field("seed", self.seed, "seed of where in its document a row begins", config::non_negative);
    field("log_tolerance",
          self.log_tolerance,
          "natural log of the attention mass that may be dropped; 0: the model's own, or -10",
          config::non_positive);
  }
};

struct InsideConfig {
  int64_t length = 0;  // tokens of the sample; 0: the training length, 1024 when it is unknown
  int64_t document = 0;
  int64_t gate_tokens = 160;
  int64_t cells = 32;

  static void fields(auto& self, auto&& field) {
    field("length",
          self.length,
          "tokens of the sample; 0: the training length, 1024 when unknown",
          kLengthOrZero);
    field("document",
          self.document,
          "which document that is long enough to look at, from 0",
          config::non_negative);
    field("gate_tokens", self.gate_tokens, "last tokens whose gates are shown one by one", kLength);
    field("cells", self.cells, "rows and columns of the maps", config::positive);
  }
};

// Where in the sequence the context stands that goes on in the queries.
enum class OwnPlace {
  kRandom,  // anywhere among the others
  kFirst,   // farthest away
  kLast,    // right before the queries
};
config::EnumNames<OwnPlace> enum_names(OwnPlace);

struct AttentionMassConfig {
  std::vector<int64_t> contexts = {1, 2, 4, 8, 16, 32, 64};
  int64_t length = 0;  // tokens of a context; 0: an eighth of the training length, at least 16
  int64_t samples = 16;
  OwnPlace place = OwnPlace::kRandom;
  int64_t seed = 0;

  static void fields(auto& self, auto&& field) {
    field("contexts", self.contexts, "numbers d of contexts from different documents", kCount);
    field("length",
          self.length,
          "tokens of each context; 0: an eighth of the training length, 128 when unknown",
          kLengthOrZero);
    field("samples", self.samples, "sequences per number of contexts", kCount);
    field("place",
          self.place,
          "where the context of the queries' own document stands: random, first or last");
    field("seed", self.seed, "seed of documents and places", config::non_negative);
  }
};

struct TextSampleConfig {
  int64_t prompt = 256;
  int64_t tokens = 256;
  double temperature = 0.8;
  int64_t seed = 0;

  static void fields(auto& self, auto&& field) {
    field("prompt", self.prompt, "tokens of the prompt, from the text", kLength);
    field("tokens", self.tokens, "tokens to write", kLength);
    field("temperature",
          self.temperature,
          "of the second sample; the first is greedy",
          config::positive);
    field("seed", self.seed, "seed of prompt and sampling", config::non_negative);
  }
};

struct LmEvalConfig {
  std::vector<std::string> tasks = {};  // the harness's
  int64_t limit = 0;                    // 0: all
  int64_t num_fewshot = -1;             // -1: the task's own
  int64_t length = 4096;
  int64_t batch_size = 8;
  int64_t timeout = 3600;
  std::string include_path = {}, python = {}, model_args = {};
  std::string tokenizer_backend = "remote";

  static void fields(auto& self, auto&& field) {
    field("tasks", self.tasks, "tasks of the harness, separated by commas");
    field("limit", self.limit, "first samples of each task; 0: all", config::non_negative);
    field("num_fewshot", self.num_fewshot, "solved examples before each question; -1: the task's");
    field("length", self.length, "longest prompt; longer ones lose their beginning", kLength);
    field("batch_size", self.batch_size, "prompts in one request", config::positive);
    field("timeout", self.timeout, "seconds for a request", config::positive);
    field("include_path", self.include_path, "folder of further tasks (YAML)");
    field("python", self.python, "Python that has the harness; default: $REYNARD_PYTHON");
    field("tokenizer_backend",
          self.tokenizer_backend,
          "remote: the server's tokenizer; huggingface: name it in model_args");
    field("model_args", self.model_args, "added to the harness's --model_args");
  }
};

struct EvaluationConfig {
  PerPositionLossConfig per_position_loss;
  ForgettingCurveConfig forgetting_curve;
  PruningConfig pruning;
  InsideConfig inside;
  AttentionMassConfig attention_mass;
  TextSampleConfig text_sample;
  NeedleConfig needle;
  PasskeyConfig passkey;
  RulerConfig ruler;
  BabilongConfig babilong;
  DictionaryConfig dictionary;
  PerplexityConfig perplexity;
  FewShotConfig few_shot;
  LongbenchConfig longbench;
  LmEvalConfig lm_eval;

  static void fields(auto& self, auto&& field) {
    field("per_position_loss", self.per_position_loss, "loss by position");
    field("forgetting_curve", self.forgetting_curve, "copy accuracy by distance");
    field("pruning", self.pruning, "loss with and without pruning");
    field("inside", self.inside, "gates and attention maps");
    field("attention_mass", self.attention_mass, "attention on the right document");
    field("text_sample", self.text_sample, "generated text");
    field("needle", self.needle, "a sentence hidden in a long text");
    field("passkey", self.passkey, "a number hidden in a long text");
    field("ruler", self.ruler, "13 tasks of retrieval, tracing, counting and questions");
    field("babilong", self.babilong, "facts hidden in a long text");
    field("dictionary", self.dictionary, "values looked up in a dictionary");
    field("perplexity", self.perplexity, "documents in windows and streams");
    field("few_shot", self.few_shot, "questions after solved examples");
    field("longbench", self.longbench, "questions and summaries of long texts");
    field("lm_eval", self.lm_eval, "the installed lm-evaluation-harness");
  }
};

}  // namespace reynard::evaluation

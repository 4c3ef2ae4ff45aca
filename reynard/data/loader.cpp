#include "reynard/data/loader.h"

#include "reynard/data/row_source.h"
#include "reynard/data/token_file.h"
#include "reynard/tensor/counted.h"
#include "reynard/tensor/error.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace reynard::data {

namespace {

// Of a state; a state without them is the first text's, with an overlap of 0 and as many walks as a
// batch has rows.
constexpr const char* kText = "text";  // which one it goes on with
constexpr const char* kOverlap = "overlap";
constexpr const char* kWalks = "walks";

class RowLoader final : public Loader {
 public:
  RowLoader(const LoaderConfig& config, int64_t num_walks)
      : config_(config),
        num_walks_(num_walks > 0 ? num_walks : config.batch_size),
        file_(config.path),
        source_(file_, config_, num_walks_) {}

  Batch next() override {
    const int64_t B = config_.batch_size;
    const int64_t T = config_.length;
    Batch batch{at::empty({B, T}, at::kLong),
                at::empty({B, T}, at::kLong),
                at::ones({B, T}, at::kFloat),
                at::zeros({B, T}, at::kBool)};
    if (config_.mode == LoaderMode::kPadded) batch.padding = at::zeros({B}, at::kLong);
    auto* tokens = batch.tokens.mutable_data_ptr<int64_t>();
    auto* targets = batch.targets.mutable_data_ptr<int64_t>();
    auto* starts = batch.starts.mutable_data_ptr<bool>();
    auto* counts = batch.loss_mask.mutable_data_ptr<float>();
    const auto length = static_cast<size_t>(T);
    for (int64_t b = 0; b < B; ++b, ++num_rows_) {
      const Row row{{tokens + b * T, length},
                    {targets + b * T, length},
                    {starts + b * T, length},
                    {counts + b * T, length}};
      if (repeats(num_rows_)) {
        fill_repeated(file_, config_, static_cast<uint64_t>(num_rows_), row);
      } else {
        const int64_t padding = source_.fill(num_rows_ % num_walks_, row);
        if (batch.padding.defined()) batch.padding.mutable_data_ptr<int64_t>()[b] = padding;
      }
      if (config_.answer_mark >= 0) mask_questions(row);
    }
    return batch;
  }

  nlohmann::json state() const override {
    nlohmann::json state = identity();
    state["num_rows"] = num_rows_;
    state["source"] = source_.state();
    return state;
  }

  void restore(const nlohmann::json& state) override {
    const nlohmann::json expected = identity();
    for (const auto& [key, value] : expected.items()) {
      const auto member = state.find(key);
      const bool may_be_missing = key == kText || (key == kOverlap && value == 0) ||
                                  (key == kWalks && value == config_.batch_size);
      if (member == state.end() && may_be_missing) continue;
      if (member == state.end() && key == kWalks) {
        throw Error(fmt::format(
            "loader state: the micro-batches of a step shared the {} of a batch with mode = "
            "\"ordered\", as in earlier versions; now each has its own, {} in all, and the run "
            "cannot go on; begin one with these weights (--run.start_from names this checkpoint, "
            "--run.folder another folder)",
            counted(config_.batch_size, "row"),
            value.dump()));
      }
      if (member == state.end() || *member != value) {
        throw Error(
            fmt::format("loader state: {} is {}; this run has {}; resume with the settings "
                        "and the token file of the run",
                        key,
                        member == state.end() ? "missing" : member->dump(),
                        value.dump()));
      }
    }
    const auto source = state.find("source");
    if (source == state.end()) throw Error("loader state: source is missing");
    num_rows_ = state_integer(state, "num_rows", std::numeric_limits<int64_t>::max());
    source_.restore(*source);
  }

  const TokenFile& file() const override { return file_; }
  int64_t rows_of_one_pass() const override { return source_.rows_of_one_pass(); }

 private:
  // Leaves in the loss what is behind answer marks of the row. A row that begins within an answer
  // leaves the rest of that one out.
  void mask_questions(const Row& row) const {
    const int64_t all = config_.answer_tokens > 0 ? config_.answer_tokens : row.tokens.size();
    int64_t left = 0;
    for (size_t t = 0; t < row.tokens.size(); ++t) {
      if (row.starts[t]) left = 0;
      if (row.tokens[t] == config_.answer_mark) left = all;
      row.counts[t] = left > 0 ? 1.0F : 0.0F;
      left = row.targets[t] == config_.answer_end_mark ? 0 : std::max<int64_t>(left - 1, 0);
    }
  }
  bool repeats(int64_t row) const {
    return config_.repeat_fraction > 0 &&
           unit(random_bits(static_cast<uint64_t>(config_.seed),
                            random_bits(kRepeatStream, 0, 0),
                            static_cast<uint64_t>(row))) < config_.repeat_fraction;
  }
  // What must be the same for a state to mean the same.
  nlohmann::json identity() const {
    nlohmann::json identity = {{"num_tokens", file_.num_tokens()},
                               {"num_documents", file_.num_documents()},
                               {"mode", static_cast<int>(config_.mode)},
                               {"batch_size", config_.batch_size},
                               {"length", config_.length},
                               {"seed", config_.seed},
                               {"repeat_fraction", config_.repeat_fraction}};
    if (config_.repeat_fraction > 0) identity["repeat_min_length"] = config_.repeat_min_length;
    if (config_.mode == LoaderMode::kPadded) identity["random_padding"] = config_.random_padding;
    if (config_.mode == LoaderMode::kOrdered) identity[kWalks] = num_walks_;
    identity[kOverlap] = config_.overlap;
    identity[kText] = file_.fingerprint();
    return identity;
  }

  LoaderConfig config_;
  int64_t num_walks_;
  TokenFile file_;
  RowSource source_;
  int64_t num_rows_ = 0;  // delivered
};

}  // namespace

config::EnumNames<LoaderMode> enum_names(LoaderMode) {
  return {{LoaderMode::kPacked, "packed"},
          {LoaderMode::kSlices, "slices"},
          {LoaderMode::kOrdered, "ordered"},
          {LoaderMode::kPadded, "padded"}};
}

void LoaderConfig::check(config::Problems& problems, const std::string& path) const {
  if (batch_size * length > (int64_t{1} << 31)) {
    problems.add(config::key(path, "batch_size"),
                 fmt::format("{} * {} must be at most 2^31 tokens",
                             config::key(path, "batch_size"),
                             config::key(path, "length")));
  }
  if (overlap > 0 && mode != LoaderMode::kOrdered) {
    problems.add(config::key(path, "overlap"), "must be 0 unless mode = \"ordered\"");
  }
  if (overlap >= length) {
    problems.add(config::key(path, "overlap"),
                 fmt::format("must be below {} = {}", config::key(path, "length"), length));
  }
  if (answer_mark < 0 && (answer_tokens > 0 || answer_end_mark >= 0)) {
    problems.add(config::key(path, answer_tokens > 0 ? "answer_tokens" : "answer_end_mark"),
                 fmt::format("has no effect without {}", config::key(path, "answer_mark")));
  }
  if (repeat_fraction > 0 && (mode == LoaderMode::kOrdered || mode == LoaderMode::kPadded)) {
    problems.add(config::key(path, "repeat_fraction"),
                 "must be 0 with mode = \"ordered\" and with \"padded\"");
  }
  if (repeat_fraction > 0 && repeat_min_length > length / 2) {
    problems.add(
        config::key(path, "repeat_min_length"),
        fmt::format("must be at most {} / 2 = {}", config::key(path, "length"), length / 2));
  }
}

std::unique_ptr<Loader> make_loader(const LoaderConfig& config, int64_t num_walks) {
  if (config.path.empty()) {
    throw Error("loader: path is empty; give the token file that `reynard prepare` wrote");
  }
  config::Problems problems;
  config.check(problems, "");
  problems.throw_if_any();
  auto loader = std::make_unique<RowLoader>(config, num_walks);
  const TokenFile& file = loader->file();
  // Every document of a single token would give no pair (input, target) in any epoch.
  if (file.num_tokens() == file.num_documents()) {
    throw Error(fmt::format("{}: every document has one token; nothing can be predicted",
                            file.path().string()));
  }
  if (config.answer_mark >= 0 && file.header().num_answers > 0) {
    throw Error(fmt::format("{}: says itself which tokens count; leave data.answer_mark out",
                            file.path().string()));
  }
  // A repeated piece would count whole, questions too.
  if (config.repeat_fraction > 0 && file.header().num_answers > 0) {
    throw Error(
        fmt::format("data.repeat_fraction = {}: must be 0 with {}, of which only answers count",
                    config.repeat_fraction,
                    file.path().string()));
  }
  for (const auto& [name, mark] : {std::pair("answer_mark", config.answer_mark),
                                   std::pair("answer_end_mark", config.answer_end_mark)}) {
    if (mark < file.header().vocab_size) continue;
    throw Error(fmt::format("data.{} = {}: expected a token id below {}, the vocabulary of {}",
                            name,
                            mark,
                            file.header().vocab_size,
                            file.path().string()));
  }
  return loader;
}

}  // namespace reynard::data

#include "bench/forgetting_curve.h"

#include "bench/peak_growth.h"
#include "bench/train_step.h"
#include "reynard/data/random.h"
#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/freed_memory.h"
#include "reynard/evaluation/registry.h"
#include "reynard/evaluation/scorer.h"
#include "reynard/models/decoder.h"
#include "reynard/statistics/median.h"
#include "reynard/tensor/device.h"

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <system_error>
#include <vector>

namespace reynard::bench {

namespace {

namespace fs = std::filesystem;

// One document of random bytes: what it says does not matter for speed.
evaluation::Corpus random_corpus(int64_t tokens) {
  evaluation::Corpus corpus;
  corpus.num_tokens = tokens;
  corpus.documents = {{0, tokens}};
  corpus.vocab_size = 256;
  corpus.bos = 256;
  corpus.eos = 257;
  corpus.read = [](int64_t begin, int64_t end) {
    std::vector<int64_t> bytes;
    for (int64_t i = begin; i < end; ++i) {
      bytes.push_back(data::below(data::random_bits(0, 0, static_cast<uint64_t>(i)), 256));
    }
    return bytes;
  };
  return corpus;
}

// The sequences of one forward pass.
struct Pass {
  std::vector<int64_t> tokens, offsets;
};

// What the model must read, as few passes as fit `batch_tokens`.
std::vector<Pass> passes_of(evaluation::Task& task, int64_t batch_tokens) {
  std::vector<Pass> passes;
  const evaluation::Requests requests = task.requests();
  for (int64_t i = 0; i < requests.size; ++i) {
    const evaluation::Request request = requests.at(i);
    const auto& score = std::get<evaluation::Score>(request.query);
    const size_t size = score.context.size() + score.continuation.size() - 1;
    if (passes.empty() || static_cast<int64_t>(passes.back().tokens.size() + size) > batch_tokens) {
      passes.emplace_back();
    }
    Pass& pass = passes.back();
    pass.offsets.push_back(static_cast<int64_t>(pass.tokens.size()));
    pass.tokens.insert(pass.tokens.end(), score.context.begin(), score.context.end());
    pass.tokens.insert(pass.tokens.end(), score.continuation.begin(), score.continuation.end() - 1);
  }
  return passes;
}

// The whole evaluation and the passes that it needs, on one model.
class Curve {
 public:
  Curve(models::Decoder& decoder, const ForgettingCurveBench& options)
      : decoder_(decoder),
        batch_tokens_(options.batch_tokens),
        corpus_(random_corpus(8 * options.length)),
        scorer_(evaluation::make_decoder_scorer(decoder, options.batch_tokens)),
        folder_(fs::temp_directory_path() / fmt::format("reynard-bench-{}", ::getpid())) {
    evaluation::EvaluationConfig config;
    config.forgetting_curve.length = options.length;
    config.forgetting_curve.grid =
        options.grid == "log" ? evaluation::CurveGrid::kLog : evaluation::CurveGrid::kPaper;
    config.forgetting_curve.points = options.points;
    config.forgetting_curve.repeats = options.samples;
    config.forgetting_curve.seed = options.seed;
    task_ = evaluation::task_named("forgetting_curve").make(corpus_, config, {});
    passes_ = passes_of(*task_, options.batch_tokens);
  }
  ~Curve() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  Curve(const Curve&) = delete;
  Curve& operator=(const Curve&) = delete;

  void evaluate() {
    fs::remove_all(folder_);  // an evaluation that is there would only be read
    evaluation::evaluate(*scorer_, *task_, {.folder = folder_, .batch_tokens = batch_tokens_});
  }
  void run(const Pass& pass) const {
    const at::NoGradGuard no_grad;
    const at::Tensor hidden =
        decoder_.hidden(at::tensor(pass.tokens, at::kLong), at::tensor(pass.offsets, at::kLong));
    hidden[0][0].item();  // a GPU has then done all of it
  }
  void run_passes() const {
    for (const Pass& pass : passes_) run(pass);
  }
  const Pass& longest_pass() const {
    return *std::max_element(passes_.begin(), passes_.end(), [](const Pass& a, const Pass& b) {
      return a.tokens.size() < b.tokens.size();
    });
  }
  double num_tokens() const {
    double tokens = 0;
    for (const Pass& pass : passes_) tokens += static_cast<double>(pass.tokens.size());
    return tokens;
  }

 private:
  models::Decoder& decoder_;
  int64_t batch_tokens_;
  evaluation::Corpus corpus_;
  std::unique_ptr<evaluation::Scorer> scorer_;
  std::unique_ptr<evaluation::Task> task_;
  std::vector<Pass> passes_;
  fs::path folder_;
};

// Bytes that running takes at most above what is held before.
double peak_growth(at::Device device, const std::function<void()>& run) {
  const PeakGrowth growth(device);
  run();
  return growth.bytes();
}

}  // namespace

Rows bench_forgetting_curve(const ForgettingCurveBench& options) {
  const at::Device device = tensor::choose_device(options.device);
  evaluation::return_freed_memory();  // as reynard eval does
  models::Decoder decoder(fox_config(options.model), /*seed=*/0, device);
  decoder.set_compute_dtype(scalar_type(options.dtype));
  ForgettingCurveBench first = options;  // what is done once only, in little time
  first.length = 64;
  first.grid = "paper";
  first.points = first.samples = 1;
  Curve(decoder, first).evaluate();

  Curve curve(decoder, options);
  ForgettingCurveBench fewer = options;
  if (options.pass_samples > 0) fewer.samples = options.pass_samples;
  const Curve alone(decoder, fewer);
  const double one_sample = peak_growth(device, [&] { alone.run(alone.longest_pass()); });
  double whole = 0;
  std::vector<double> ours, peer;
  for (int i = 0; i < options.repeats; ++i) {
    ours.push_back(seconds_of(
        [&] { whole = std::max(whole, peak_growth(device, [&] { curve.evaluate(); })); }));
    peer.push_back(seconds_of([&] { alone.run_passes(); }));
  }
  Row row;
  row.name = "forgetting_curve";
  row.shape = fmt::format(
      "{} to {}, {} lengths x {}", options.model, options.length, options.points, options.samples);
  row.dtype = options.dtype;
  row.device = device_name(device);
  Row speed = row;
  speed.ours = curve.num_tokens() / statistics::median(ours);
  speed.peer = "own_forward";
  speed.peer_value = alone.num_tokens() / statistics::median(peer);
  speed.unit = "tokens/s";
  speed.ratio = speed.ours / speed.peer_value;
  if (fewer.samples != options.samples) {
    speed.shape += fmt::format(" (passes of {})", fewer.samples);
  }
  Row memory = row;
  memory.name = "forgetting_curve_memory";
  memory.ours = whole / 1e6;
  memory.peer = "one_sample";
  memory.peer_value = one_sample / 1e6;
  memory.unit = "MB";
  memory.ratio = one_sample / whole;
  return {speed, memory};
}

}  // namespace reynard::bench

#include "bench/forgetting_curve.h"

#include "bench/train_step.h"
#include "reynard/data/random.h"
#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/registry.h"
#include "reynard/evaluation/scorer.h"
#include "reynard/models/decoder.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <filesystem>
#include <memory>

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

}  // namespace

std::vector<Row> bench_forgetting_curve(const ForgettingCurveBench& options) {
  models::Decoder decoder(fox_config(options.model));
  const evaluation::Corpus corpus = random_corpus(8 * options.length);
  evaluation::EvaluationConfig config;
  config.forgetting_curve.length = options.length;
  config.forgetting_curve.points = options.points;
  config.forgetting_curve.repeats = options.samples;
  const auto task = evaluation::task_named("forgetting_curve").make(corpus, config, {});
  const auto scorer = evaluation::make_decoder_scorer(decoder, options.batch_tokens);
  const std::vector<Pass> passes = passes_of(*task, options.batch_tokens);
  double tokens = 0;
  for (const Pass& pass : passes) tokens += static_cast<double>(pass.tokens.size());

  const fs::path folder = fs::temp_directory_path() /
                          fmt::format("reynard-bench-{}", fs::hash_value(fs::current_path()));
  const Medians seconds = time_by_turns(
      options.repeats,
      [&] {
        fs::remove_all(folder);  // an evaluation that is there would only be read
        evaluation::evaluate(
            *scorer, *task, {.folder = folder, .batch_tokens = options.batch_tokens});
      },
      [&] {
        const at::NoGradGuard no_grad;
        for (const Pass& pass : passes) {
          decoder.hidden(at::tensor(pass.tokens, at::kLong), at::tensor(pass.offsets, at::kLong));
        }
      });
  fs::remove_all(folder);
  return {{.name = "forgetting_curve",
           .shape = fmt::format("{} to {}, {} lengths x {}",
                                options.model,
                                options.length,
                                options.points,
                                options.samples),
           .dtype = "f32",
           .device = cpu_name(),
           .ours = tokens / seconds.ours,
           .peer = "own_forward",
           .peer_value = tokens / seconds.peer,
           .unit = "tokens/s",
           .ratio = seconds.peer / seconds.ours}};
}

}  // namespace reynard::bench

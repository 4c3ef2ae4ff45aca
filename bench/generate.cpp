#include "bench/generate.h"

#include "bench/llama_model.h"
#include "bench/peer_process.h"
#include "reynard/attention/cache.h"
#include "reynard/models/decoder.h"
#include "reynard/models/pretrained.h"
#include "reynard/models/score.h"
#include "reynard/models/state.h"
#include "reynard/models/stepper.h"
#include "reynard/process/temporary_folder.h"
#include "reynard/statistics/median.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/device.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/std.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

namespace reynard::bench {

namespace {

constexpr int64_t kHeads = 12, kHeadDim = 64, kWidth = kHeads * kHeadDim;
constexpr int64_t kChunk = 512;  // of a prefill, as llama.cpp's
constexpr double kDecodeTolerance = -10;

at::Tensor one_offset() {
  return at::zeros({1}, at::kLong);
}

// The same work as the peer's: a prompt, or `tokens` greedy steps behind it.
class Llama {
 public:
  Llama(models::Decoder& decoder, const GenerateBench& options)
      : decoder_(decoder),
        prompt_((at::arange(options.prompt, at::kLong) * 7919 + 13).remainder(kLlamaVocabulary)),
        tokens_(options.tokens) {}

  // Reads the prompt anew; the most probable token behind it.
  int64_t prefill() {
    state_.emplace(decoder_, models::make_page_pool(decoder_));
    const std::array<models::SequenceState*, 1> states = {&*state_};
    at::Tensor hidden;
    for (int64_t done = 0; done < prompt_.size(0); done += kChunk) {
      const int64_t count = std::min(kChunk, prompt_.size(0) - done);
      hidden = decoder_.hidden(prompt_.narrow(0, done, count), one_offset(), states);
    }
    return best(hidden);
  }
  void decode() {
    const int64_t begin = state_->length();
    const std::array<models::SequenceState*, 1> states = {&*state_};
    int64_t token = 1;
    for (int64_t i = 0; i < tokens_; ++i) {
      token = best(decoder_.hidden(at::full({1}, token, at::kLong), one_offset(), states));
    }
    state_->truncate(begin);
  }

 private:
  int64_t best(const at::Tensor& hidden) const {
    const at::Tensor last = hidden.narrow(0, hidden.size(0) - 1, 1);
    return models::logits(decoder_, last).argmax().item<int64_t>();
  }

  models::Decoder& decoder_;
  at::Tensor prompt_;
  int64_t tokens_;
  std::optional<models::SequenceState> state_;
};

// How far ours' best token lies below the other's best, in standard deviations of the logits: two
// of 32,000 may be as good as equal; a wrong one lies about four below.
Row parity_row(const char* name,
               const std::string& shape,
               const std::string& dtype,
               at::Device device,
               double behind) {
  constexpr double kLimit = 0.2;
  if (!(behind < kLimit)) {
    throw Error(fmt::format(
        "bench generate: {} {} {}: ours writes a token whose logit is {:.3f} standard deviations "
        "below the best",
        name,
        shape,
        dtype,
        behind));
  }
  return {.name = name,
          .shape = shape,
          .dtype = dtype,
          .device = device_name(device),
          .ours = behind,
          .peer = "limit",
          .peer_value = kLimit,
          .unit = "sd",
          .ratio = 1};
}

// What products read. Activations, keys and values are bf16 in both.
models::WeightFormat weight_format(const std::string& dtype) {
  const std::optional format = config::value_named<models::WeightFormat>(dtype);
  tensor::check_value(format && format != models::WeightFormat::kF32,
                      "bench generate",
                      "--dtype",
                      dtype,
                      "bf16 or int8");
  return *format;
}

Rows llama_rows(const GenerateBench& options,
                const std::filesystem::path& model,
                const std::string& dtype) {
  models::Decoder decoder = models::open_model(model, weight_format(dtype));
  Llama llama(decoder, options);
  PeerProcess peer(
      "llama_cpp_peer.py",
      {model.string(), std::to_string(options.prompt), std::to_string(options.tokens), dtype});
  const int64_t ours = llama.prefill();
  peer.ask("prefill");
  const Row parity = parity_row("llama_parity",
                                fmt::format("134M T{}", options.prompt),
                                dtype,
                                decoder.device(),
                                peer.ask_number(fmt::format("behind {}", ours)));
  const Medians prefill = time_by_turns(
      options.repeats, [&] { llama.prefill(); }, [&] { peer.ask("prefill"); });
  const Medians decode = time_by_turns(
      options.repeats, [&] { llama.decode(); }, [&] { peer.ask("decode"); });
  const auto row = [&](const char* name, int64_t tokens, const Medians& seconds) {
    return with_rates({.name = name,
                       .shape = fmt::format("134M T{} +{}", options.prompt, options.tokens),
                       .dtype = dtype,
                       .device = device_name(at::kCPU),
                       .peer = "llama.cpp",
                       .unit = "tokens/s"},
                      static_cast<double>(tokens),
                      seconds);
  };
  return {parity,
          row("llama_prefill", options.prompt, prefill),
          row("llama_decode", options.tokens, decode)};
}

Rows llama_rows(const GenerateBench& options) {
  const process::TemporaryFolder folder;
  const std::filesystem::path model = folder.path() / "model";
  {
    models::Decoder decoder(llama_config(kWidth, options.layers), /*seed=*/1);
    models::save_model(decoder, model, "llama");
  }
  Rows rows;
  for (const std::string& dtype : options.dtypes) {
    for (const Row& row : llama_rows(options, model, dtype)) rows.push_back(row);
  }
  return rows;
}

models::DecoderConfig pruned_fox_config(int64_t layers) {
  models::DecoderConfig config;
  config.vocab_size = kLlamaVocabulary;
  config.hidden_size = kWidth;
  config.num_layers = layers;
  models::AttentionMixerConfig& attention = config.attention;
  attention.num_heads = kHeads;
  attention.qk_norm = models::QKNorm::kPerHead;
  attention.output_gate = models::OutputGate::kSigmoid;
  attention.output_norm = attention.key_shift = attention.value_shift = true;
  return config;
}

// Gate logits of one chunk: three heads of four forget quickly, one nearly nothing.
at::Tensor log_gates(int64_t tokens) {
  at::Tensor logits = at::randn({tokens, kHeads}) + 2;
  logits.narrow(1, kHeads - kHeads / 4, kHeads / 4).add_(10);
  return at::log_sigmoid(logits);
}

// The tokens that are decoded forget as those before them do: gates of a fresh model would end the
// memory of all heads within a hundred tokens.
void set_gates(const std::string& name, models::Parameter& parameter) {
  if (name.ends_with("fgate_proj.weight")) parameter.value.zero_();
  if (!name.ends_with("fgate_proj.bias")) return;
  parameter.value.fill_(2);
  parameter.value.narrow(0, kHeads - kHeads / 4, kHeads / 4).fill_(12);
}

// A state as after `length` tokens: keys as QK-norm gives them, the same in every state.
models::SequenceState filled_state(models::Decoder& decoder,
                                   const GenerateBench& options,
                                   double log_tolerance) {
  at::manual_seed(1);
  models::SequenceState state(decoder, models::make_page_pool(decoder));
  for (int64_t done = 0; done < options.length; done += kChunk) {
    const int64_t count = std::min(kChunk, options.length - done);
    for (int64_t layer = 0; layer < options.layers; ++layer) {
      at::Tensor k = at::randn({count, kHeads, kHeadDim});
      k = (k / k.norm(2, -1, true) * std::sqrt(kHeadDim)).to(decoder.device(), at::kBFloat16);
      const at::Tensor v = at::randn({count, kHeads, kHeadDim}).to(k);
      state.cache(layer).append(k, v, log_gates(count).to(k.device()));
      state.remember(layer, {.k = k.flatten(1), .v = v.flatten(1)});
    }
    if (log_tolerance < 0) decoder.evict(std::array{&state}, log_tolerance);
  }
  return state;
}

double megabytes(const models::CacheUse& use) {
  return static_cast<double>(use.bytes_kept()) * 1e-6;
}

// Adds tokens to a text as generation::Generator does: on a GPU in recorded steps.
class Writer {
 public:
  Writer(models::Decoder& decoder, models::SequenceState& state, double log_tolerance)
      : decoder_(decoder), state_(state), log_tolerance_(log_tolerance) {
    if (decoder.device().is_cpu()) return;
    stepper_ = std::make_unique<models::Stepper>(decoder, state.cache(0).pool());
  }
  // On the host, where generation chooses a token.
  at::Tensor next_logits() {
    decoder_.set_log_pruning_tolerance(log_tolerance_);
    const std::array<int64_t, 1> token = {7};
    const std::array<models::SequenceState*, 1> states = {&state_};
    if (stepper_) return stepper_->logits(token, states).cpu();
    const at::Tensor tokens = at::tensor(token, at::kLong);
    return models::logits(decoder_, decoder_.hidden(tokens, one_offset(), states)).cpu();
  }
  void evict() { decoder_.evict(std::array{&state_}, log_tolerance_); }

 private:
  models::Decoder& decoder_;
  models::SequenceState& state_;
  double log_tolerance_;
  std::unique_ptr<models::Stepper> stepper_;
};

// Seconds of a token of each state, which take turns token by token, so that both have the machine
// at the same speed. The median of those between two evictions counts, since the system takes some
// milliseconds from single tokens; what eviction takes, they share.
Medians token_seconds(Writer& pruned, Writer& whole) {
  constexpr int64_t kTokens = attention::kPageTokens;
  std::vector<double> pruned_times, whole_times;
  for (int64_t i = 0; i < kTokens; ++i) {
    pruned_times.push_back(seconds_of([&] { pruned.next_logits(); }));
    whole_times.push_back(seconds_of([&] { whole.next_logits(); }));
  }
  const double evicting = seconds_of([&] { pruned.evict(); });
  const double ours = statistics::median(pruned_times) + evicting / static_cast<double>(kTokens);
  const double peer = statistics::median(whole_times);
  return {.ours = ours, .peer = peer, .ratio = peer / ours};
}

Rows pruned_rows(const GenerateBench& options,
                 models::Decoder& decoder,
                 const std::string& dtype,
                 models::SequenceState& pruned_state,
                 models::SequenceState& whole_state) {
  Writer pruned(decoder, pruned_state, kDecodeTolerance), whole(decoder, whole_state, 0);
  const auto best = pruned.next_logits().argmax().item<int64_t>();
  const at::Tensor exact = whole.next_logits()[0];
  const double behind = ((exact.max() - exact[best]) / exact.std()).item<double>();
  const double mb_pruned = megabytes(pruned_state.cache_use());
  const double mb_whole = megabytes(whole_state.cache_use());
  token_seconds(pruned, whole);
  std::vector<double> ours, peer, ratios;
  for (int i = 0; i < options.repeats; ++i) {
    const Medians turn = token_seconds(pruned, whole);
    ours.push_back(turn.ours), peer.push_back(turn.peer), ratios.push_back(turn.ratio);
  }
  Row time{
      .name = "pruned_decode",
      .shape = fmt::format("L{} H{} T{} D{}", options.layers, kHeads, options.length, kHeadDim),
      .dtype = dtype,
      .device = device_name(decoder.device()),
      .ours = 1e3 * statistics::median(ours),
      .peer = "unpruned",
      .peer_value = 1e3 * statistics::median(peer),
      .unit = "ms/token",
      .ratio = statistics::median(ratios)};
  Row memory = time;
  memory.name = "pruned_cache";
  memory.ours = mb_pruned, memory.peer_value = mb_whole, memory.unit = "MB";
  memory.ratio = mb_whole / mb_pruned;
  return {parity_row("pruned_parity", time.shape, dtype, decoder.device(), behind), time, memory};
}

// One pair of states for all dtypes: pages and evictions are the same.
Rows pruned_rows(const GenerateBench& options, at::Device device) {
  const process::TemporaryFolder folder;
  const std::filesystem::path model = folder.path() / "model";
  {
    models::Decoder decoder(pruned_fox_config(options.layers), /*seed=*/1);
    decoder.parameters(set_gates);
    models::save_model(decoder, model);
  }
  Rows rows;
  std::optional<models::SequenceState> pruned, whole;
  for (const std::string& dtype : options.dtypes) {
    models::Decoder decoder = models::open_model(model, weight_format(dtype), device);
    if (!pruned) {
      pruned = filled_state(decoder, options, kDecodeTolerance);
      whole = filled_state(decoder, options, 0);
    }
    rows += pruned_rows(options, decoder, dtype, *pruned, *whole);
  }
  return rows;
}

void check_for_gpu(const GenerateBench& options) {
  if (is_named(options.names, "llama")) {
    throw Error(
        "bench generate: llama.cpp runs on the CPU here; with --device cuda: --only pruned");
  }
  if (is_named(options.dtypes, "int8")) {
    throw Error(
        "bench generate: weights of int8 are for the CPU; with --device cuda: --dtype bf16");
  }
}

}  // namespace

Rows bench_generate(const GenerateBench& options) {
  using tensor::check_value;
  check_value(options.prompt >= 1, "bench generate", "--prompt", options.prompt, "at least 1");
  check_value(options.tokens >= 1, "bench generate", "--tokens", options.tokens, "at least 1");
  check_value(options.length >= 1, "bench generate", "--length", options.length, "at least 1");
  check_value(options.layers >= 1, "bench generate", "--layers", options.layers, "at least 1");
  const at::NoGradGuard no_grad;
  const at::Device device = tensor::choose_device(options.device);
  if (device.is_cuda()) check_for_gpu(options);
  Rows rows;
  for (const std::string& name : options.names) {
    rows += name == "llama" ? llama_rows(options) : pruned_rows(options, device);
  }
  return rows;
}

}  // namespace reynard::bench

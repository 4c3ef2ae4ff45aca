// What pruning and eviction really drop in a model that decodes, measured in f64 over every key it
// ever had: of its own queries, and of adversarial ones that point at what was evicted.

#include "reynard/attention/cache.h"
#include "reynard/attention/decode.h"
#include "reynard/attention/pruning.h"
#include "reynard/generation/generator.h"
#include "reynard/models/decoder.h"
#include "reynard/models/observer.h"
#include "reynard/tensor/error.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/device.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

namespace reynard::generation {
namespace {

constexpr double kLogTolerance = -6;
constexpr int64_t kTokens = 900;

// Two query heads per key/value head; decay times from a few tokens to more than the text needs to
// let go.
models::DecoderConfig forgetting_config() {
  models::DecoderConfig config = test::small_config();
  config.hidden_size = 64;
  config.attention.qk_norm = models::QKNorm::kPerHead;
  config.attention.num_heads = 8;
  config.attention.num_kv_heads = 4;
  config.attention.key_shift = config.attention.value_shift = true;
  config.attention.decay_time_min = 4;
  config.attention.decay_time_max = 400;
  return config;
}

// Everything that the layers' kernels were given, from the first token on.
struct Recorder : models::Observer {
  struct Layer {
    std::vector<at::Tensor> k, log_gate;
    at::Tensor q;  // (N, H, D) of the last call
  };
  std::vector<Layer> layers = std::vector<Layer>(2);

  bool wants(int64_t /*layer*/) override { return true; }
  void attention(int64_t layer, const models::AttentionView& view) override {
    layers[layer].k.push_back(view.k.clone());
    layers[layer].log_gate.push_back(view.log_gate.clone());
    layers[layer].q = view.q.clone();
  }
  // (T, G, D) and the gate sums (H, T), both f64.
  at::Tensor keys(int64_t layer) const { return at::cat(layers[layer].k).to(at::kDouble); }
  at::Tensor sums(int64_t layer) const {
    return at::cat(layers[layer].log_gate).to(at::kDouble).cumsum(0).t().contiguous();
  }
};

// The largest shares of a query's attention that lie before what paged attention reads for it,
// and in pages that were evicted.
struct Dropped {
  double unread = 0, evicted = 0;
  void raise(const Dropped& other) {
    unread = std::max(unread, other.unread);
    evicted = std::max(evicted, other.evicted);
  }
};

struct EvictionOfAModel : testing::Test {
  const at::NoGradGuard no_grad;
  models::Decoder decoder{forgetting_config(), /*seed=*/3, test::test_device()};
  const int64_t H = 8, G = 4, D = 8;
  std::vector<at::Tensor> q_weights, k_weights, bounds;  // per layer: (H, D), (G, D), (H)

  EvictionOfAModel() {
    decoder.set_log_pruning_tolerance(kLogTolerance);
    decoder.parameters([&](const std::string& name, models::Parameter& parameter) {
      if (name.ends_with("q_norm.weight")) q_weights.push_back(parameter.value.view({H, D}));
      if (name.ends_with("k_norm.weight")) k_weights.push_back(parameter.value.view({G, D}));
    });
    for (std::size_t i = 0; i < q_weights.size(); ++i) {
      bounds.push_back(
          attention::qk_norm_bound(q_weights[i], k_weights[i], H, 0, /*rotary=*/false, at::kFloat));
    }
  }

  // Pages of int8 from now on, and what bounds their keys.
  void keep_int8() {
    decoder.set_int8_cache(true);
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      bounds[i] = attention::qk_norm_bound_of_int8_keys(
          q_weights[i], k_weights[i], H, 0, /*rotary=*/false, at::kFloat);
    }
  }

  // (T, G, D) f64 as the decoder's pages keep them.
  at::Tensor kept_keys(const Recorder& recorder, int64_t layer) const {
    const at::Tensor keys = recorder.keys(layer);
    if (!decoder.int8_cache()) return keys;
    attention::LayerCache cache(std::make_shared<attention::PagePool>(attention::PageLayout{
                                    .head_dim = D, .group = H / G, .int8 = true}),
                                G);
    const at::Tensor given = keys.to(at::kFloat);
    cache.append(given, given);
    return cache.gather(0, G).k.to(at::kDouble);
  }

  // Weights of one query of each head, (H, D), over all keys: (H, T) f64.
  at::Tensor weights(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& sums) const {
    const at::Tensor by_head = keys.permute({1, 0, 2}).repeat_interleave(H / G, 0);  // (H, T, D)
    const at::Tensor logits =
        at::matmul(by_head, q.to(at::kDouble).unsqueeze(2)).squeeze(2) / std::sqrt(D);
    return at::softmax(logits - sums, 1);
  }

  // The query of the model's own QK-norm that points at the mean of the keys before `begin` and
  // away from the last one: weight * sqrt(D) * u for a unit vector u.
  at::Tensor adversarial(int64_t layer, const at::Tensor& keys, const std::vector<int64_t>& begin) {
    at::Tensor q = at::zeros({H, D}, q_weights[layer].options());
    for (int64_t h = 0; h < H; ++h) {
      const at::Tensor of_head = keys.select(1, h / (H / G));
      const int64_t T = of_head.size(0), end = std::max<int64_t>(1, begin[h / (H / G)]);
      const at::Tensor to = of_head.narrow(0, 0, end).mean(0) - of_head[T - 1];
      const at::Tensor u = q_weights[layer][h].to(at::kDouble) * to;
      q[h].copy_(q_weights[layer][h] * std::sqrt(D) * (u / u.norm()));
    }
    return q;
  }

  std::vector<int64_t> evicted_keys(models::SequenceState& state, int64_t layer) const {
    std::vector<int64_t> ends;
    for (int64_t g = 0; g < G; ++g) {
      const auto& pages = state.cache(layer).pages(g);
      ends.push_back(attention::kPageTokens *
                     std::ranges::count_if(pages, [](int32_t page) { return page < 0; }));
    }
    return ends;
  }

  Dropped dropped(models::SequenceState& state,
                  int64_t layer,
                  const at::Tensor& q,
                  const Recorder& recorder) const {
    const attention::LayerCache* caches[] = {&state.cache(layer)};
    const std::array<int64_t, 2> offsets = {0, 1};
    const attention::PagedOutput read =
        attention::paged_attention(q.unsqueeze(0),
                                   offsets,
                                   caches,
                                   bounds[layer],
                                   0,
                                   {.log_pruning_tolerance = kLogTolerance});
    const at::Tensor all = weights(q, kept_keys(recorder, layer), recorder.sums(layer));
    const std::vector<int64_t> ends = evicted_keys(state, layer);
    Dropped most;
    for (int64_t h = 0; h < H; ++h) {
      const auto share = [&](int64_t end) { return all[h].slice(0, 0, end).sum().item<double>(); };
      most.raise({share(read.start[h][0].item<int32_t>()), share(ends[h / (H / G)])});
    }
    return most;
  }
};

struct Measured {
  Dropped own, adversarial;
  models::CacheUse use;
};

struct EvictionMeasured : EvictionOfAModel {
  // Reads a part of the tokens in chunks and the rest one by one, freeing pages after each call.
  Measured run(const at::Tensor& tokens) {
    const auto pool = models::make_page_pool(decoder);
    models::SequenceState state(decoder, pool);
    const std::array<models::SequenceState*, 1> states = {&state};
    Recorder recorder;
    Measured measured;
    for (int64_t done = 0; done < kTokens;) {
      const int64_t count = done < 400 ? 100 : 1;
      decoder.hidden(tokens.narrow(0, done, count),
                     at::zeros({1}, at::kLong),
                     states,
                     {.observer = &recorder});
      done += count;
      const bool measures = count > 1 || done % 20 == 0;
      for (int64_t layer = 0; measures && layer < 2; ++layer) {
        const at::Tensor q = recorder.layers[layer].q[count - 1];
        measured.own.raise(dropped(state, layer, q, recorder));
      }
      decoder.evict(states, kLogTolerance);
      for (int64_t layer = 0; measures && layer < 2; ++layer) {
        const at::Tensor q =
            adversarial(layer, kept_keys(recorder, layer), evicted_keys(state, layer));
        measured.adversarial.raise(dropped(state, layer, q, recorder));
      }
    }
    measured.use = state.cache_use();
    return measured;
  }

  void expect_within_tolerance() {
    const double tolerance = std::exp(kLogTolerance);
    const Measured random = run(at::randint(48, {kTokens}, at::kLong));
    // Two halves whose keys are alike inside: one query can point at all of the first.
    at::Tensor halves = at::zeros({kTokens}, at::kLong);
    halves.narrow(0, 450, kTokens - 450).fill_(1);
    const Measured aimed = run(halves);
    for (const Measured& measured : {random, aimed}) {
      EXPECT_LE(measured.own.unread, tolerance);
      EXPECT_LE(measured.adversarial.unread, tolerance);
      // Local heads have let go, global ones have not; the reported bound covers what is gone.
      for (const std::vector<int64_t>& heads : measured.use.pages_kept) {
        EXPECT_LE(*std::ranges::min_element(heads), 5);
        EXPECT_EQ(*std::ranges::max_element(heads), measured.use.pages_seen);
      }
      EXPECT_LE(measured.use.log_evicted_share, kLogTolerance);
      EXPECT_LE(measured.adversarial.evicted, std::exp(measured.use.log_evicted_share));
    }
    EXPECT_GT(aimed.adversarial.evicted, 10 * aimed.own.evicted) << "the adversary aims badly";
  }
};

TEST_F(EvictionMeasured, DropsAtMostTheToleranceOfAnyQuery) {
  expect_within_tolerance();
}

TEST_F(EvictionMeasured, DropsAtMostTheToleranceOfAnyQueryFromInt8Pages) {
  if (!decoder.device().is_cpu()) GTEST_SKIP() << "int8 pages are for the CPU";
  keep_int8();
  expect_within_tolerance();
}

// Without QK-norm nothing is freed unless asked for; then what the model's own queries lose stays
// within the tolerance as long as no query or key is longer than those before.
TEST(EvictionByMeasuredNorms, FreesPagesOnRequestAlone) {
  const at::NoGradGuard no_grad;
  models::DecoderConfig config = forgetting_config();
  config.attention.qk_norm = models::QKNorm::kNone;
  models::Decoder decoder(config, /*seed=*/3, test::test_device());
  decoder.set_log_pruning_tolerance(kLogTolerance);
  const at::Tensor tokens = at::randint(48, {kTokens}, at::kLong);
  for (const bool requested : {false, true}) {
    decoder.set_measured_eviction(requested);
    models::SequenceState state(decoder, models::make_page_pool(decoder));
    const std::array<models::SequenceState*, 1> states = {&state};
    for (int64_t done = 0; done < kTokens; done += 100) {
      decoder.hidden(tokens.narrow(0, done, 100), at::zeros({1}, at::kLong), states);
      decoder.evict(states, kLogTolerance);
    }
    const models::CacheUse use = state.cache_use();
    EXPECT_EQ(use.bytes_saved() > 0, requested);
    EXPECT_LE(use.log_evicted_share, kLogTolerance);
    if (!requested) continue;
    // The newest query of a decoder that keeps everything loses as little.
    models::SequenceState whole(decoder, models::make_page_pool(decoder));
    const std::array<models::SequenceState*, 1> wholes = {&whole};
    decoder.set_log_pruning_tolerance(0);
    decoder.hidden(tokens, at::zeros({1}, at::kLong), wholes);
    const at::Tensor next = at::zeros({1}, at::kLong);
    const at::Tensor exact = decoder.hidden(next, at::zeros({1}, at::kLong), wholes);
    const at::Tensor freed = decoder.hidden(next, at::zeros({1}, at::kLong), states);
    EXPECT_LE((freed - exact).abs().max().item<double>(), 2 * std::exp(kLogTolerance));
    decoder.set_log_pruning_tolerance(kLogTolerance);
  }
  models::Decoder bounded(forgetting_config(), /*seed=*/3);
  EXPECT_THROW(bounded.set_measured_eviction(true), Error);
}

// Where a server's texts go on from: all page ends of the chunk that was read last, and the last
// one of what is written.
TEST_F(EvictionOfAModel, TextsGoBackToPageEnds) {
  Generator generator(decoder, {.chunk_tokens = 200});
  const at::Tensor ids = at::randint(48, {901}, at::kLong);
  const auto* first = ids.const_data_ptr<int64_t>();
  Sequence text = generator.start({first, first + 901}, {.max_tokens = 200});
  const models::SequenceState& state = text.state();
  while (!text.is_prefilled()) {
    const int64_t before = state.length() / attention::kPageTokens * attention::kPageTokens;
    generator.prefill(text);
    for (int64_t end = before; end <= state.length(); end += attention::kPageTokens) {
      EXPECT_TRUE(state.can_truncate(end)) << end << " of " << state.length();
    }
  }
  const int64_t evicted = generator.num_evicted();
  while (text.finished() == FinishReason::kNone) {
    generator.step(std::array{&text});
    const int64_t last = state.length() / attention::kPageTokens * attention::kPageTokens;
    EXPECT_TRUE(state.can_truncate(last)) << state.length();
  }
  EXPECT_GT(evicted, 0);
  EXPECT_GT(generator.num_evicted(), evicted);
}

// A prompt's last chunk is searched with the first token behind it, wherever its pages end.
TEST_F(EvictionOfAModel, TheFirstTokenFreesPagesOfTheLastChunk) {
  Generator generator(decoder, {.chunk_tokens = 900});
  const at::Tensor ids = at::randint(48, {900}, at::kLong);
  const auto* first = ids.const_data_ptr<int64_t>();
  Sequence text = generator.start({first, first + 900}, {.max_tokens = 3});
  while (!text.is_prefilled()) generator.prefill(text);
  EXPECT_EQ(generator.num_evicted(), 0);
  generator.step(std::array{&text});
  const int64_t evicted = generator.num_evicted();
  EXPECT_GT(evicted, 0);
  generator.step(std::array{&text});
  EXPECT_EQ(generator.num_evicted(), evicted) << "no page ended";
}

// Sums of gates go on from the last token, which no later one sees.
TEST(Eviction, AWindowOfOneTokenKeepsTheLastPage) {
  models::DecoderConfig config = test::small_config();
  config.attention.window = 1;
  models::Decoder decoder(config, /*seed=*/3, test::test_device());
  const auto written = [&](bool evict) {
    Generator generator(decoder, {.chunk_tokens = 128, .evict = evict});
    Sequence text = generator.start(std::vector<int64_t>(300, 7), {.max_tokens = 100});
    while (!text.is_prefilled()) generator.prefill(text);
    while (text.finished() == FinishReason::kNone) generator.step(std::array{&text});
    std::vector<int64_t> tokens;
    for (const ScoredToken& token : text.written()) tokens.push_back(token.token);
    EXPECT_LT(text.state().cache_use().bytes_kept(), text.state().cache_use().bytes_saved());
    return tokens;
  };
  EXPECT_EQ(written(true), written(false));
}

// The pool of a text that forgets stays small: freed pages are those of the tokens to come.
TEST_F(EvictionOfAModel, MemoryFalls) {
  const auto held_after = [&](bool evict) {
    Generator generator(decoder, {.chunk_tokens = 64, .evict = evict});
    const at::Tensor ids = at::randint(48, {4000}, at::kLong);
    const auto* first = ids.const_data_ptr<int64_t>();
    Sequence text = generator.start({first, first + 4000}, {.max_tokens = 1});
    while (!text.is_prefilled()) generator.prefill(text);
    EXPECT_EQ(generator.pool()->pages_in_use() * text.state().cache_use().page_bytes,
              text.state().cache_use().bytes_kept());
    return generator.pool()->keys().nbytes();
  };
  EXPECT_LE(held_after(true) * 2, held_after(false));
}

}  // namespace
}  // namespace reynard::generation

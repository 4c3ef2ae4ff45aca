// Recorded steps against Decoder::hidden, which reads the same caches its own way.

#include "reynard/models/stepper.h"

#include "reynard/models/decoder.h"
#include "reynard/models/score.h"
#include "reynard/tensor/error.h"
#include "tests/support/compare.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/device.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

namespace reynard::models {
namespace {

Decoder make(const DecoderConfig& config) {
  Decoder decoder(config, /*seed=*/1, test::test_device());
  test::spread_weights(decoder, /*seed=*/2);
  decoder.parameters(
      [](const std::string&, Parameter& parameter) { parameter.value.requires_grad_(false); });
  return decoder;
}

std::vector<int64_t> some_tokens(int64_t count, int64_t seed) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back((i * i + 7 * i * seed + seed) % 48);
  return tokens;
}

// Texts that are written twice: in recorded steps, and by calls of Decoder::hidden.
class Pair {
 public:
  explicit Pair(Decoder& decoder, int64_t max_pages = 0)
      : decoder_(decoder),
        pool_(make_page_pool(decoder, max_pages)),
        other_pool_(make_page_pool(decoder)),
        stepper_(decoder, pool_) {
    if (max_pages > 0) pool_->reserve();
  }

  // A text that begins with so many tokens.
  int64_t start(int64_t length) {
    stepped_.emplace_back(decoder_, pool_);
    plain_.emplace_back(decoder_, other_pool_);
    const auto text = static_cast<int64_t>(stepped_.size()) - 1;
    if (length > 0) {
      read({text}, {some_tokens(length, text + 1)}, stepped_);
      read({text}, {some_tokens(length, text + 1)}, plain_);
    }
    return text;
  }
  int64_t fork(int64_t text) {
    stepped_.push_back(stepped_[text].fork());
    plain_.push_back(plain_[text].fork());
    return static_cast<int64_t>(stepped_.size()) - 1;
  }
  void truncate(int64_t text, int64_t length) {
    stepped_[text].truncate(length);
    plain_[text].truncate(length);
  }
  int64_t evict(int64_t text, double log_tolerance) {
    const int64_t pages = decoder_.evict(std::array{&stepped_[text]}, log_tolerance);
    EXPECT_EQ(decoder_.evict(std::array{&plain_[text]}, log_tolerance), pages);
    return pages;
  }
  // Without the stepper, as where tokens were guessed.
  void read_both(int64_t text, int64_t count) {
    const std::vector<int64_t> tokens = some_tokens(count, text + 3);
    read({text}, {tokens}, stepped_);
    read({text}, {tokens}, plain_);
  }
  // One token for each of these texts.
  void step(const std::vector<int64_t>& texts) {
    std::vector<std::vector<int64_t>> tokens;
    std::vector<int64_t> flat;
    std::vector<SequenceState*> states;
    for (const int64_t text : texts) {
      flat.push_back((stepped_[text].length() * 5 + text) % 48);
      tokens.push_back({flat.back()});
      states.push_back(&stepped_[text]);
    }
    const at::Tensor logits = stepper_.logits(flat, states);
    const at::Tensor expected = models::logits(decoder_, read(texts, tokens, plain_));
    ASSERT_EQ(logits.sizes(), expected.sizes());
    // A GPU adds the keys of a longer table in other runs.
    const bool is_bf16 = decoder_.compute_dtype() == at::kBFloat16;
    const double near = test::test_device().is_cpu() ? 0 : is_bf16 ? 0.05 : 2e-4;
    EXPECT_TENSORS_NEAR(logits, expected, near, near) << " at " << stepped_[texts[0]].length();
  }

  SequenceState& stepped(int64_t text) { return stepped_[text]; }
  Stepper& stepper() { return stepper_; }

 private:
  at::Tensor read(const std::vector<int64_t>& texts,
                  const std::vector<std::vector<int64_t>>& tokens,
                  std::vector<SequenceState>& of) {
    std::vector<int64_t> flat, offsets;
    std::vector<SequenceState*> states;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      offsets.push_back(std::ssize(flat));
      flat.insert(flat.end(), tokens[i].begin(), tokens[i].end());
      states.push_back(&of[texts[i]]);
    }
    const at::NoGradGuard no_grad;
    return decoder_.hidden(at::tensor(flat, at::kLong), at::tensor(offsets, at::kLong), states);
  }

  Decoder& decoder_;
  std::shared_ptr<attention::PagePool> pool_, other_pool_;
  std::vector<SequenceState> stepped_, plain_;
  Stepper stepper_;
};

std::vector<test::Variant> served_variants() {
  std::vector<test::Variant> served;
  for (const auto* variants : {&test::attention_variants(), &test::llama_variants()}) {
    for (const test::Variant& variant : *variants) {
      if (variant.name != "rope_dynamic") served.push_back(variant);
    }
  }
  return served;
}

class StepperOf : public testing::TestWithParam<test::Variant> {};
INSTANTIATE_TEST_SUITE_P(Variants,
                         StepperOf,
                         testing::ValuesIn(served_variants()),
                         [](const auto& info) { return info.param.name; });

// From prompts of no token, within a page, at its end and of several pages, through page ends.
TEST_P(StepperOf, ItsLogitsAreThoseOfTheDecoder) {
  Decoder decoder = make(GetParam().config);
  ASSERT_TRUE(decoder.takes_steps());
  Pair pair(decoder);
  std::vector<int64_t> texts;
  for (const int64_t length : {0, 5, 63, 64, 130}) texts.push_back(pair.start(length));
  for (int i = 0; i < 70; ++i) pair.step(texts);
}

TEST(Stepper, IsNotForAllDecoders) {
  for (const test::Variant& variant : test::memory_variants()) {
    Decoder decoder = make(variant.config);
    EXPECT_FALSE(decoder.takes_steps()) << variant.name;
  }
  for (const test::Variant& variant : test::llama_variants()) {
    Decoder decoder = make(variant.config);
    EXPECT_EQ(decoder.takes_steps(), variant.name != "rope_dynamic") << variant.name;
  }
  EXPECT_FALSE(Decoder(test::small_config(), 1, test::test_device()).takes_steps())
      << "weights that are trained";
  Decoder decoder = make(test::small_config());
  decoder.set_measured_eviction(true);
  EXPECT_FALSE(decoder.takes_steps()) << "queries that are measured";
}

DecoderConfig pruned_config() {
  DecoderConfig config = test::small_config();
  config.attention.qk_norm = QKNorm::kPerHead;
  config.attention.key_shift = config.attention.value_shift = true;
  config.attention.log_pruning_tolerance = -10;
  return config;
}

// In bf16, few texts and so many that the library multiplies.
TEST(Stepper, TakesManyTextsInHalfPrecision) {
  DecoderConfig config = pruned_config();
  config.attention.output_gate = OutputGate::kSigmoid;
  config.attention.output_norm = true;
  Decoder decoder = make(config);
  decoder.set_compute_dtype(at::kBFloat16);
  Pair pair(decoder);
  std::vector<int64_t> texts;
  for (int64_t i = 0; i < 20; ++i) texts.push_back(pair.start(7 * i));
  for (int i = 0; i < 4; ++i) {
    pair.step({texts.begin(), texts.begin() + 3});
    pair.step(texts);
  }
}

// Recorded when a kind of step comes for the second time; where a table gets wider or a tolerance
// changes, anew, though only the last kinds are kept.
TEST(Stepper, RecordsEachKindOfStepOnce) {
  const int64_t recorded = test::test_device().is_cpu() ? 0 : 1;
  Decoder decoder = make(pruned_config());
  Pair pair(decoder, /*max_pages=*/4096);  // at once: recordings of a pool that moves are dropped
  std::vector<int64_t> texts = {pair.start(1020)};
  pair.step(texts);
  EXPECT_EQ(pair.stepper().num_recorded(), 0);
  for (int i = 0; i < 3; ++i) pair.step(texts);
  EXPECT_EQ(pair.stepper().num_recorded(), recorded);
  for (int i = 0; i < 3; ++i) pair.step(texts);
  EXPECT_EQ(pair.stepper().num_recorded(), 2 * recorded) << "17 pages";
  decoder.set_log_pruning_tolerance(-3);
  for (int i = 0; i < 3; ++i) pair.step(texts);
  EXPECT_EQ(pair.stepper().num_recorded(), 3 * recorded) << "another tolerance";
  for (int i = 0; i < 20; ++i) {
    decoder.set_log_pruning_tolerance(-4 - i);
    for (int j = 0; j < 2; ++j) pair.step(texts);
  }
  EXPECT_EQ(pair.stepper().num_recorded(), 16 * recorded);
  decoder.set_log_pruning_tolerance(-4);
  for (int i = 0; i < 3; ++i) pair.step(texts);
}

// Of texts that come and go, steps of 1, 2, 4, 8, 16 and 32 rows are all that is recorded.
TEST(Stepper, TakesRowsWithoutATextForFewerKinds) {
  const int64_t recorded = test::test_device().is_cpu() ? 0 : 1;
  Decoder decoder = make(pruned_config());
  Pair pair(decoder, /*max_pages=*/4096);
  std::vector<int64_t> texts;
  for (int i = 0; i < 18; ++i) {
    texts.push_back(pair.start(9 * i));
    for (int j = 0; j < 2; ++j) pair.step(texts);
  }
  EXPECT_EQ(pair.stepper().num_recorded(), 6 * recorded);
  while (!texts.empty()) {
    texts.erase(texts.begin() + texts.size() / 2);
    if (!texts.empty()) pair.step(texts);
  }
  EXPECT_EQ(pair.stepper().num_recorded(), 6 * recorded);
}

TEST(Stepper, ReadsInt8Pages) {
  if (!test::test_device().is_cpu()) GTEST_SKIP() << "int8 pages are for the CPU";
  Decoder decoder = make(pruned_config());
  decoder.set_int8_cache(true);
  Pair pair(decoder);
  const int64_t a = pair.start(70), b = pair.start(3);
  for (int i = 0; i < 5; ++i) pair.step({a, b});
}

TEST(Stepper, RejectsWhatIsNotAStep) {
  Decoder decoder = make(test::small_config());
  Pair pair(decoder), other(decoder);
  pair.start(5), pair.start(6), other.start(5);
  SequenceState &a = pair.stepped(0), &b = pair.stepped(1), &foreign = other.stepped(0);
  const auto rejects = [&](const std::vector<int64_t>& tokens,
                           const std::vector<SequenceState*>& states,
                           const std::string& reason) {
    try {
      pair.stepper().logits(tokens, states);
      ADD_FAILURE() << "no error: " << reason;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
    EXPECT_EQ(a.length(), 5);
  };
  rejects({}, {}, "number of states");
  rejects({1}, {&a, &b}, "number of tokens");
  rejects({1, 2}, {&a, &a}, "number of different states");
  rejects({1, 2}, {&a, nullptr}, "state = 1");
  rejects({1, 2}, {&a, &foreign}, "state = 1");
  rejects({1, 48}, {&a, &b}, "token id = 48");
  rejects({-1, 2}, {&a, &b}, "token id = -1");
}

// What happens between the steps of a server: texts join, leave and change places, are forked, go
// back, take several tokens at once and lose pages.
TEST(Stepper, FollowsItsTexts) {
  Decoder decoder = make(pruned_config());
  Pair pair(decoder);
  const int64_t a = pair.start(40), b = pair.start(200), c = pair.start(7);
  const auto steps = [&](const std::vector<int64_t>& texts, int count) {
    for (int i = 0; i < count; ++i) pair.step(texts);
  };
  steps({a, b, c}, 3);
  steps({b}, 2);
  steps({c, a, b}, 3);
  const int64_t d = pair.fork(a);
  steps({a, d}, 3);
  steps({d, a}, 3);
  const int64_t e = pair.fork(d);
  steps({d, a}, 3);
  steps({e}, 3);
  pair.truncate(a, pair.stepped(a).length() - 4);
  steps({d, a}, 3);
  pair.read_both(c, 5);
  steps({c, b}, 3);
  int64_t evicted = 0;
  for (int i = 0; i < 60; ++i) {
    evicted += pair.evict(b, -5);
    steps({a, b, c}, 4);
  }
  EXPECT_GT(evicted, 0);
  const int64_t length = pair.stepped(b).length();
  pair.truncate(b, length - 1);
  steps({b, a}, 3);
}

// Carries at page ends stay as long as the text: those of the texts beside it do not stay with
// them.
TEST(Stepper, LeavesCarriesToGoBackTo) {
  Decoder decoder = make(pruned_config());
  Pair pair(decoder);
  const int64_t a = pair.start(10), b = pair.start(20);
  for (int i = 0; i < 200; ++i) pair.step({a, b});
  const Carries& carries = pair.stepped(b).carries(1);
  EXPECT_GE(std::ssize(carries), SequenceState::kCarryTokens + 2);
  for (const KeptCarry& carry : carries) {
    if (carry.length > 220 - 3 * SequenceState::kCarryTokens) break;
    EXPECT_EQ(carry.rows.k.size(0), 1) << carry.length;
  }
  const auto expect_own_rows = [](const StateSnapshot& snapshot, const std::string& where) {
    for (const StateSnapshot::Layer& layer : snapshot.layers) {
      for (const KeptCarry& carry : layer.carries) {
        EXPECT_EQ(carry.rows.v.size(0), 1) << where << carry.length;
      }
    }
  };
  expect_own_rows(pair.stepped(b).snapshot(), "snapshot ");
  SequenceState kept = pair.stepped(b).fork();
  kept.truncate(192);
  kept.keep_page_ends();
  expect_own_rows(kept.snapshot(), "kept ");
  EXPECT_TRUE(kept.can_truncate(128));
  EXPECT_FALSE(kept.can_truncate(191));
  pair.truncate(b, 64);
  pair.truncate(a, 193);
  for (int i = 0; i < 3; ++i) pair.step({a, b});
}

TEST(Stepper, LeavesTextsAsTheyWereWhereThePoolIsFull) {
  Decoder decoder = make(test::small_config());
  // 2 layers of 4 heads: 64 tokens of two texts, and a page more for one layer of one of them.
  Pair pair(decoder, /*max_pages=*/20);
  const int64_t a = pair.start(63), b = pair.start(63);
  pair.step({a, b});
  std::vector<SequenceState*> both = {&pair.stepped(a), &pair.stepped(b)};
  const std::vector<int64_t> tokens = {1, 2};
  try {
    pair.stepper().logits(tokens, both);
    FAIL() << "the pool is full";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("max_pages"), std::string::npos) << error.what();
  }
  for (const SequenceState* state : both) EXPECT_EQ(state->length(), 64);
  EXPECT_EQ(pair.stepped(a).cache(1).pool()->pages_in_use(), 16);
  pair.truncate(a, 0);
  pair.step({b});
}

}  // namespace
}  // namespace reynard::models

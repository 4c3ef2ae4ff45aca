// Logits of models whose weights are bf16 or int8: sums of f32 that nothing rounds on their way to
// a sampler or a score.

#include "reynard/checkpoint/directory.h"
#include "reynard/models/pretrained.h"
#include "reynard/models/score.h"
#include "tests/support/compare.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/device.h"
#include "tests/support/files.h"
#include "tests/support/gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace reynard::models {
namespace {

Decoder opened(WeightFormat format) {
  const test::TempDir folder;
  DecoderConfig config = test::small_config();
  config.vocab_size = 300;
  config.hidden_size = 64;
  Decoder decoder(config, /*seed=*/3);
  test::spread_weights(decoder, 4);
  save_model(decoder, (folder / "model").string());
  const bool only_on_cpu = format == WeightFormat::kInt8;
  return open_model(
      (folder / "model").string(), format, only_on_cpu ? at::kCPU : test::test_device());
}

// (N, V) f64 of the factors as the head's product has them.
at::Tensor exact_logits(const at::Tensor& hidden, const Parameter& head) {
  const auto widened = [](const at::Tensor& x) {
    return x.cpu().to(at::kBFloat16).to(at::kDouble);
  };
  const at::Tensor y = at::mm(widened(hidden), widened(head.value).t());
  return head.scales.defined() ? y * head.scales.to(at::kDouble) : y;
}

class Logits : public testing::TestWithParam<WeightFormat> {};

TEST_P(Logits, AreNotRounded) {
  Decoder decoder = opened(GetParam());
  const int64_t C = decoder.config().hidden_size;
  for (const int64_t rows : {1, 5, 32, 33, 200}) {
    const at::Tensor hidden = test::random_normal({rows, C}, rows).to(at::kFloat);
    const at::Tensor y = logits(decoder, hidden.to(decoder.device())).cpu();
    ASSERT_EQ(y.scalar_type(), at::kFloat);
    const at::Tensor exact = exact_logits(hidden, decoder.head());
    // C additions of numbers of about the size of the largest logit.
    EXPECT_TENSORS_NEAR(y.to(at::kDouble), exact, 1e-5 * exact.abs().max().item<double>(), 1e-5)
        << rows;
    const double kept =
        y.to(at::kBFloat16).to(at::kFloat).eq(y).to(at::kDouble).mean().item<double>();
    EXPECT_LT(kept, 0.1) << "share of logits that are bf16 numbers, " << rows;
  }
}

TEST_P(Logits, AreThoseOfScores) {
  Decoder decoder = opened(GetParam());
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::arange(40, at::TensorOptions(at::kLong).device(decoder.device()));
  const at::Tensor offsets = at::zeros({1}, tokens.options());
  const TokenScores scores = score(decoder, tokens, offsets, tokens);
  const at::Tensor exact = exact_logits(decoder.hidden(tokens, offsets), decoder.head());
  EXPECT_TENSORS_NEAR(scores.logprob.cpu().to(at::kDouble),
                      at::log_softmax(exact, 1).gather(1, tokens.cpu().unsqueeze(1)).squeeze(1),
                      1e-5,
                      1e-5);
  EXPECT_BITWISE_EQUAL(scores.greedy.cpu(), exact.argmax(1));
}

INSTANTIATE_TEST_SUITE_P(OfWeights,
                         Logits,
                         testing::Values(WeightFormat::kBF16, WeightFormat::kInt8),
                         [](const auto& info) {
                           return info.param == WeightFormat::kBF16 ? "bf16" : "int8";
                         });

}  // namespace
}  // namespace reynard::models

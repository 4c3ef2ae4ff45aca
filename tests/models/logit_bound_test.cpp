// The bound of logits that pruning rests on, against the logits that a mixer's own QK-norm makes.

#include "reynard/models/mixers/attention.h"
#include "reynard/models/ragged.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/device.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace reynard::models {
namespace {

constexpr int64_t kBoundTokens = 400;

// Four heads of dimension 4, two of keys, whose weights are large where a rotation brings queries
// and keys together and nowhere else.
struct BoundedMixer {
  const at::NoGradGuard no_grad;
  DecoderConfig config = test::small_config();
  AttentionMixer::Projections p;
  at::Tensor bound, int8_bound, bf16_bound;  // (H)

  explicit BoundedMixer(QKNorm norm, bool rope, const ops::RotaryScaling& scaling = {}) {
    AttentionMixerConfig& a = config.attention;
    a.head_dim = 4;
    a.num_kv_heads = 2;
    a.qk_norm = norm;
    a.rope = rope;
    a.rope_scaling = scaling;
    a.log_pruning_tolerance = -10;
    Initializer initializer(config.initializer_range, /*seed=*/1, test::test_device());
    AttentionMixer mixer(config, initializer);
    mixer.parameters([](const std::string& name, Parameter& parameter) {
      const at::Tensor& value = parameter.value.requires_grad_(false);
      if (!name.ends_with("_norm.weight")) return;
      value.fill_(0.1);
      value.view({-1, 4}).select(1, name.ends_with("q_norm.weight") ? 0 : 2).fill_(4);
    });
    const Ragged ragged = make_ragged(at::zeros({kBoundTokens}, at::kLong),
                                      at::zeros({1}, at::kLong),
                                      {},
                                      config,
                                      test::test_device());
    const at::Tensor x =
        test::on_test_device(at::randn({kBoundTokens, config.hidden_size}, at::kFloat));
    p = mixer.project(x, ragged, 0);
    mixer.rotate(p, ragged.positions);
    bound = mixer.pruning_bound(p).cpu();
    AttentionMixer::Projections narrow = p;
    narrow.q = p.q.to(at::kBFloat16);
    bf16_bound = mixer.pruning_bound(narrow).cpu();
    int8_bound = mixer.pruning_bound(p, /*int8_keys=*/true).cpu();
  }
  // (H): the largest of all queries and keys.
  at::Tensor largest_logits() const {
    const at::Tensor keys = p.k.repeat_interleave(2, 1);
    return at::einsum("ihd,jhd->hij", {p.q, keys}).abs().amax({1, 2}).cpu() / std::sqrt(4.0);
  }
};

TEST(LogitBound, HoldsForRotatedQueriesAndKeys) {
  const ops::RotaryScaling yarn{.type = ops::RotaryScalingType::kYarn,
                                .factor = 4,
                                .original_length = 100,
                                .attention_factor = 1.5};
  for (const QKNorm norm : {QKNorm::kPerHead, QKNorm::kShared}) {
    for (const ops::RotaryScaling& scaling : {ops::RotaryScaling{}, yarn}) {
      const BoundedMixer mixer(norm, /*rope=*/true, scaling);
      const at::Tensor share = mixer.largest_logits() / mixer.bound;
      EXPECT_LE(share.max().item<double>(), 1);
      EXPECT_GE(share.min().item<double>(), 0.9) << "not near the bound";
    }
    // Without a rotation large weights of different dimensions do not meet.
    const BoundedMixer plain(norm, /*rope=*/false);
    EXPECT_LE((plain.largest_logits() / plain.bound).max().item<double>(), 1);
    EXPECT_LT(plain.bound.max().item<double>(), 1);
  }
}

// Of the same weights: what is kept of one dtype is not that of another.
TEST(LogitBound, IsThatOfTheKernelsDtype) {
  const BoundedMixer mixer(QKNorm::kPerHead, /*rope=*/true);
  EXPECT_TRUE(mixer.bf16_bound.gt(mixer.bound).all().item<bool>());
  EXPECT_TRUE(mixer.int8_bound.gt(mixer.bound * 1.001).all().item<bool>());
}

}  // namespace
}  // namespace reynard::models

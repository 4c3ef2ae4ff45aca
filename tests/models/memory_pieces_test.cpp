// What several memories of a layer give together.

#include "reynard/models/decoder.h"
#include "reynard/models/mixers/memory_attention.h"
#include "reynard/models/ragged.h"
#include "reynard/models/state.h"
#include "tests/models/longllama.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <string>

namespace reynard::models {
namespace {

using test::longllama;
using test::one_sequence;

// Of one query that weighs all keys alike: a key of its own with value 0, and one in each of two
// memories. In bf16 the sum of the memories, rounded by itself, would be another one.
TEST(MemoryAttention, PiecesOfAMemoryAreJoinedBeforeTheyAreRounded) {
  const at::NoGradGuard no_grad;
  for (const MemoryMerge merge : {MemoryMerge::kJoint, MemoryMerge::kGated}) {
    DecoderConfig config = longllama(/*window=*/16, /*last_context=*/16, /*num_kv_heads=*/4);
    config.memory.layers = {0};
    config.memory.merge = merge;
    Decoder decoder(config, /*seed=*/1, test::test_device());
    decoder.set_compute_dtype(at::kBFloat16);
    Initializer initializer(/*std=*/0, /*seed=*/1, test::test_device());
    MemoryAttentionMixer mixer(config, initializer, /*layer=*/0);
    mixer.parameters([](const std::string& name, Parameter& parameter) {
      if (name.ends_with("o_proj.weight")) parameter.value.fill_diagonal_(1);
      if (name.ends_with("memory_gate")) parameter.value.fill_(std::log(2));  // two thirds
      if (parameter.product) parameter.compute = parameter.value.to(at::kBFloat16);
    });
    const int64_t G = 4, D = config.hidden_size / G;
    const auto entry = [&] {
      const auto options = at::TensorOptions(test::test_device()).dtype(at::kBFloat16);
      return knn::Entries{at::zeros({1, G, D}, options), at::randn({1, G, D}, options)};
    };
    const knn::Entries first = entry(), second = entry();
    SequenceState state(decoder, make_page_pool(decoder));
    auto memory = std::make_shared<knn::Memory>(knn::MemoryOptions{
        .of = {.model = {}, .layer = 0, .num_heads = G, .head_dim = D, .dtype = at::kBFloat16},
        .device = test::test_device()});
    memory->add(first.keys.unsqueeze(0), first.values.unsqueeze(0));
    state.memory(0) = LayerMemory(memory, /*capacity=*/0);
    state.memory(0).add(second.keys, second.values, {}, {});
    const std::array states{&state};
    const Ragged ragged =
        make_ragged(at::zeros({1}, at::kLong), one_sequence(), states, config, test::test_device());
    const at::Tensor out =
        mixer.forward(at::zeros({1, config.hidden_size}, first.keys.options()), ragged, 0, nullptr);
    const at::Tensor mean = (first.values.to(at::kFloat) + second.values.to(at::kFloat)) / 3;
    EXPECT_BITWISE_EQUAL(out, mean.flatten(1).to(at::kBFloat16));
  }
}

}  // namespace
}  // namespace reynard::models

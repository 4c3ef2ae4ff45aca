#include "bench/read_only.h"

#include <gtest/gtest.h>

namespace reynard::bench {

// A model that is trained would be measured through other products than those of `serve`.
TEST(ReadOnly, NoWeightNeedsGradients) {
  models::DecoderConfig config;
  config.vocab_size = 16;
  config.hidden_size = 32;
  config.num_layers = 1;
  config.attention.num_heads = 2;
  models::Decoder decoder(config, /*seed=*/1);
  make_read_only(decoder, at::kBFloat16);
  EXPECT_EQ(decoder.compute_dtype(), at::kBFloat16);
  decoder.parameters([](const std::string& name, models::Parameter& parameter) {
    EXPECT_FALSE(parameter.value.requires_grad()) << name;
    if (parameter.compute.defined()) {
      EXPECT_FALSE(parameter.compute.requires_grad()) << name;
    }
  });
}

}  // namespace reynard::bench

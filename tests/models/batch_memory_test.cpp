// The memory of earlier steps: what rows see of it, what joins it, and what checkpoints hold.

#include "reynard/models/batch_memory.h"

#include "reynard/tensor/error.h"
#include "tests/models/crossbatch_model.h"
#include "tests/support/compare.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace reynard::models {
namespace {

// Steps over a document with a memory between them are its contexts at inference, and the gradient
// to the memory is exactly 0.
TEST(BatchMemory, StepsAreContextsWithoutGradient) {
  for (const auto& [gated, top_k, decay] :
       std::vector<std::tuple<bool, int64_t, MemoryDecay>>{{false, 0, MemoryDecay::kNone},
                                                           {false, 3, MemoryDecay::kNone},
                                                           {true, 0, MemoryDecay::kNone},
                                                           {true, 3, MemoryDecay::kNone},
                                                           {false, 0, MemoryDecay::kDistance},
                                                           {false, 3, MemoryDecay::kDistance},
                                                           {true, 0, MemoryDecay::kDistance}}) {
    DecoderConfig config = config_of(gated, decay);
    config.memory.top_k = top_k;
    Decoder decoder = crossbatch_decoder(config);
    constexpr int64_t kRows = 2, kSteps = 3;
    const at::Tensor tokens = at::arange(kRows * kSteps * kL, at::kLong).view({kRows, -1});
    BatchMemory memory(kRows, /*capacity=*/100, /*across_documents=*/false);
    const Crossbatch cross{.rows = kRows, .contexts = 1, .memory = &memory};
    at::Tensor embedding;
    decoder.parameters([&](const std::string& name, Parameter& parameter) {
      if (name == "model.embeddings.weight") embedding = parameter.value;
    });
    std::vector<at::Tensor> steps;
    for (int64_t step = 0; step < kSteps; ++step) {
      memory.begin_step(at::zeros({kRows, kL}, at::kBool));
      const at::Tensor chunk = tokens.narrow(1, step * kL, kL).flatten();
      embedding.mutable_grad() = at::Tensor();
      const at::Tensor out = hidden(decoder, chunk, cross);
      (out * at::randn(out.sizes())).sum().backward();
      memory.commit();
      steps.push_back(out.detach().view({kRows, kL, -1}));
    }
    const at::Tensor gradient = embedding.grad().view({-1, 32}).abs().sum(1);
    for (int64_t row = 0; row < kRows; ++row) {
      const at::Tensor earlier = gradient.narrow(0, row * kSteps * kL, 2 * kL);
      EXPECT_EQ(earlier.max().item<double>(), 0);
      EXPECT_GT(gradient.narrow(0, row * kSteps * kL + 2 * kL, kL).min().item<double>(), 0);
      const at::NoGradGuard no_grad;
      const at::Tensor whole = decoder.hidden(tokens[row], at::zeros({1}, at::kLong));
      for (int64_t step = 0; step < kSteps; ++step) {
        EXPECT_TENSORS_NEAR(steps[step][row], context(whole, step), 2e-5, 1e-5)
            << "step " << step << " top_k " << top_k;
      }
    }
  }
}

// A document that begins with its row sees nothing of the memory, whatever other rows see.
TEST(BatchMemory, RowsWhoseDocumentBeginsSeeNone) {
  for (const bool gated : {false, true}) {
    for (const int64_t top_k : {0, 3}) {
      for (const int64_t contexts : {1, 2}) {
        SCOPED_TRACE(fmt::format("gated {}, top_k {}, contexts {}", gated, top_k, contexts));
        DecoderConfig config = config_of(gated);
        config.memory.top_k = top_k;
        Decoder decoder = crossbatch_decoder(config);
        const int64_t length = contexts * kL;
        const at::Tensor tokens = at::arange(2 * length, at::kLong);
        const auto outputs = [&](const std::vector<bool>& begins) {
          BatchMemory memory(/*rows=*/2, /*capacity=*/100, /*across_documents=*/false);
          const Crossbatch cross{.rows = 2, .contexts = contexts, .memory = &memory};
          at::Tensor starts = at::zeros({2, length}, at::kBool), out;
          for (int64_t step = 0; step < 2; ++step) {
            memory.begin_step(starts);
            out = hidden(decoder, tokens, cross);
            memory.commit();
            for (int64_t row = 0; row < 2; ++row) starts[row][0] = static_cast<bool>(begins[row]);
          }
          decoder.parameters(
              [](const std::string&, Parameter& p) { p.value.mutable_grad() = at::Tensor(); });
          out.square().sum().backward();
          decoder.parameters([](const std::string& name, Parameter& p) {
            if (!p.value.grad().defined()) return;
            EXPECT_TRUE(at::isfinite(p.value.grad()).all().item<bool>()) << name;
          });
          return out.detach().view({2, length, -1});
        };
        BatchMemory empty(/*rows=*/2, /*capacity=*/100, /*across_documents=*/false);
        empty.begin_step(at::zeros({2, length}, at::kBool));
        const at::Tensor fresh =
            hidden(decoder, tokens, {.rows = 2, .contexts = contexts, .memory = &empty})
                .detach()
                .view({2, length, -1});
        EXPECT_TENSORS_NEAR(outputs({true, true}), fresh, 2e-5, 1e-5);
        const at::Tensor one = outputs({true, false});
        EXPECT_TENSORS_NEAR(one[0], fresh[0], 2e-5, 1e-5);
        EXPECT_GT((one[1] - fresh[1]).abs().max().item<double>(), 1e-3);
      }
    }
  }
}

// Rows of two contexts that go on by one, of which the second reads the memory: it is a context at
// inference, and the first one is a text of its own.
class BatchMemoryOfGates : public ::testing::TestWithParam<MemoryDecay> {};

INSTANTIATE_TEST_SUITE_P(Decays,
                         BatchMemoryOfGates,
                         ::testing::Values(MemoryDecay::kNone, MemoryDecay::kDistance));

TEST_P(BatchMemoryOfGates, RowsThatOverlapAreContextsOnce) {
  Decoder decoder = crossbatch_decoder(config_of(/*gated=*/false, GetParam()));
  constexpr int64_t kSteps = 4;
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::arange((kSteps + 1) * kL, at::kLong);
  const at::Tensor start = at::zeros({1}, at::kLong);
  const at::Tensor whole = decoder.hidden(tokens, start);
  for (const int64_t reader : {0, 1}) {
    BatchMemory memory(/*rows=*/1, /*capacity=*/100, /*across_documents=*/false, /*overlap=*/kL);
    const Crossbatch cross{
        .rows = 1, .contexts = 2, .memory = &memory, .memory_from_context = reader};
    for (int64_t step = 0; step < kSteps; ++step) {
      memory.begin_step(at::zeros({1, 2 * kL}, at::kBool));
      const at::Tensor out = hidden(decoder, tokens.narrow(0, step * kL, 2 * kL), cross);
      memory.commit();
      EXPECT_EQ(memory.view(0).size(), (step + 1) * kL);
      EXPECT_TENSORS_NEAR(context(out, 1), context(whole, step + 1), 2e-5, 1e-5) << step;
      const at::Tensor alone = decoder.hidden(context(tokens, step), start);
      EXPECT_TENSORS_NEAR(context(out, 0), reader == 1 ? alone : context(whole, step), 2e-5, 1e-5)
          << step;
    }
  }
}

// Rows that see the newest tokens of their memories only: what a limited memory holds at inference.
TEST_P(BatchMemoryOfGates, RowsSeeAsMuchAsTheyAreToldTo) {
  DecoderConfig config = config_of(/*gated=*/false, GetParam());
  Decoder decoder = crossbatch_decoder(config);
  constexpr int64_t kSteps = 4;
  const std::vector<int64_t> most = {2 * kL, 0, 100, 3};
  const at::NoGradGuard no_grad;
  const auto rows = static_cast<int64_t>(most.size());
  const at::Tensor tokens = at::arange(rows * kSteps * kL, at::kLong).view({rows, -1});
  BatchMemory memory(rows, /*capacity=*/100, /*across_documents=*/false);
  const Crossbatch cross{.rows = rows, .contexts = 1, .memory = &memory};
  at::Tensor last;
  for (int64_t step = 0; step < kSteps; ++step) {
    memory.begin_step(at::zeros({rows, kL}, at::kBool), most);
    last = hidden(decoder, tokens.narrow(1, step * kL, kL).flatten(), cross);
    memory.commit();
  }
  for (int64_t row = 0; row < rows; ++row) {
    decoder.set_memory_limits(most[row] > 0 ? most[row] : Decoder::kNoMemory, /*top_k=*/0);
    const at::Tensor whole = decoder.hidden(tokens[row], at::zeros({1}, at::kLong));
    EXPECT_TENSORS_NEAR(context(last, row), context(whole, kSteps - 1), 2e-5, 1e-5) << row;
  }
  memory.begin_step(at::zeros({rows, kL}, at::kBool), {0, 0, 0, 0});
  EXPECT_EQ(memory.view(0).size(), 0);
}

TEST(BatchMemory, TokensThatComeAgainJoinLater) {
  BatchMemory memory(/*rows=*/1, /*capacity=*/8, /*across_documents=*/false, /*overlap=*/2);
  const auto step = [&](int64_t start) {
    at::Tensor starts = at::zeros({1, 6}, at::kBool);
    if (start >= 0) starts[0][start] = true;
    memory.begin_step(starts);
    memory.stage(3, at::zeros({1, 6, 1, 4}), at::zeros({1, 6, 1, 4}));
    memory.commit();
    return memory.view(3).size();
  };
  EXPECT_EQ(step(-1), 4);
  EXPECT_EQ(step(5), 8) << "the document before goes on up to the tokens that come again";
  EXPECT_EQ(step(1), 3);
}

TEST(BatchMemory, GateSumsGoOnWithTheStepsAndAreKept) {
  BatchMemory memory(/*rows=*/1, /*capacity=*/3, /*across_documents=*/false);
  const auto step = [&](const std::vector<double>& sums) {
    memory.begin_step(at::zeros({1, 2}, at::kBool));
    const at::Tensor zero = at::zeros({1, 2, 1, 4});
    memory.stage(3, zero, zero, at::tensor(sums, at::kDouble).view({1, 1, 2}));
    memory.commit();
    return memory.view(3).sums;
  };
  EXPECT_BITWISE_EQUAL(step({-1, -3}).contiguous(),
                       at::tensor({2.0, 0.0}, at::kDouble).view({1, 1, 2}));
  const at::Tensor sums = step({-0.5, -1});
  EXPECT_BITWISE_EQUAL(sums.contiguous(), at::tensor({1.0, 0.5, 0.0}, at::kDouble).view({1, 1, 3}));

  BatchMemory restored(1, 3, false);
  restored.restore(memory.state(), at::kCPU);
  EXPECT_BITWISE_EQUAL(restored.view(3).sums, sums);
  std::vector<BatchMemory::Saved> cut = memory.state();
  cut.back().tensor = cut.back().tensor.narrow(0, 0, 2);
  EXPECT_THROW(restored.restore(cut, at::kCPU), Error);
}

TEST(BatchMemory, GateSumsOfADocumentBeginWithIt) {
  BatchMemory memory(/*rows=*/2, /*capacity=*/4, /*across_documents=*/false);
  const auto step = [&](const at::Tensor& starts, const std::vector<double>& sums) {
    memory.begin_step(starts);
    const at::Tensor zero = at::zeros({2, 3, 1, 4});
    memory.stage(5, zero, zero, at::tensor(sums, at::kDouble).view({2, 1, 3}));
    memory.commit();
  };
  step(at::zeros({2, 3}, at::kBool), {-1, -3, -4, -1, -1, -1});
  const at::Tensor starts = at::zeros({2, 3}, at::kBool);
  starts[0][1] = true;
  step(starts, {-1, -3, -4, -2, -4, -8});
  memory.begin_step(at::zeros({2, 3}, at::kBool));
  EXPECT_BITWISE_EQUAL(
      memory.view(5).sums.contiguous(),
      at::tensor({0.0, 0.0, 1.0, 0.0, 8.0, 6.0, 4.0, 0.0}, at::kDouble).view({2, 1, 4}));

  std::vector<BatchMemory::Saved> without_one = memory.state();
  ASSERT_EQ(without_one.back().name.text(), "0.memory.5.1.s");
  without_one.pop_back();
  EXPECT_THROW(memory.restore(without_one, at::kCPU), Error);
}

// A memory of a checkpoint that was written before gates acted on it.
TEST(BatchMemory, WithoutGateSumsCannotDecay) {
  Decoder decoder = crossbatch_decoder(config_of(/*gated=*/false, MemoryDecay::kDistance));
  BatchMemory memory(/*rows=*/2, /*capacity=*/100, /*across_documents=*/false);
  const Crossbatch cross{.rows = 2, .contexts = 1, .memory = &memory};
  const at::Tensor tokens = at::arange(2 * kL, at::kLong);
  const auto step = [&] {
    memory.begin_step(at::zeros({2, kL}, at::kBool));
    hidden(decoder, tokens, cross);
    memory.commit();
  };
  step();
  std::vector<BatchMemory::Saved> state = memory.state();
  ASSERT_EQ(std::erase_if(state, [](const auto& x) { return x.name.kind == 's'; }), 2);
  memory.restore(state, at::kCPU);
  EXPECT_THROW(step(), Error);
}

TEST(BatchMemory, ADocumentThatBeginsForgetsTheOneBefore) {
  BatchMemory memory(/*rows=*/2, /*capacity=*/8, /*across_documents=*/false);
  const auto step = [&](int64_t row, int64_t start, double value) {
    at::Tensor starts = at::zeros({2, 6}, at::kBool);
    if (start >= 0) starts[row][start] = true;
    memory.begin_step(starts);
    memory.stage(3, at::zeros({2, 6, 1, 4}) + value, at::zeros({2, 6, 1, 4}));
    memory.commit();
  };
  step(0, -1, 1);
  EXPECT_EQ(memory.view(3).size(), 6);
  step(0, 4, 2);  // row 0 keeps two tokens, row 1 the newest eight of twelve
  const at::Tensor keys = memory.view(3).k;
  ASSERT_EQ(keys.size(1), 8);
  EXPECT_EQ(keys[0].narrow(0, 6, 2).mean().item<double>(), 2);
  EXPECT_EQ(keys[1].sum().item<double>(), 4 * (2 * 1 + 6 * 2));
  at::Tensor starts = at::zeros({2, 6}, at::kBool);
  starts[1][3] = true;
  memory.begin_step(starts);
  const at::Tensor first = memory.first_key(3, 0, 6);
  EXPECT_EQ(first[0].min().item<int>(), 6);
  EXPECT_EQ(first[0].max().item<int>(), 6);
  EXPECT_EQ(first[1][2].item<int>(), 0);
  EXPECT_EQ(first[1][3].item<int>(), 8) << "the new document sees none";

  BatchMemory restored(2, 8, false);
  restored.restore(memory.state(), at::kCPU);
  EXPECT_BITWISE_EQUAL(restored.view(3).k, keys);
  const BatchMemory::Saved of_row_9{.name = {.layer = 3, .row = 9}, .tensor = keys[0]};
  EXPECT_THROW(restored.restore(std::span(&of_row_9, 1), at::kCPU), Error);
}

TEST(MemoryName, IsReadAsItIsWritten) {
  const MemoryName name{.micro_batch = 12, .layer = 3, .row = 40, .kind = 's'};
  EXPECT_EQ(name.text(), "12.memory.3.40.s");
  const auto read = MemoryName::parse(name.text());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->micro_batch, 12);
  EXPECT_EQ(read->layer, 3);
  EXPECT_EQ(read->row, 40);
  EXPECT_EQ(read->kind, 's');
  for (const char* other : {"",
                            "0.memory.1.0.kXYZ",
                            "0.memory.1.0.x",
                            "0.memory.1.0.",
                            "0.memory.1.0.k.",
                            "0.memory.1.k",
                            "memory.1.0.k",
                            "0.memory.1.00.k",
                            "0.memory.+1.0.k",
                            "-1.memory.1.0.k",
                            "0.memory.1. 0.k",
                            "0.memory.99999999999999999999.0.k",
                            "model.memory.1.0.k"}) {
    EXPECT_FALSE(MemoryName::parse(other)) << other;
  }
}

// Transformer-XL: steps over a document are attention with a window over all of it, and nothing
// flows back into earlier steps.
TEST(TransformerXL, StepsAreAWindowOverTheDocument) {
  constexpr int64_t kRows = 2, kSteps = 4;
  for (const auto& [window, capacity] : std::vector<std::array<int64_t, 2>>{
           {kL, kL}, {kL + 3, 100}, {2 * kL + 1, 2 * kL}, {0, 100}}) {
    SCOPED_TRACE(window);
    DecoderConfig config = config_of(/*gated=*/false);
    config.mixer = "transformer_xl";
    config.memory = {};
    config.num_layers = 2;
    config.attention.rope = true;
    config.attention.window = window;
    Decoder decoder = crossbatch_decoder(config);
    const at::Tensor tokens = at::arange(kRows * kSteps * kL, at::kLong).view({kRows, -1});
    BatchMemory memory(kRows, capacity, /*across_documents=*/false);
    const Crossbatch cross{.rows = kRows, .contexts = 1, .memory = &memory};
    at::Tensor embedding;
    decoder.parameters([&](const std::string& name, Parameter& parameter) {
      if (name == "model.embeddings.weight") embedding = parameter.value;
    });
    for (int64_t step = 0; step < kSteps; ++step) {
      memory.begin_step(at::zeros({kRows, kL}, at::kBool));
      embedding.mutable_grad() = at::Tensor();
      const at::Tensor chunk = tokens.narrow(1, step * kL, kL).flatten();
      const at::Tensor out = hidden(decoder, chunk, cross);
      (out * at::randn(out.sizes())).sum().backward();
      memory.commit();
      const at::Tensor gradient = embedding.grad().abs().sum(1);
      const at::NoGradGuard no_grad;
      for (int64_t row = 0; row < kRows; ++row) {
        const at::Tensor whole = decoder.hidden(tokens[row], at::zeros({1}, at::kLong));
        EXPECT_TENSORS_NEAR(
            out.detach().view({kRows, kL, -1})[row], context(whole, step), 2e-5, 1e-5)
            << "step " << step;
        const int64_t first = row * kSteps * kL;
        EXPECT_GT(gradient.narrow(0, first + step * kL, kL).min().item<double>(), 0);
        if (step == 0) continue;
        EXPECT_EQ(gradient.narrow(0, first, step * kL).max().item<double>(), 0);
      }
    }
  }
}

}  // namespace
}  // namespace reynard::models

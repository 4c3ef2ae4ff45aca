// Memories as files: what a text finds in them, and files that are not theirs.

#include "reynard/models/saved_memory.h"

#include "reynard/models/decoder.h"
#include "tests/support/compare.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <csignal>

#include <array>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace reynard::models {
namespace {

DecoderConfig with_memory() {
  DecoderConfig config = test::small_config();
  config.num_layers = 3;
  config.mixer = "memory_attention";
  config.attention.forget_gate = ForgetGate::kNone;
  config.attention.rope = true;
  config.memory.window = 16;
  config.memory.layers = {0, 2};
  return config;
}

Decoder spread(const DecoderConfig& config) {
  Decoder decoder(config, /*seed=*/5);
  test::spread_weights(decoder, 3);
  return decoder;
}

at::Tensor sequence_of(int64_t count) {
  return at::randint(48, {count}, at::kLong);
}

// Saves the memories of a random text.
void save_text(Decoder& decoder,
               int64_t tokens,
               const std::string& text,
               const std::filesystem::path& folder) {
  SequenceState state(decoder, make_page_pool(decoder));
  decoder.remember(sequence_of(tokens), state);
  save_memories(decoder, state, {"model", text}, folder);
}

TEST(SavedMemory, ATextReadsOnAsBehindTheTextThatWasRemembered) {
  const at::NoGradGuard no_grad;
  Decoder decoder = spread(with_memory());
  const at::Tensor before = sequence_of(40), text = sequence_of(30);
  const at::Tensor begin = at::zeros({1}, at::kLong);
  const auto pool = make_page_pool(decoder);
  SequenceState read(decoder, pool);
  decoder.remember(before, read);
  const test::TempDir folder;
  save_memories(decoder, read, {"model", "text"}, folder / "memory");
  const at::Tensor expected = decoder.hidden(text, begin, std::array{&read});

  const StateSnapshot loaded = load_memories(decoder, "model", folder / "memory");
  for (int time = 0; time < 2; ++time) {  // the second finds nothing of the first
    SequenceState state = SequenceState::restore(pool, loaded);
    EXPECT_EQ(state.length(), 0);
    EXPECT_EQ(state.memory(2).size(), 40);
    // Attention to both parts of the memory, joined.
    EXPECT_TENSORS_NEAR(decoder.hidden(text, begin, std::array{&state}), expected, 2e-5, 1e-5);
    EXPECT_EQ(state.memory(2).size(), 56);
  }
  decoder.set_memory_limits(10, 0);
  SequenceState few =
      SequenceState::restore(pool, load_memories(decoder, "model", folder / "memory"));
  EXPECT_EQ(few.memory(2).size(), 10);
}

// Wherever a memory lies the results are the same, to the bit.
TEST(SavedMemory, FilesMayStayWhereTheyAre) {
  const at::NoGradGuard no_grad;
  Decoder decoder = spread(with_memory());
  const test::TempDir folder;
  save_text(decoder, 40, "text", folder.path());
  const at::Tensor text = sequence_of(30), begin = at::zeros({1}, at::kLong);
  const auto hidden = [&](bool mapped) {
    SequenceState state = SequenceState::restore(
        make_page_pool(decoder), load_memories(decoder, "model", folder.path(), mapped));
    return decoder.hidden(text, begin, std::array{&state});
  };
  for (const int64_t top_k : {0, 5}) {
    decoder.set_memory_limits(/*capacity=*/0, top_k);
    decoder.set_memory_place(knn::MemoryPlace::kDevice, /*coded=*/false);
    const at::Tensor expected = hidden(/*mapped=*/false);
    EXPECT_BITWISE_EQUAL(hidden(/*mapped=*/true), expected);
    decoder.set_memory_place(knn::MemoryPlace::kHost, /*coded=*/true);
    EXPECT_BITWISE_EQUAL(hidden(/*mapped=*/false), expected);
    EXPECT_BITWISE_EQUAL(hidden(/*mapped=*/true), expected);
  }
}

// A memory that is there is replaced by a whole one or not at all.
TEST(SavedMemory, AFullDiskLeavesTheOldMemory) {
  const at::NoGradGuard no_grad;
  Decoder decoder = spread(with_memory());
  const test::TempDir folder;
  save_text(decoder, 20, "old", folder.path());
  SequenceState few(decoder, make_page_pool(decoder)), many(decoder, make_page_pool(decoder));
  decoder.remember(sequence_of(30), few);
  decoder.remember(sequence_of(3000), many);
  few.memory(2) = std::move(many.memory(2));  // the last layer alone is too large
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1 << 16, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = test::error_of([&] {
    save_memories(decoder, few, {"model", "new"}, folder.path());
  });
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_SAYS(error, "layer-2.memory: writing failed");
  EXPECT_NO_THROW(load_memories(decoder, "model", folder.path()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

TEST(SavedMemory, WhatIsNotOfThisModelIsAnError) {
  const at::NoGradGuard no_grad;
  Decoder decoder = spread(with_memory());
  SequenceState state(decoder, make_page_pool(decoder));
  const test::TempDir folder;
  const auto save = [&] { save_memories(decoder, state, {"model", "text"}, folder.path()); };
  const auto load = [&](Decoder& by, const char* model) {
    return test::error_of([&] { load_memories(by, model, folder.path()); });
  };
  EXPECT_SAYS(test::error_of(save), "saved memory: tokens of the memory = 0; expected at least 1");
  EXPECT_SAYS(load(decoder, "model"), "layer-0.memory: cannot be opened");
  decoder.remember(sequence_of(20), state);
  save();
  EXPECT_SAYS(load(decoder, "other"), "belongs to another model");

  DecoderConfig config = with_memory();
  config.attention.num_kv_heads = 1;
  Decoder fewer = spread(config);
  EXPECT_SAYS(load(fewer, "model"), "num_heads is ");
  Decoder bf16 = spread(with_memory());
  bf16.set_compute_dtype(at::kBFloat16);
  EXPECT_SAYS(load(bf16, "model"),
              "its keys are float32, those of the model as it computes here bf");
  config = with_memory();
  config.attention.rope = false;
  config.attention.forget_gate = ForgetGate::kFull;
  config.memory.decay = MemoryDecay::kDistance;
  Decoder decaying = spread(config);
  EXPECT_SAYS(load(decaying, "model"),
              "saved memory: model.memory.decay = \"distance\" needs the place of each key in the "
              "text");
  decoder.set_memory_limits(Decoder::kNoMemory, 0);
  EXPECT_SAYS(load(decoder, "model"), "capacity = none");
  decoder.set_memory_limits(0, 0);

  const auto last = folder / "layer-2.memory";
  std::filesystem::resize_file(last, std::filesystem::file_size(last) - 1);
  EXPECT_SAYS(load(decoder, "model"), "layer-2.memory: ");
  std::filesystem::remove(last);
  EXPECT_SAYS(load(decoder, "model"), "layer-2.memory: cannot be opened");
}

TEST(SavedMemory, AMemoryOfNumbersThatAreNotFiniteIsNotSaved) {
  const at::NoGradGuard no_grad;
  for (const std::vector<int64_t>& layers : {std::vector<int64_t>{1}, {0, 2}}) {
    DecoderConfig config = with_memory();
    config.memory.layers = layers;
    Decoder decoder = spread(config);
    decoder.parameters([](const std::string& name, Parameter& parameter) {
      if (name == "model.embeddings.weight") parameter.value.select(0, 7).fill_(std::nan(""));
    });
    SequenceState state(decoder, make_page_pool(decoder));
    decoder.remember(at::full({40}, 5, at::kLong), state);
    const std::string reason =
        fmt::format("layer {}: memory: keys hold NaN or an infinity", layers[0] + 1);
    EXPECT_SAYS(test::error_of([&] { decoder.remember(at::full({1}, 7, at::kLong), state); }),
                reason);
    const test::TempDir folder;
    EXPECT_SAYS(test::error_of([&] {
                  save_memories(decoder, state, {"model", "text"}, folder / "memory");
                }),
                reason);
    EXPECT_FALSE(std::filesystem::exists(folder / "memory"));
  }
}

// Of which each would take many times its bytes in the file. As many as a header may say.
TEST(SavedMemory, AFileOfManyRowsIsRefusedBeforeTheyAreMade) {
  const at::NoGradGuard no_grad;
  Decoder decoder = spread(with_memory());
  const test::TempDir folder;
  save_text(decoder, 20, "text", folder.path());
  const std::filesystem::path file = folder / "layer-0.memory";
  std::string header = test::read_file(file).substr(0, 4096);
  const std::string one = "\"num_rows\":1,", many = "\"num_rows\":16777216,";
  ASSERT_NE(header.find(one), std::string::npos);
  header.replace(header.find(one), one.size(), many);
  header.erase(header.size() - 1 - (many.size() - one.size()), many.size() - one.size());
  ASSERT_EQ(header.size(), 4096U);
  test::write_file(file, header);
  // Rows [0, 0), without a byte on the disk, and the digest.
  std::filesystem::resize_file(file, 4096 + (16LL << 24) + 64);
  for (const bool mapped : {false, true}) {
    EXPECT_SAYS(
        test::error_of([&] { load_memories(decoder, "model", folder.path(), mapped); }),
        "layer-0.memory: num_rows is 16777216; expected 1; make it anew with `reynard remember`");
  }
}

// As after a `remember` that was killed between two layers.
TEST(SavedMemory, LayersOfDifferentTextsAreAnError) {
  const at::NoGradGuard no_grad;
  Decoder decoder = spread(with_memory());
  const test::TempDir folder;
  const auto save = [&](int64_t tokens, const std::string& text) {
    save_text(decoder, tokens, text, folder / text);
  };
  save(20, "one");
  save(20, "two");
  save(21, "one more");
  const auto load_mixed = [&](const char* other) {
    std::filesystem::copy_file(folder / other / "layer-2.memory",
                               folder / "one/layer-2.memory",
                               std::filesystem::copy_options::overwrite_existing);
    return test::error_of([&] { load_memories(decoder, "model", folder / "one"); });
  };
  EXPECT_SAYS(
      load_mixed("two"),
      "layer-2.memory: 20 tokens of the text two, the first layer's file has 20 of one; make "
      "all files anew with `reynard remember`");
  EXPECT_SAYS(load_mixed("one more"), "layer-2.memory: 21 tokens of the text one more, the first");
}

// Their lock is gone with the process.
TEST(SavedMemory, LeftoversOfAKilledWriterAreRemoved) {
  const at::NoGradGuard no_grad;
  Decoder decoder = spread(with_memory());
  const test::TempDir folder;
  test::write_file(folder / ".tmp-layer-2.memory-7", "cut short");
  save_text(decoder, 20, "text", folder.path());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

}  // namespace
}  // namespace reynard::models

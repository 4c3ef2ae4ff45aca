// reynard convert as a user runs it.

#include "reynard/checkpoint/directory.h"
#include "reynard/models/pretrained.h"
#include "tests/support/compare.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace {

using namespace reynard;

models::DecoderConfig config_named(const std::string& name) {
  for (const test::Variant& variant : test::attention_variants()) {
    if (variant.name == name) return variant.config;
  }
  return {};
}

struct Converted {
  test::TempDir folder;
  std::string from = (folder / "from").string(), to = (folder / "to").string();

  explicit Converted(const std::string& variant) : Converted(config_named(variant)) {}
  explicit Converted(const models::DecoderConfig& config) {
    models::Decoder decoder(config, /*seed=*/3);
    test::spread_weights(decoder, 4);
    models::save_model(decoder, from);
  }
  void change_config(const nlohmann::json& changes) const {
    auto config = nlohmann::json::parse(test::read_file(from + "/config.json"));
    config.update(changes);
    test::write_file(from + "/config.json", config.dump());
    std::filesystem::remove(from + "/checksums.json");
  }
  test::ProgramResult run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"convert", from, to});
    return test::run_program({.arguments = arguments});
  }
  void expect_error(const std::vector<std::string>& arguments, const std::string& part) const {
    const test::ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << part;
    EXPECT_NE(result.errors.find(part), std::string::npos) << result.errors;
  }
};

at::Tensor hidden_of(const std::string& folder) {
  models::Decoder decoder = models::load_model(folder);
  return decoder.hidden(at::arange(40, at::kLong), at::zeros({1}, at::kLong)).detach();
}

TEST(ConvertCommand, SameModelInAnotherLayout) {
  const Converted rope("rope");
  test::write_file(rope.folder / "from/generation_config.json", "{\"eos_token_id\": 3}");
  ASSERT_EQ(rope.run({"--to", "llama"}).exit_code, 0);
  const auto config = nlohmann::json::parse(test::read_file(rope.folder / "to/config.json"));
  EXPECT_EQ(config["model_type"], "llama");
  EXPECT_EQ(config["dtype"], "float32");
  EXPECT_EQ(test::read_file(rope.folder / "to/generation_config.json"), "{\"eos_token_id\": 3}");
  EXPECT_BITWISE_EQUAL(hidden_of(rope.to), hidden_of(rope.from));
}

TEST(ConvertCommand, LayoutIsKeptWhereItCanExpressTheModel) {
  const Converted model("rope");
  models::Decoder decoder = models::load_model(model.from);
  models::save_model(decoder, model.from, "llama");
  const auto layout = [&] {
    const test::ProgramResult result = model.run({"--dtype", "bf16"});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    const std::string type = models::load_layout(model.to).model_type;
    std::filesystem::remove_all(model.to);
    return type;
  };
  EXPECT_EQ(layout(), "llama");
  model.change_config({{"reynard", {{"memory", {{"layers", {0}}}}}}});
  EXPECT_EQ(layout(), "longllama");
}

// Nothing here depends on it, but other programs do.
TEST(ConvertCommand, NumberOfPositionsIsKept) {
  const auto positions = [](const Converted& model, const std::string& to) {
    EXPECT_EQ(model.run({"--to", to}).exit_code, 0) << to;
    const auto config = nlohmann::json::parse(test::read_file(model.folder / "to/config.json"));
    std::filesystem::remove_all(model.to);
    return config.at("max_position_embeddings");
  };
  const Converted model("rope");
  EXPECT_EQ(positions(model, "llama"), 131072);
  EXPECT_EQ(positions(model, "transformer"), nullptr);
  model.change_config({{"max_position_embeddings", 4096}});
  for (const std::string to : {"llama", "transformer"}) {
    EXPECT_EQ(positions(model, to), 4096) << to;
  }
  for (const nlohmann::json& bad : std::vector<nlohmann::json>{-1, "many", 1e30}) {
    model.change_config({{"max_position_embeddings", bad}});
    model.expect_error({}, "config.json: max_position_embeddings = " + bad.dump() + "; expected ");
  }
}

// Of a list in config.json, which keeps one.
TEST(ConvertCommand, AllEndTokensAreKept) {
  const Converted rope("rope");
  rope.change_config({{"eos_token_id", {3, 5, 7}}});
  test::write_file(rope.folder / "from/generation_config.json",
                   R"({"eos_token_id": 5, "temperature": 0.5})");
  ASSERT_EQ(rope.run({"--to", "llama"}).exit_code, 0);
  const auto settings =
      nlohmann::json::parse(test::read_file(rope.folder / "to/generation_config.json"));
  EXPECT_EQ(settings["eos_token_id"], (nlohmann::json{5, 3, 7}));
  EXPECT_EQ(settings["temperature"], 0.5);
}

// What the layout has no key for is kept beside it.
TEST(ConvertCommand, BiasesBesideAMemoryAreKept) {
  models::DecoderConfig config = test::small_config();
  config.attention.qkv_bias = true;
  config.attention.key_shift = config.attention.value_shift = true;
  config.mixer = "memory_attention";
  config.memory.window = 16;
  config.memory.layers = {0};
  config.memory.top_k = 3;
  const Converted model(config);
  ASSERT_EQ(model.run({"--dtype", "f32"}).exit_code, 0);
  const auto own =
      nlohmann::json::parse(test::read_file(model.folder / "to/config.json")).at("reynard");
  EXPECT_EQ(own.at("qkv_bias"), true);
  EXPECT_EQ(own.at("memory").at("top_k"), 3);
  EXPECT_TRUE(models::load_config(model.to).attention.qkv_bias);
  EXPECT_BITWISE_EQUAL(hidden_of(model.to), hidden_of(model.from));
}

TEST(ConvertCommand, SmallerWeights) {
  const Converted pro("fox_pro");
  ASSERT_EQ(pro.run({"--dtype", "bf16"}).exit_code, 0);
  const auto config = nlohmann::json::parse(test::read_file(pro.folder / "to/config.json"));
  EXPECT_EQ(config["dtype"], "bfloat16");
  EXPECT_LT(std::filesystem::file_size(pro.folder / "to/model.safetensors"),
            std::filesystem::file_size(pro.folder / "from/model.safetensors") * 6 / 10);
  const at::Tensor from = hidden_of(pro.from), to = hidden_of(pro.to);
  // 8 bits of mantissa through a few dozen products of order 1.
  EXPECT_LT((to - from).norm().item<double>(), 0.05 * from.norm().item<double>());
}

TEST(ConvertCommand, WeightsBeyondTheRangeOfADtypeAreRefused) {
  const Converted large("rope");
  models::Decoder decoder = models::load_model(large.from);
  decoder.head().value.mutable_data_ptr<float>()[0] = 1e5F;
  models::save_model(decoder, large.from);
  large.expect_error({"--dtype", "f16"}, "has values up to 100000, beyond the range of Half; bf16");
  EXPECT_FALSE(std::filesystem::exists(large.to));
  EXPECT_EQ(large.run({"--dtype", "bf16"}).exit_code, 0);
}

TEST(ConvertCommand, NamesWhatCannotBeExpressed) {
  const Converted pro("fox_pro");
  pro.expect_error({"--to", "forgetting_transformer"},
                   "attention.output_norm is on, attention.key_shift is on, attention.value_shift");
  pro.expect_error({"--to", "llama"}, "attention.forget_gate");
  pro.expect_error({"--to", "gpt2"}, "model_type \"gpt2\" is not supported; supported: ");
  EXPECT_FALSE(std::filesystem::exists(pro.to));
  ASSERT_EQ(pro.run({}).exit_code, 0);
  pro.expect_error({}, "exists; name a folder that does not");
  const Converted rope("rope");
  rope.expect_error({"--to", "qwen2"}, "attention.qkv_bias is off");
}

TEST(ConvertCommand, AnEmptyFolderOfTheUserStaysWhereNothingWasWritten) {
  const Converted pro("fox_pro");
  std::filesystem::create_directory(pro.to);
  pro.expect_error({"--to", "llama"}, "attention.forget_gate");
  EXPECT_TRUE(std::filesystem::is_empty(pro.to));
}

TEST(ConvertCommand, AnEmptyFolderMayHaveAnotherName) {
  const Converted rope("rope");
  std::filesystem::create_directories(rope.folder / "here");
  std::filesystem::create_directories(rope.folder / "real");
  std::filesystem::create_directory_symlink("real", rope.folder / "link");
  const auto convert = [&](const std::string& folder, const std::string& to) {
    return test::run_program({.arguments = {"convert", rope.from, to}, .folder = folder});
  };
  const auto here = convert((rope.folder / "here").string(), ".");
  EXPECT_EQ(here.exit_code, 0) << here.errors;
  EXPECT_TRUE(std::filesystem::exists(rope.folder / "here/model.safetensors"));
  const auto link = convert(rope.folder.path().string(), "link");
  EXPECT_EQ(link.exit_code, 0) << link.errors;
  EXPECT_TRUE(std::filesystem::exists(rope.folder / "real/model.safetensors"));
}

TEST(ConvertCommand, AFolderIsWrittenByOneProcess) {
  const Converted pro("fox_pro");
  std::filesystem::create_directory(pro.to);
  {
    const checkpoint::FolderLock lock(pro.to);
    pro.expect_error({}, "to: another process is writing there");
    EXPECT_TRUE(std::filesystem::is_empty(pro.to));
  }
  ASSERT_EQ(pro.run({}).exit_code, 0);
  EXPECT_BITWISE_EQUAL(hidden_of(pro.to), hidden_of(pro.from));
}

TEST(ConvertCommand, ALinkThatLeadsNowhereIsNamed) {
  const Converted pro("fox_pro");
  std::filesystem::create_symlink("nowhere", pro.to);
  pro.expect_error({}, "to is a link that leads nowhere; remove it or name another folder");
}

// What a killed process left is as large as the model.
TEST(ConvertCommand, LeftoversOfItsFolderAreRemoved) {
  const Converted pro("fox_pro");
  std::filesystem::create_directory(pro.folder / ".tmp-to-7.0");
  test::write_file(pro.folder / ".tmp-to-7.0/model.safetensors", "x");
  ASSERT_EQ(pro.run({}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(pro.folder / ".tmp-to-7.0"));
}

// The FoX authors' code rejects or ignores what only this program reads in their layout, FLA's the
// window; the authors' plain Transformer knows groups of heads.
TEST(ConvertCommand, AsksForALayoutThatItsAuthorsRead) {
  const std::vector<std::string> fox = {"--to", "forgetting_transformer-project_fox"};
  const Converted grouped("grouped_heads"), window("window"), wide("wide_heads");
  grouped.expect_error(fox, "attention.num_kv_heads is not num_heads");
  window.expect_error(fox, "attention.window is set");
  wide.expect_error(fox, "attention.head_dim is not hidden_size / num_heads");
  EXPECT_FALSE(std::filesystem::exists(grouped.to));
  ASSERT_EQ(grouped.run({}).exit_code, 0);  // for this program
  EXPECT_BITWISE_EQUAL(hidden_of(grouped.to), hidden_of(grouped.from));

  models::DecoderConfig plain = test::small_config();
  plain.attention.window = 5;
  Converted(plain).expect_error({"--to", "forgetting_transformer"}, "attention.window is set");

  models::DecoderConfig config_of_llama = config_named("rope");
  config_of_llama.attention.num_kv_heads = 2;
  const Converted llama(config_of_llama);
  ASSERT_EQ(llama.run({"--to", "transformer-project_fox"}).exit_code, 0);
  const auto config = nlohmann::json::parse(test::read_file(llama.folder / "to/config.json"));
  EXPECT_EQ(config["num_kv_heads"], 2);
  EXPECT_BITWISE_EQUAL(hidden_of(llama.to), hidden_of(llama.from));
}

}  // namespace

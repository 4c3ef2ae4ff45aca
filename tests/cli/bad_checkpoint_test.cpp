// Checkpoints and ids that are wrong.

#include "reynard/models/decoder.h"
#include "reynard/models/pretrained.h"
#include "tests/cli/bad_input.h"

#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <filesystem>

namespace {

using namespace reynard;
using test::BadInput;
using test::ProgramResult;

class BadCheckpoint : public BadInput {
 protected:
  BadCheckpoint() {
    models::DecoderConfig config;
    config.vocab_size = 11;
    config.hidden_size = 8;
    config.num_layers = 1;
    config.intermediate_size = 16;
    config.attention.num_heads = 2;
    models::Decoder decoder(config);
    models::save_model(decoder, folder_ / "model");
    // A folder from elsewhere: without checksums, which would find every change before the reader
    // does.
    std::filesystem::remove(folder_ / "model/checksums.json");
    tensors_ = test::read_file(folder_ / "model/model.safetensors");
    uint64_t size = 0;
    std::memcpy(&size, tensors_.data(), sizeof size);
    header_ = nlohmann::ordered_json::parse(tensors_.substr(8, size));
    data_ = tensors_.substr(8 + size);
    test::write_file(folder_ / "ids.json", "[[1, 2, 3]]");
  }
  // What `reynard score` says to the folder with this header and data.
  std::string error_with(const nlohmann::ordered_json& header, const std::string& data) {
    const std::string text = header.dump();
    const uint64_t size = text.size();
    std::string file(reinterpret_cast<const char*>(&size), sizeof size);
    return error_with_file(file + text + data);
  }
  std::string error_with_file(const std::string& file) {
    test::write_file(folder_ / "model/model.safetensors", file);
    return error_of({"score", "model", "--ids", "ids.json"});
  }
  // The header with a change to one tensor.
  nlohmann::ordered_json with(const std::string& tensor,
                              const char* key,
                              const nlohmann::ordered_json& value) const {
    nlohmann::ordered_json header = header_;
    header[tensor][key] = value;
    return header;
  }
  std::string tensors_;
  nlohmann::ordered_json header_;
  std::string data_;
  const std::string norm_ = "model.norm.weight";
};

TEST_F(BadCheckpoint, GoodOnesAreScored) {
  const ProgramResult result = run({"score", "model", "--ids", "ids.json"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(nlohmann::json::parse(result.output).at("token_logprobs").size(), 2U);
  EXPECT_EQ(run({"info", "model"}).exit_code, 0);
}

TEST_F(BadCheckpoint, TensorsThatLieAreNamed) {
  const auto bytes = static_cast<int64_t>(data_.size());
  const auto offsets = header_[norm_]["data_offsets"];
  const int64_t begin = offsets[0];
  // Offsets beyond the file, that overlap, and that do not fit the shape.
  for (const auto& [from, to] : std::vector<std::pair<int64_t, int64_t>>{
           {bytes, bytes + 32}, {begin - 8, begin + 24}, {begin, begin + 16}, {begin, begin - 4}}) {
    EXPECT_EQ(missing(error_with(with(norm_, "data_offsets", {from, to}), data_), norm_), "")
        << from << " " << to;
  }
  EXPECT_EQ(missing(error_with(with(norm_, "dtype", "I32"), data_), norm_), "");
  EXPECT_EQ(missing(error_with(with(norm_, "dtype", "F31"), data_), "F31"), "");
  EXPECT_EQ(missing(error_with(with(norm_, "shape", {2, 4}), data_), norm_), "");
}

TEST_F(BadCheckpoint, MissingAndAdditionalTensorsAreNamed) {
  nlohmann::ordered_json renamed = header_;
  renamed["model.other.weight"] = renamed[norm_];
  renamed.erase(norm_);
  EXPECT_EQ(missing(error_with(renamed, data_), norm_), "");
  nlohmann::ordered_json more = header_;
  const auto bytes = static_cast<int64_t>(data_.size());
  more["model.other.weight"] = {
      {"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {bytes, bytes + 4}}};
  EXPECT_EQ(missing(error_with(more, data_ + "1234"), "model.other.weight"), "");
}

TEST_F(BadCheckpoint, FilesCutShortAreErrors) {
  for (const size_t size : {size_t{0}, size_t{4}, size_t{20}, tensors_.size() - 1}) {
    EXPECT_EQ(missing(error_with_file(tensors_.substr(0, size)), "model.safetensors"), "");
  }
}

// What needs no weights to be known is said before they are read: here they cannot be.
TEST_F(BadCheckpoint, OptionsThatCannotBeAreFoundBeforeTheWeightsAreRead) {
  test::write_file(folder_ / "model/model.safetensors", tensors_.substr(0, 20));
  for (const char* command : {"generate", "chat", "serve"}) {
    const auto with = [&](std::vector<std::string> options) {
      options.insert(options.begin(), {command, "model"});
      return error_of(std::move(options));
    };
    EXPECT_EQ(missing(with({"--int8-cache", "--device", "cuda"}), "--int8-cache: is for the CPU"),
              "");
    EXPECT_EQ(missing(with({"--evict-measured"}), "--evict-measured: the model has no pruning"),
              "");
    EXPECT_EQ(missing(with({"--log-tolerance", "nan"}), "--log-tolerance: nan is not a finite"),
              "");
    if (command == std::string("serve")) continue;  // its clients say how tokens are chosen
    const std::pair<std::vector<std::string>, const char*> choices[] = {
        {{"-m", "0"}, "-m 0; expected at least 1 token"},
        {{"--top-p", "2"}, "--top-p: 2; expected 0 to 1"},
        {{"--temperature", "-1"}, "--temperature: -1; expected 0 or more"},
        {{"--repetition-penalty", "0"}, "--repetition-penalty: 0; expected a number above 0"},
        {{"--logit-bias", "x"}, "--logit-bias x; expected ID=VALUE"},
        {{"--lookup", "-1"}, "--lookup: -1; expected 0 to 31"},
        {{"--lookup", "32"}, "--lookup: 32; expected 0 to 31"},
    };
    for (const auto& [options, message] : choices) EXPECT_EQ(missing(with(options), message), "");
  }
  EXPECT_EQ(missing(error_of({"generate", "model", "--chunk-tokens", "0"}), "--chunk-tokens = 0"),
            "");
}

TEST_F(BadCheckpoint, ConfigsThatCannotBeAreErrors) {
  const auto config = nlohmann::ordered_json::parse(test::read_file(folder_ / "model/config.json"));
  const auto error = [&](const char* key, const nlohmann::ordered_json& value) {
    nlohmann::ordered_json changed = config;
    changed[key] = value;
    test::write_file(folder_ / "model/config.json", changed.dump());
    return error_of({"info", "model"});
  };
  EXPECT_EQ(missing(error("num_heads", 0), "num_heads"), "");
  EXPECT_EQ(missing(error("num_heads", 3), "num_heads"), "");
  EXPECT_EQ(missing(error("window_size", -7), "config.json: window_size = -7; -7 must be >= 0"),
            "");
  EXPECT_EQ(missing(error("hidden_size", "8"), "hidden_size"), "");
  EXPECT_EQ(missing(error("hidden_size", int64_t{1} << 60), "hidden_size"), "");
  EXPECT_EQ(missing(error("model_type", "parrot"), "parrot"), "");
  test::write_file(folder_ / "model/config.json", "{");
  EXPECT_EQ(missing(error_of({"info", "model"}), "config.json"), "");
  EXPECT_EQ(missing(error_of({"info", "none"}), "none"), "");
}

TEST_F(BadCheckpoint, BadIdsAreErrors) {
  const auto error = [&](const std::string& text) {
    test::write_file(folder_ / "ids.json", text);
    return error_of({"score", "model", "--ids", "ids.json"});
  };
  for (const char* text : {"",
                           "[",
                           "{}",
                           "[]",
                           "[1]",
                           "[[1]]",
                           "[[1, 11]]",
                           "[[1, -1]]",
                           "[[1, 2.5]]",
                           "[[1, \"2\"]]",
                           "[[1, 18446744073709551615]]"}) {
    EXPECT_EQ(missing(error(text), "ids.json"), "") << text;
  }
  EXPECT_EQ(missing(error_of({"score", "model", "--ids", "none.json"}), "none.json"), "");
}

TEST_F(BadCheckpoint, APipeIsNotAFileOfIds) {
  ASSERT_EQ(::mkfifo((folder_ / "ids").c_str(), 0600), 0);
  EXPECT_EQ(missing(error_of({"score", "model", "--ids", "ids"}), "ids: is a pipe or a device"),
            "");
}

TEST_F(BadCheckpoint, SequencesBeyondTheMemoryAreErrors) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's shadow memory is beyond any limit";
#endif
  std::string ids = "[[1";
  for (int i = 0; i < 1000000; ++i) ids += ",2";
  test::write_file(folder_ / "ids.json", ids + "]]");
  const ProgramResult result =
      test::run_program({.arguments = {"score", "model", "--ids", "ids.json"},
                         .folder = folder_.path(),
                         .memory_limit = int64_t{300} << 20});
  EXPECT_EQ(result.exit_code, 2) << result.errors;
  EXPECT_TRUE(result.errors.starts_with("reynard: out of memory")) << result.errors;
}

}  // namespace

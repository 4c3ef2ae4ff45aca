// reynard generate as a user runs it.

#include "reynard/models/pretrained.h"
#include "reynard/tensor/device.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/tokenizers.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace reynard;
using nlohmann::json;
using test::ProgramResult;

// A folder with a small model of bytes that forgets quickly.
struct ModelFolder {
  test::TempDir folder;
  std::string path = (folder / "model").string();

  explicit ModelFolder(models::QKNorm qk_norm = models::QKNorm::kPerHead) {
    models::DecoderConfig config = test::small_config();
    config.vocab_size = 258;
    config.attention.qk_norm = qk_norm;
    config.attention.num_kv_heads = 2;
    models::Decoder decoder(config, /*seed=*/3);
    test::spread_weights(decoder, 4);
    models::save_model(decoder, path);
  }
  ProgramResult generate(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"generate", path});
    return test::run_program({.arguments = arguments});
  }
  json generate_json(std::vector<std::string> arguments) const {
    arguments.emplace_back("--json");
    const ProgramResult result = generate(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    json lines = json::array();
    std::istringstream stream(result.output);
    for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
    return lines;
  }
};

TEST(GenerateCommand, TextFromArgumentFileOrStandardInput) {
  const ModelFolder model;
  const ProgramResult text = model.generate({"Hello", "-m", "20", "--ignore-eos"});
  ASSERT_EQ(text.exit_code, 0) << text.errors;
  EXPECT_EQ(text.output.back(), '\n');
  test::write_file(model.folder / "prompt.txt", "Hello");
  const std::string file = (model.folder / "prompt.txt").string();
  EXPECT_EQ(model.generate({"--file", file, "-m", "20", "--ignore-eos"}).output, text.output);
  // Standard input is empty here: BOS alone.
  EXPECT_EQ(model.generate({"-m", "2", "--ignore-eos"}).exit_code, 0);
}

TEST(GenerateCommand, EndTokensThatAreNoneAreErrors) {
  const ModelFolder model;
  const auto error_with = [&](const char* text) {
    test::write_file(model.folder / "model/generation_config.json", text);
    const ProgramResult result = model.generate({"ab", "-m", "1"});
    EXPECT_EQ(result.exit_code, 2) << text;
    return result.errors;
  };
  for (const char* ids : {"\"a\"", "-1", "258", "[0,-3]", "[0,1.5]", "[[0]]", "{}"}) {
    const std::string error = error_with(("{\"eos_token_id\":" + std::string(ids) + "}").c_str());
    EXPECT_NE(error.find("generation_config.json: eos_token_id = " + std::string(ids) +
                         "; must be a token of the vocabulary, 0 to 257, or a list of them\n"),
              std::string::npos)
        << error;
  }
  EXPECT_NE(error_with("[").find("generation_config.json: "), std::string::npos);
  for (const char* text : {"{}", R"({"eos_token_id":null})", R"({"eos_token_id":[0,257]})"}) {
    test::write_file(model.folder / "model/generation_config.json", text);
    EXPECT_EQ(model.generate({"ab", "-m", "1"}).exit_code, 0) << text;
  }
}

TEST(GenerateCommand, SeedsAndSeveralTexts) {
  const ModelFolder model;
  const std::vector<std::string> sampled = {"ab", "-m", "30", "-t", "1", "--seed", "5"};
  const json one = model.generate_json(sampled);
  EXPECT_EQ(one, model.generate_json(sampled));
  std::vector<std::string> several = sampled;
  several.insert(several.end(), {"-n", "3"});
  const json three = model.generate_json(several);
  ASSERT_EQ(three.size(), 3U);
  for (int i = 0; i < 3; ++i) {
    std::vector<std::string> alone = sampled;
    alone.back() = std::to_string(5 + i);
    EXPECT_EQ(three[i], model.generate_json(alone)[0]) << i;
    EXPECT_EQ(three[i]["seed"], 5 + i);
  }
}

TEST(GenerateCommand, BestOfRanksByMeanLogprob) {
  const ModelFolder model;
  const json best = model.generate_json(
      {"ab", "-m", "10", "-t", "1", "-n", "2", "--best-of", "6", "--logprobs", "2"});
  auto all = model.generate_json({"ab", "-m", "10", "-t", "1", "-n", "6", "--logprobs", "2"})
                 .get<std::vector<json>>();
  std::ranges::stable_sort(all, [](const json& a, const json& b) {
    return a["mean_logprob"].get<double>() > b["mean_logprob"].get<double>();
  });
  ASSERT_EQ(best.size(), 2U);
  EXPECT_EQ(best[0], all[0]);
  EXPECT_EQ(best[1], all[1]);
  EXPECT_EQ(all[0]["tokens"][0]["top"].size(), 2U);
}

// The token that ends a text counts: no text would be better than the empty one.
TEST(GenerateCommand, EmptyTextsAreRankedByTheirEnd) {
  const ModelFolder model;
  const json empty =
      model.generate_json({"ab", "-m", "4", "--logprobs", "0", "--logit-bias", "257=1e4"});
  EXPECT_EQ(empty[0]["tokens"].size(), 0U);
  EXPECT_LT(empty[0]["mean_logprob"].get<double>(), 0);
}

// As the server's: alone a token of SentencePiece would lose the blank that it begins with.
TEST(GenerateCommand, TokensAreShownWithTheirBlanks) {
  const ModelFolder model;
  models::DecoderConfig config = models::load_config(model.path);
  const auto tokenizer = test::sentencepiece_tokenizer();
  config.vocab_size = tokenizer->vocab_size() + 1;  // padded
  models::Decoder decoder(config, /*seed=*/3);
  models::save_model(decoder, model.path);
  test::write_file(model.folder / "model/tokenizer.model", test::sentencepiece_model());
  const auto shown = [&](int64_t id) {
    const std::string bias = std::to_string(id) + "=1e5";
    return model.generate_json(
        {"the", "-m", "1", "--logprobs", "1", "--ignore-eos", "--logit-bias", bias})[0]["tokens"]
                                                                                    [0];
  };
  const std::vector<int32_t> ids = tokenizer->encode("the hello");
  ASSERT_EQ(ids.size(), 2U);
  EXPECT_EQ(shown(ids[1])["text"], " hello");
  EXPECT_EQ(shown(tokenizer->eos().value())["text"], "</s>");
  EXPECT_EQ(shown(tokenizer->vocab_size())["text"], "");
}

TEST(GenerateCommand, StatsCountWhatEvictionFreed) {
  const ModelFolder model;
  const std::string prompt(600, 'x');
  const std::vector<std::string> arguments = {
      prompt, "-m", "40", "--ignore-eos", "--stats", "--log-tolerance", "-10"};
  const json kept = model.generate_json(
      {prompt, "-m", "40", "--ignore-eos", "--stats", "--log-tolerance", "-10", "--keep-all"});
  const json freed = model.generate_json(arguments);
  EXPECT_EQ(kept[0]["stats"]["cache"]["bytes_saved"], 0);
  EXPECT_TRUE(kept[0]["stats"]["cache"]["log_evicted_share"].is_null());
  EXPECT_GT(freed[0]["stats"]["cache"]["bytes_saved"], 0);
  EXPECT_LE(freed[0]["stats"]["cache"]["log_evicted_share"], -10.0);
  EXPECT_EQ(freed[0]["stats"]["cache"]["pages_seen"], 10);
  const ProgramResult people = model.generate(arguments);
  EXPECT_SAYS(people.errors, "pages kept of 10 per key/value head:\n  layer 1 ");
  EXPECT_FALSE(test::says(people.errors, "layer 0"));
  std::vector<std::string> narrow = arguments;
  narrow.emplace_back("--int8-cache");
  const json cache = model.generate_json(narrow)[0]["stats"]["cache"];
  EXPECT_GT(cache["bytes_saved"], 0);
  EXPECT_EQ(cache["eviction"], freed[0]["stats"]["cache"]["eviction"]);
}

TEST(GenerateCommand, StatsOfSeveralTextsAreEachTextsOwn) {
  const ModelFolder model;
  const json texts = model.generate_json(
      {"ab", "-m", "60", "-t", "1", "-n", "2", "--logit-bias", "257=3", "--stats"});
  ASSERT_EQ(texts.size(), 2U);
  EXPECT_NE(texts[0]["tokens"].size(), texts[1]["tokens"].size());
  for (const json& text : texts) {
    EXPECT_GT(text["tokens"].size(), 0U);
    EXPECT_EQ(text["stats"]["new_tokens"], text["tokens"].size());
  }
}

TEST(GenerateCommand, CachesOfInt8TakeLessMemory) {
  const ModelFolder model;
  std::vector<std::string> arguments = {
      std::string(600, 'x'), "-m", "5", "--ignore-eos", "--stats"};
  const json wide = model.generate_json(arguments);
  arguments.emplace_back("--int8-cache");
  const json narrow = model.generate_json(arguments);
  EXPECT_LT(narrow[0]["stats"]["cache"]["bytes_kept"].get<double>(),
            0.6 * wide[0]["stats"]["cache"]["bytes_kept"].get<double>());
  EXPECT_EQ(narrow[0]["text"], model.generate_json(arguments)[0]["text"]);
}

TEST(GenerateCommand, EvictionWithoutQKNormIsAskedForAndAHeuristic) {
  const ModelFolder model(models::QKNorm::kNone);
  const std::string prompt(600, 'x');
  std::vector<std::string> arguments = {
      prompt, "-m", "40", "--ignore-eos", "--stats", "--log-tolerance", "-10"};
  const json kept = model.generate_json(arguments)[0]["stats"]["cache"];
  EXPECT_EQ(kept["bytes_saved"], 0);
  arguments.emplace_back("--evict-measured");
  const json freed = model.generate_json(arguments)[0]["stats"]["cache"];
  EXPECT_GT(freed["bytes_saved"], 0);
  EXPECT_EQ(freed["eviction"], "heuristic");
  std::vector<std::string> of_int8 = arguments;
  of_int8.emplace_back("--int8-cache");
  const json narrow = model.generate_json(of_int8)[0]["stats"]["cache"];
  EXPECT_GT(narrow["bytes_saved"], 0);
  EXPECT_LT(narrow["page_bytes"], freed["page_bytes"]);
  EXPECT_EQ(narrow["eviction"], "heuristic");
  const ProgramResult people = model.generate(arguments);
  EXPECT_NE(people.errors.find("heuristic"), std::string::npos) << people.errors;
  const ProgramResult no_tolerance = model.generate({"a", "--evict-measured"});
  EXPECT_EQ(no_tolerance.exit_code, 2);
  EXPECT_NE(no_tolerance.errors.find("--log-tolerance -10"), std::string::npos)
      << no_tolerance.errors;
  const ProgramResult bounded = ModelFolder().generate({"a", "--evict-measured"});
  EXPECT_EQ(bounded.exit_code, 2);
  EXPECT_NE(bounded.errors.find("has QK-norm"), std::string::npos) << bounded.errors;
}

TEST(GenerateCommand, ToleranceOfAModelThatForgetsNothingIsAnError) {
  const test::TempDir folder;
  models::DecoderConfig config = test::small_config();
  config.vocab_size = 258;
  config.attention.forget_gate = models::ForgetGate::kNone;
  models::Decoder decoder(config, /*seed=*/3);
  const std::string model = (folder / "model").string();
  models::save_model(decoder, model);
  const auto generate = [&](const std::string& tolerance) {
    return test::run_program(
        {.arguments = {"generate", model, "a", "-m", "2", "--log-tolerance", tolerance}});
  };
  const ProgramResult refused = generate("-10");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.errors,
            "reynard: --log-tolerance -10: the model has no forget gates, so nothing is ever "
            "forgotten\n");
  EXPECT_EQ(generate("0").exit_code, 0);
}

TEST(GenerateCommand, LogLevelShowsThePathOfAttention) {
  const ModelFolder model;
  EXPECT_EQ(model.generate({"a", "-m", "1"}).errors.find("CPU path"), std::string::npos);
  setenv("TORCH_CPP_LOG_LEVEL", "INFO", 1);
  const std::string logged = model.generate({"a", "-m", "1"}).errors;
  unsetenv("TORCH_CPP_LOG_LEVEL");
  EXPECT_NE(logged.find("attention: CPU path "), std::string::npos) << logged;
}

// A thread that sleeps at once is woken sixty times a token.
TEST(GenerateCommand, ThreadsSpinForAMomentBeforeTheySleep) {
  unsetenv("OMP_WAIT_POLICY");
  setenv("OMP_DISPLAY_ENV", "verbose", 1);
  const auto shown = [](const char* command) {
    return test::run_program({.arguments = {command, "--help"}}).errors;
  };
  const std::string generate = shown("generate"), score = shown("score");
  unsetenv("OMP_DISPLAY_ENV");
  setenv("OMP_WAIT_POLICY", "passive", 1);
  for (const std::string& text : {generate, score}) {
    EXPECT_NE(text.find("OMP_WAIT_POLICY = 'PASSIVE'"), std::string::npos) << text;
  }
  EXPECT_NE(generate.find("GOMP_SPINCOUNT = '5000'"), std::string::npos) << generate;
  EXPECT_NE(score.find("GOMP_SPINCOUNT = '0'"), std::string::npos) << score;
}

// An option that may be given again takes one value each time: the next word is not its.
TEST(GenerateCommand, OptionsThatMayBeGivenAgainShowOneValue) {
  for (const auto& [command, option] : {std::pair("generate", "--stop"),
                                        {"generate", "--logit-bias"},
                                        {"sweep", "--grid"},
                                        {"eval", "--text"}}) {
    const std::string help = test::run_program({.arguments = {command, "--help"}}).output;
    EXPECT_NE(help.find(std::string(option) + " TEXT  "), std::string::npos) << help;
  }
  const ModelFolder model;
  const auto twice =
      model.generate({"--logit-bias", "66=1e4", "--logit-bias", "65=1e5", "a", "-m", "3"});
  EXPECT_EQ(twice.output, "AAA\n") << twice.errors;
}

TEST(GenerateCommand, GuessingAndBiasAndStop) {
  const ModelFolder model;
  const std::vector<std::string> plain = {"abcabcabc", "-m", "40", "--ignore-eos"};
  std::vector<std::string> guessing = plain;
  guessing.insert(guessing.end(), {"--lookup", "5"});
  EXPECT_EQ(model.generate(plain).output, model.generate(guessing).output);
  EXPECT_EQ(model.generate({"a", "-m", "4", "--logit-bias", "65=100"}).output, "AAAA\n");
  const json stopped =
      model.generate_json({"a", "-m", "4", "--logit-bias", "10=100", "--stop", "\\n"});
  EXPECT_EQ(stopped[0]["text"], "");
  EXPECT_EQ(stopped[0]["finish_reason"], "stop");
  // Guessed tokens behind a stop string are none of the text.
  const std::vector<std::string> repeats = {
      "AAAAAA", "-m", "9", "--logit-bias", "65=100", "--stop", "A", "--logprobs", "0"};
  std::vector<std::string> guessed = repeats;
  guessed.insert(guessed.end(), {"--lookup", "5"});
  EXPECT_EQ(model.generate_json(repeats)[0]["tokens"].size(), 1U);
  EXPECT_EQ(model.generate_json(guessed)[0]["tokens"].size(), 1U);
}

TEST(GenerateCommand, BadInput) {
  const ModelFolder model;
  const auto expect_error = [&](const std::vector<std::string>& arguments,
                                const std::string& part) {
    const ProgramResult result = model.generate(arguments);
    EXPECT_EQ(result.exit_code, 2) << part;
    EXPECT_NE(result.errors.find(part), std::string::npos) << result.errors;
    EXPECT_EQ(result.output, "");
  };
  expect_error({"a", "--top-p", "2"}, "--top-p: 2; expected 0 to 1");
  expect_error({"a", "-m", "0"}, "-m 0; expected at least 1 token");
  expect_error({"a", "-t", "-1"}, "--temperature: -1; expected 0 or more");
  expect_error({"a", "--logit-bias", "65"}, "--logit-bias 65; expected ID=VALUE");
  expect_error({"a", "--logit-bias", "65=inf", "--logit-bias", "65=-inf"}, "token 65");
  for (const std::string bias : {"258=1", "-1=1"}) {
    expect_error({"a", "--logit-bias", "65=1", "--logit-bias", bias},
                 "--logit-bias " + bias + ": the model has no token " +
                     bias.substr(0, bias.find('=')) + "; expected an id from 0 to 257");
  }
  expect_error({"a", "--file", "b"}, "PROMPT and --file");
  expect_error({"--file", "nowhere"}, "nowhere cannot be read");
  expect_error({"a", "--stop", ""}, "stop string");
  expect_error({"a", "-n", "3", "--best-of", "2"}, "--best-of");
  expect_error({"a", "--lookup", "99"}, "--lookup: 99; expected 0 to 31");
  expect_error({"a", "--tokenizer", "nonsense"}, "nonsense");
  expect_error({"a", "--chunk-tokens", "0"}, "--chunk-tokens = 0");
  expect_error({"a", "--logprobs", "3"}, "--logprobs needs --json");
  expect_error({"a", "--device", "tpu"}, "--device");
  if (tensor::num_gpus() == 0) expect_error({"a", "--device", "cuda"}, "there is no NVIDIA GPU");
}

TEST(GenerateCommand, ATokenizerOfOtherIdsThanTheModelsIsRefused) {
  const ModelFolder model;
  const std::string own = test::byte_level_json().dump();
  test::write_file(model.folder / "same.json", own);
  models::DecoderConfig config = models::load_config(model.path);
  config.vocab_size = 270;
  models::Decoder decoder(config, /*seed=*/3);
  models::save_model(decoder, model.path);
  test::write_file(model.folder / "model/tokenizer.json", own);
  test::write_file(model.folder / "texts.json", R"(["a text"])");
  test::write_file(model.folder / "text.txt", std::string(500, 'x'));
  const std::string folder = model.folder.path().string();
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"generate", "model", "a", "-m", "2"},
        {"score", "model", "--texts", "texts.json"},
        {"eval", "model", "--text", "text.txt", "--task", "per_position_loss", "--length", "16"}}) {
    const auto run = [&](const std::string& tokenizer) {
      std::vector<std::string> all = arguments;
      all.insert(all.end(), {"--tokenizer", tokenizer});
      return test::run_program({.arguments = all, .folder = folder});
    };
    const ProgramResult other = run("byte");
    EXPECT_EQ(other.exit_code, 2) << arguments[0];
    EXPECT_SAYS(other.errors, "--tokenizer byte and model are of different tokenizers: the token");
    EXPECT_SAYS(other.errors, "leave --tokenizer out to use the model's own");
    EXPECT_EQ(run("same.json").exit_code, 0) << arguments[0];
    EXPECT_EQ(run("json:same.json").exit_code, 0) << arguments[0];
  }
  // Files that are of no use are a reason to name others.
  test::write_file(model.folder / "model/tokenizer.json", "{");
  EXPECT_EQ(model.generate({"a", "-m", "2", "--tokenizer", "byte"}).exit_code, 0);
}

TEST(GenerateCommand, ModelsWithoutATokenizerSaySo) {
  const test::TempDir folder;
  models::Decoder decoder(test::small_config(), /*seed=*/3);
  models::save_model(decoder, folder / "model");
  const ProgramResult result =
      test::run_program({.arguments = {"generate", (folder / "model").string(), "a"}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.errors.find("--tokenizer"), std::string::npos) << result.errors;
}

}  // namespace

// reynard chat as a user runs it.

#include "reynard/models/pretrained.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/tokenizers.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace reynard;
using nlohmann::json;
namespace fs = std::filesystem;
using test::ProgramResult;

struct ChatCommand : testing::Test {
  test::TempDir folder;
  std::string model = (folder / "model").string();

  ChatCommand() {
    models::DecoderConfig config = test::small_config();
    config.vocab_size = 258;
    config.attention.key_shift = true;
    models::Decoder decoder(config, /*seed=*/3);
    test::spread_weights(decoder, 4);
    models::save_model(decoder, model);
  }
  ProgramResult chat(std::vector<std::string> arguments, const std::string& typed) const {
    test::write_file(folder / "typed", typed);
    arguments.insert(arguments.begin(), {"chat", model});
    return test::run_program({.arguments = arguments, .input_file = (folder / "typed").string()});
  }
};

std::vector<json> lines_of(const std::string& output) {
  std::vector<json> lines;
  std::istringstream stream(output);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST_F(ChatCommand, GoesOnBehindATurnWhereItIsTold) {
  std::vector<std::string> arguments = {
      "--chat-template", "longllama", "-m", "3", "--logit-bias", "257=1e4", "--json"};
  EXPECT_EQ(lines_of(chat(arguments, "Hello\n").output).at(0)["new_tokens"], 0);
  arguments.emplace_back("--ignore-eos");
  EXPECT_EQ(lines_of(chat(arguments, "Hello\n").output).at(0)["new_tokens"], 3);
}

TEST_F(ChatCommand, TurnsReadTheirOwnWordsAlone) {
  const std::vector<std::string> arguments = {
      "--chat-template", "chatml", "--system", "Be brief.", "-m", "12", "--ignore-eos", "--json"};
  const ProgramResult run = chat(arguments, "Hello\nAnd in two\\\nlines?\n/new\n\nHello\n");
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  const std::vector<json> answers = lines_of(run.output);
  ASSERT_EQ(answers.size(), 3U);
  EXPECT_EQ(answers[0]["finish_reason"], "length");
  EXPECT_EQ(answers[0]["new_tokens"], 12);
  EXPECT_EQ(answers[0]["reused_tokens"], 0);
  // All that was read and written, but the newest token.
  EXPECT_GT(answers[1]["reused_tokens"], answers[0]["prompt_tokens"]);
  EXPECT_GT(answers[1]["prompt_tokens"], answers[0]["prompt_tokens"]);
  EXPECT_EQ(answers[2]["content"], answers[0]["content"]) << "a new conversation";
  // The answer to the whole conversation at once is the same.
  json history = json::array({{{"role", "system"}, {"content", "Be brief."}},
                              {{"role", "user"}, {"content", "Hello"}},
                              {{"role", "assistant"}, {"content", answers[0]["content"]}}});
  test::write_file(folder / "history.json", history.dump());
  const ProgramResult again = chat({"--chat-template",
                                    "chatml",
                                    "-m",
                                    "12",
                                    "--ignore-eos",
                                    "--json",
                                    "--history",
                                    (folder / "history.json").string()},
                                   "And in two\\\nlines?\n");
  EXPECT_EQ(lines_of(again.output).at(0)["content"], answers[1]["content"]) << again.errors;
}

TEST_F(ChatCommand, ANewConversationKeepsTheSystemsTextOfItsHistoryAlone) {
  const std::string file = (folder / "history.json").string();
  const auto roles_after = [&](const json& history, std::vector<std::string> more) {
    test::write_file(file, history.dump());
    more.insert(more.end(),
                {"--chat-template", "chatml", "-m", "2", "--ignore-eos", "--history", file});
    const ProgramResult run = chat(more, "/new\nHello\n");
    EXPECT_EQ(run.exit_code, 0) << run.errors;
    std::vector<std::string> roles;
    for (const json& message : json::parse(test::read_file(file))) roles.push_back(message["role"]);
    // What was said before is put aside.
    const fs::path aside = folder / "history-1.json";
    EXPECT_EQ(fs::exists(aside) ? json::parse(test::read_file(aside)) : json::array(), history);
    fs::remove(aside);
    return roles;
  };
  const json system = {{"role", "system"}, {"content", "Be brief."}};
  const json user = {{"role", "user"}, {"content", "Hi"}};
  const json assistant = {{"role", "assistant"}, {"content", "Hi."}};
  const std::vector<std::string> with_system = {"system", "user", "assistant"};
  const std::vector<std::string> without = {"user", "assistant"};
  EXPECT_EQ(roles_after({system, user, assistant}, {}), with_system);
  EXPECT_EQ(roles_after({system, user, assistant}, {"--system", "Be brief."}), with_system);
  EXPECT_EQ(roles_after({user, assistant}, {}), without);
  EXPECT_EQ(roles_after(json::array(), {"--system", "Be brief."}), with_system);
}

TEST_F(ChatCommand, AHistoryThatIsALinkStaysOne) {
  fs::create_directory(folder / "kept");
  fs::create_symlink("kept/talk.json", folder / "link.json");
  const ProgramResult run = chat({"--chat-template",
                                  "chatml",
                                  "-m",
                                  "2",
                                  "--ignore-eos",
                                  "--history",
                                  (folder / "link.json").string()},
                                 "Hello\n");
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_TRUE(fs::is_symlink(folder / "link.json"));
  EXPECT_EQ(json::parse(test::read_file(folder / "kept/talk.json")).size(), 2U);
}

// While one chat waits for its second message, another goes on from its first.
TEST_F(ChatCommand, TwoOnOneHistoryKeepBothConversations) {
  const std::string command = "timeout 50 " REYNARD_BINARY_DIR "/bin/reynard chat " + model +
                              " --chat-template chatml -m 2 --ignore-eos --history " +
                              (folder / "talk.json").string();
  const std::string first =
      "(echo One; for wait in $(seq 500); do [ -s " + (folder / "talk.json").string() +
      " ] && break; sleep 0.1; done; echo Two | " + command + " >" + (folder / "second").string() +
      "; echo Three; echo Four) | " + command + " >" + (folder / "first").string() + " 2>" +
      (folder / "errors").string();
  ASSERT_EQ(std::system(first.c_str()), 0);  // NOLINT(concurrency-mt-unsafe)
  const auto said = [&](const char* file) {
    std::vector<std::string> words;
    for (const json& message : json::parse(test::read_file(folder / file))) {
      if (message["role"] == "user") words.push_back(message["content"]);
    }
    return words;
  };
  EXPECT_EQ(said("talk.json"), (std::vector<std::string>{"One", "Two"}));
  EXPECT_EQ(said("talk-1.json"), (std::vector<std::string>{"One", "Three", "Four"}));
  EXPECT_FALSE(fs::exists(folder / "talk-2.json"));
  EXPECT_NE(test::read_file(folder / "errors").find("this conversation is in"), std::string::npos);
}

TEST_F(ChatCommand, TextStreamsToPipesToo) {
  const ProgramResult run =
      chat({"--chat-template", "llama3", "-m", "3", "--logit-bias", "65=100"}, "Hello\nMore\n");
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_EQ(run.output, "AAA\nAAA\n");
}

TEST_F(ChatCommand, LinesThatBeginWithASlashAreCommands) {
  const fs::path file = folder / "talk.json";
  const std::vector<std::string> arguments = {
      "--chat-template", "chatml", "-m", "2", "--ignore-eos", "--json", "--history", file.string()};
  const ProgramResult run = chat(arguments, "/help\n//etc/hosts\\\n/new\n//\n/exit \nHello\n");
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_EQ(lines_of(run.output).size(), 2U);
  const json said = json::parse(test::read_file(file));
  EXPECT_EQ(said.at(0)["content"], "/etc/hosts\n/new");
  EXPECT_EQ(said.at(2)["content"], "/");
  for (const char* command : {"/new ", "/exit ", "/help ", "//TEXT "}) {
    EXPECT_NE(run.errors.find(command), std::string::npos) << run.errors;
  }
  // Nothing of a script is left unsaid without an error.
  const ProgramResult unknown = chat(arguments, "Hello\n/hlep\nMore\n");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(lines_of(unknown.output).size(), 1U);
  EXPECT_NE(unknown.errors.find(R"("/hlep" is no command; expected /new, /exit or /help)"),
            std::string::npos)
      << unknown.errors;
}

TEST_F(ChatCommand, PromptsAreThoseOfJinjaAndTerminalsWork) {
  const std::string command =
      std::string("timeout 100 " REYNARD_TEST_PYTHON " " REYNARD_SOURCE_DIR
                  "/tests/cli/chat_terminal.py " REYNARD_BINARY_DIR "/bin/reynard ") +
      model;
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// As Transformers gives them to templates: its special_tokens_map.
TEST_F(ChatCommand, TemplatesGetTheSpecialTokensOfTheFolder) {
  const std::string all =
      "[{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ pad_token }}]{{ image_token }}";
  const auto prompt_of = [&](json config, const json& map, const std::string& source) {
    config["chat_template"] = source;
    test::write_file(model + "/tokenizer_config.json", config.dump());
    fs::remove(model + "/special_tokens_map.json");
    if (!map.is_null()) test::write_file(model + "/special_tokens_map.json", map.dump());
    const ProgramResult run = chat({"--show-prompt", "-m", "1"}, "Hi\n");
    EXPECT_EQ(run.exit_code, 0) << run.errors;
    return run.errors.substr(0, run.errors.find('\n'));
  };
  const json end = {{"content", "EOT"}, {"lstrip", false}};
  EXPECT_EQ(prompt_of({{"tokenizer_class", "X"}}, {{"bos_token", "EOT"}, {"eos_token", end}}, all),
            "[EOT|EOT||]");
  EXPECT_EQ(prompt_of({{"bos_token", "B"}, {"eos_token", end}, {"unk_token", "U"}},
                      {{"bos_token", "other"}, {"pad_token", "P"}},
                      all),
            "[other|EOT|U|P]");
  EXPECT_EQ(prompt_of({{"bos_token", nullptr}, {"pad_token", nullptr}, {"add_bos_token", true}},
                      {{"bos_token", "B"}, {"pad_token", "P"}},
                      all),
            "[B|<eos>||P]");
  EXPECT_EQ(prompt_of({{"bos_token", nullptr}, {"added_tokens_decoder", json::object()}},
                      {{"bos_token", "B"}, {"pad_token", "P"}},
                      all),
            "[|<eos>||]");
  EXPECT_EQ(
      prompt_of({{"tokenizer_class", "PreTrainedTokenizerFast"}, {"pad_token", "P"}}, {}, all),
      "[|||P]");
  EXPECT_EQ(prompt_of({{"extra_special_tokens", {{"image_token", "<img>"}}}}, {}, all),
            "[<bos>|<eos>||]<img>");
  EXPECT_EQ(prompt_of({}, {}, "{{ unk_token is defined }}{{ bos_token + messages[0].content }}"),
            "False<bos>Hi");
}

// A folder as published, whose config leaves BOS to the class.
TEST_F(ChatCommand, TemplatesGetTheNamesThatTheTokenizerKnows) {
  test::write_file(model + "/tokenizer.model", test::sentencepiece_model({.byte_fallback = false}));
  test::write_file(
      model + "/tokenizer_config.json",
      json{{"tokenizer_class", "LlamaTokenizer"},
           {"chat_template", "{{ bos_token + '[INST] ' + messages[0].content + ' [/INST]' }}"}}
          .dump());
  const ProgramResult run = chat({"--show-prompt", "-m", "1"}, "Hi\n");
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_TRUE(run.errors.starts_with("<s>[INST] Hi [/INST]\n")) << run.errors;
}

// Before anything is typed, which would be lost.
TEST_F(ChatCommand, MessagesThatTheTemplateRefusesAreToldAtTheStart) {
  test::write_file(folder / "turns.jinja",
                   "{% for m in messages %}{% if m.role == 'system' %}"
                   "{{ raise_exception('no system') }}{% endif %}"
                   "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
                   "{{ raise_exception('roles must alternate') }}{% endif %}"
                   "{{ m.content }}{% endfor %}");
  const std::string file = (folder / "talk.json").string();
  const auto error_of = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {
        "--chat-template", (folder / "turns.jinja").string(), "-m", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult run = chat(arguments, "");
    EXPECT_EQ(run.exit_code, run.errors.empty() ? 0 : 2) << run.errors;
    return run.errors;
  };
  EXPECT_EQ(error_of({}), "");
  test::write_file(file,
                   R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "?"}])");
  EXPECT_EQ(error_of({"--history", file}), "");
  test::write_file(file, R"([{"role": "user", "content": "Hi"}])");
  const std::string refused = error_of({"--history", file});
  EXPECT_NE(refused.find("roles must alternate; they are those of --history \"" + file +
                         "\" and one of the user"),
            std::string::npos)
      << refused;
  const std::string told = error_of({"--system", "Be brief."});
  EXPECT_NE(told.find("no system; they are the text of --system \"Be brief.\""), std::string::npos)
      << told;
}

// The model's own file must not become what is typed or what is written to.
TEST_F(ChatCommand, ClosedStreamsAreEmptyOnes) {
  const std::string out = (folder / "out").string();
  const auto run = [&](const std::string& arguments) {
    const std::string command =
        std::string("timeout 60 " REYNARD_BINARY_DIR "/bin/reynard ") + arguments;
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  const std::string before = test::read_file(model + "/model.safetensors");
  EXPECT_EQ(run("chat " + model + " --chat-template chatml -m 1 --json <&- >" + out + " 2>&1"), 0);
  EXPECT_EQ(test::read_file(out), "");
  EXPECT_EQ(run("generate " + model + " Hello -m 3 --ignore-eos >" + out + " 2>&-"), 0);
  EXPECT_NE(test::read_file(out), "");
  EXPECT_EQ(test::read_file(model + "/model.safetensors"), before);
  EXPECT_EQ(run("generate " + model + " Hello -m 3 --ignore-eos >&- 2>" + out), 2);
  EXPECT_NE(test::read_file(out).find("standard output cannot be written"), std::string::npos);
}

TEST_F(ChatCommand, BadInput) {
  const auto expect_error = [&](const std::vector<std::string>& arguments,
                                const std::string& part) {
    const ProgramResult run = chat(arguments, "Hello\n");
    EXPECT_EQ(run.exit_code, 2) << part;
    EXPECT_NE(run.errors.find(part), std::string::npos) << run.errors;
    EXPECT_EQ(run.output, "");
  };
  expect_error({}, "has no chat template; name one with --chat-template");
  expect_error({"--chat-template", "nonsense"}, "chatml, llama2, llama3");
  test::write_file(folder / "strange.jinja", "{{ messages | xmlattr }}");
  expect_error({"--chat-template", (folder / "strange.jinja").string()},
               "strange.jinja: the chat template: line 1: \"xmlattr\" is no supported filter");
  expect_error({"--chat-template", "chatml", "--logit-bias", "999=1"},
               "--logit-bias 999=1: the model has no token 999; expected an id from 0 to 257");
  test::write_file(folder / "history.json", "{}");
  expect_error({"--chat-template", "chatml", "--history", (folder / "history.json").string()},
               "is no JSON list");
  test::write_file(folder / "history.json",
                   R"([{"role": "user", "content": "Hi"}, {"role": "cat", "content": "?"}])");
  expect_error({"--chat-template", "chatml", "--history", (folder / "history.json").string()},
               "history.json: message 2 has the role \"cat\"; expected system, user or assistant");
  test::write_file(folder / "history.json", R"([{"role": "user", "content": "Hi"}])");
  const std::vector<std::string> told = {"--chat-template",
                                         "chatml",
                                         "--system",
                                         "Be brief.",
                                         "--history",
                                         (folder / "history.json").string()};
  expect_error(told, "begins with no system's text; leave --system out");
  test::write_file(folder / "history.json", R"([{"role": "system", "content": "Be long."}])");
  expect_error(told, "begins with another system's text; leave --system out");
  expect_error({"--chat-template", "chatml", "--history", (folder / "none/history.json").string()},
               "none/history.json");
  test::write_file(model + "/tokenizer_config.json",
                   R"({"chat_template": [{"name": "default", "template": "{% extends 'x' %}"}]})");
  expect_error({}, "\"extends\" is no supported tag");
}

}  // namespace

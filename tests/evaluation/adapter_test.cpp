// Models behind an adapter program: small Python programs that follow the protocol, or do not.

#include "reynard/evaluation/adapter.h"

#include "reynard/tensor/check.h"
#include "tests/support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace reynard::evaluation {
namespace {

// Token t has the log-probability -t / 100 and is a hit where t is even; writes its prompt
// backwards.
constexpr const char* kGood = R"(
import json, sys
print(json.dumps({"name": "stub", "vocab_size": 99, "bos": 1, "eos": None, "generates": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "prompt" in asked:
        answer = {"tokens": asked["prompt"][::-1][:asked["max_tokens"]]}
    elif asked["tokens"][0] == 66:
        answer = {"error": "66 is not a token"}
    else:
        answer = {"logprobs": [-t / 100 for t in asked["tokens"][1:]],
                  "hits": [t % 2 == 0 for t in asked["tokens"][1:]]}
    print(json.dumps(answer), flush=True)
)";

class AdapterTest : public testing::Test {
 protected:
  // The command that runs a Python program.
  std::string python(const std::string& program) {
    test::write_file(folder_ / "adapter.py", program);
    return fmt::format("{} {}", REYNARD_TEST_PYTHON, (folder_ / "adapter.py").string());
  }
  static std::string error_of(const std::function<void()>& act) {
    try {
      act();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  test::TempDir folder_;
};

Request scores(std::vector<int64_t> context, std::vector<int64_t> continuation) {
  return {"x", {}, Score{std::move(context), std::move(continuation), {}}};
}

TEST_F(AdapterTest, AnswersScoresAndText) {
  Adapter adapter(python(kGood), 30);
  EXPECT_EQ(adapter.facts().name, "stub");
  EXPECT_EQ(adapter.facts().vocab_size, 99);
  EXPECT_EQ(adapter.facts().bos, 1);
  EXPECT_FALSE(adapter.facts().eos);
  const auto scorer = make_adapter_scorer(adapter);
  Generate query;
  query.prompt = {3, 4, 5};
  query.max_tokens = 2;
  const std::vector<Request> requests{
      scores({10, 11}, {12, 13}), scores({}, {20, 22}), scores({}, {5}), {"x", {}, query}};
  const std::vector<Response> responses = scorer->answer(requests);
  EXPECT_EQ(std::get<Scored>(responses[0]).logprobs, (std::vector<float>{-0.12F, -0.13F}));
  EXPECT_EQ(std::get<Scored>(responses[0]).hits, (std::vector<uint8_t>{1, 0}));
  EXPECT_TRUE(std::isnan(std::get<Scored>(responses[1]).logprobs[0]));
  EXPECT_EQ(std::get<Scored>(responses[1]).logprobs[1], -0.22F);
  EXPECT_TRUE(std::isnan(std::get<Scored>(responses[2]).logprobs[0]));
  EXPECT_EQ(std::get<Generated>(responses[3]).tokens, (std::vector<int64_t>{5, 4}));
  EXPECT_NE(scorer->cannot_answer({"x", {}, Probe{}}), "");
  const std::vector<Request> refused{scores({66}, {1})};
  EXPECT_NE(error_of([&] { scorer->answer(refused); }).find("66 is not a token"),
            std::string::npos);
}

TEST_F(AdapterTest, WrongAnswersAreNamed) {
  const auto error_with = [&](const std::string& answer) {
    const std::string program =
        "import sys\nprint('{\"name\": \"x\"}', flush=True)\nfor line in sys.stdin: print('" +
        answer + "', flush=True)\n";
    return error_of([&] {
      Adapter adapter(python(program), 30);
      const std::vector<Request> requests{scores({1}, {2, 3})};
      make_adapter_scorer(adapter)->answer(requests);
    });
  };
  const auto expect_error = [&](const std::string& answer, const std::string& part) {
    const std::string message = error_with(answer);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect_error(R"({"logprobs": [-1, -1], "hits": [0, 1]})", "no error");
  expect_error(R"({"logprobs": [-1], "hits": [0, 1]})", "\"logprobs\" is no list of 2 entries");
  expect_error(R"({"logprobs": [-1, -1]})", "\"hits\" is no list of 2 entries");
  expect_error(R"({"logprobs": [-1, null], "hits": [0, 1]})", "logprobs[1] is null");
  expect_error(R"({"logprobs": [-1, 0.5], "hits": [0, 1]})", "logprobs[1] is 0.5");
  expect_error(R"({"logprobs": [-1, -1], "hits": [0, 7]})", "hits[1] is 7");
  expect_error("hello", "no JSON object in its line: hello");
}

TEST_F(AdapterTest, AnAdapterThatEndsOrStallsIsReported) {
  EXPECT_NE(error_of([&] { Adapter("exit 3", 30); }).find("it ended with status 3"),
            std::string::npos);
  EXPECT_NE(error_of([&] { Adapter("echo '{}'", 30); }).find("its first line has no \"name\""),
            std::string::npos);
  EXPECT_NE(error_of([&] { Adapter("exec sleep 20", 0.2); }).find("no answer within 0.2 s"),
            std::string::npos);
  const std::string message = error_of([&] {
    Adapter adapter(python("print('{\"name\": \"x\"}', flush=True)\nraise SystemExit(4)\n"), 30);
    const std::vector<Request> requests{scores({1}, {2, 3})};
    make_adapter_scorer(adapter)->answer(requests);
  });
  EXPECT_NE(message.find("it ended with status 4"), std::string::npos) << message;
}

TEST_F(AdapterTest, OneThatDoesNotWriteIsNotAsked) {
  Adapter adapter("echo '{\"name\": \"x\"}'; cat > /dev/null", 30);
  const auto scorer = make_adapter_scorer(adapter);
  EXPECT_EQ(scorer->cannot_answer({"x", {}, Generate{}}), "text written by the model");
  EXPECT_EQ(scorer->cannot_answer(scores({1}, {2})), "");
}

}  // namespace
}  // namespace reynard::evaluation

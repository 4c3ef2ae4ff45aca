// Models behind an adapter program: small Python programs that follow the protocol, or do not.

#include "reynard/evaluation/adapter.h"

#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/registry.h"
#include "tests/support/corpus.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace reynard::evaluation {
namespace {

using test::error_of;

// Token t has the log-probability -t / 100 and is a hit where t is even; writes its prompt
// backwards.
constexpr const char* kGood = R"(
import json, sys
print(json.dumps({"name": "stub", "vocab_size": 99, "bos": 1, "eos": None, "generates": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "prompt" in asked:
        answer = {"tokens": (asked["prompt"][::-1] + asked["stop_after_text"])[:asked["max_tokens"]]}
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
  static AdapterOptions options(const std::string& command, double timeout_s = 30) {
    return {.command = command, .timeout_s = timeout_s, .retries = {.attempts = 1}};
  }
  test::TempDir folder_;
};

Request scores(std::vector<int64_t> context, std::vector<int64_t> continuation) {
  return {"x", {}, Score{std::move(context), std::move(continuation), {}}};
}

TEST_F(AdapterTest, AnswersScoresAndText) {
  Adapter adapter(options(python(kGood)));
  EXPECT_EQ(adapter.facts().name, "stub");
  EXPECT_EQ(adapter.facts().vocab_size, 99);
  EXPECT_EQ(adapter.facts().bos, 1);
  EXPECT_FALSE(adapter.facts().eos);
  const auto scorer = make_adapter_scorer(adapter);
  Generate query;
  query.prompt = {3, 4, 5};
  query.max_tokens = 4;
  query.stop_after_text = {8, 9};
  const std::vector<Request> requests{
      scores({10, 11}, {12, 13}), scores({}, {20, 22}), scores({}, {5}), {"x", {}, query}};
  const std::vector<Response> responses = scorer->answer(requests);
  EXPECT_EQ(std::get<Scored>(responses[0]).logprobs, (std::vector<float>{-0.12F, -0.13F}));
  EXPECT_EQ(std::get<Scored>(responses[0]).hits, (std::vector<uint8_t>{1, 0}));
  EXPECT_TRUE(std::isnan(std::get<Scored>(responses[1]).logprobs[0]));
  EXPECT_EQ(std::get<Scored>(responses[1]).logprobs[1], -0.22F);
  EXPECT_TRUE(std::isnan(std::get<Scored>(responses[2]).logprobs[0]));
  EXPECT_EQ(std::get<Generated>(responses[3]).tokens, (std::vector<int64_t>{5, 4, 3, 8}));
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
      Adapter adapter(options(python(program)));
      const std::vector<Request> requests{scores({1}, {2, 3})};
      make_adapter_scorer(adapter)->answer(requests);
    });
  };
  const auto expect_error = [&](const std::string& answer, const std::string& part) {
    const std::string message = error_with(answer);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect_error(R"({"logprobs": [-1, -1], "hits": [0, 1]})", "no error");
  expect_error(R"({"logprobs": [-1], "hits": [0, 1]})", "\"logprobs\" is no list of length 2");
  expect_error(R"({"logprobs": [-1, -1]})", "\"hits\" is no list of length 2");
  expect_error(R"({"logprobs": [-1, null], "hits": [0, 1]})", "logprobs[1] is null");
  expect_error(R"({"logprobs": [-1, 0.5], "hits": [0, 1]})", "logprobs[1] is 0.5");
  expect_error(R"({"logprobs": [-1, -1], "hits": [0, 7]})", "hits[1] is 7");
  expect_error("hello", "no JSON object in its line: hello");
}

// What is at hand when a request is sent answers none.
TEST_F(AdapterTest, ALineThatNobodyAskedForIsAnError) {
  const std::string program =
      "import sys\nprint('{\"name\": \"x\"}', flush=True)\n"
      "answer = '{\"logprobs\": [-1], \"hits\": [0]}\\n'\n"
      "for line in sys.stdin: print(2 * answer, end='', flush=True)\n";
  Adapter adapter(options(python(program)));
  const auto scorer = make_adapter_scorer(adapter);
  const std::vector<Request> requests{scores({1}, {2})};
  scorer->answer(requests);
  EXPECT_SAYS(error_of([&] { scorer->answer(requests); }),
              "it wrote a line that nobody asked for: {\"logprobs\": [-1], \"hits\": [0]} (1 ");
}

// Whatever comes when: an answer that says what it answers is not taken for another's.
TEST_F(AdapterTest, AnAnswerToAnotherRequestIsAnError) {
  const std::string program =
      "import json, sys\nprint('{\"name\": \"x\"}', flush=True)\n"
      "for line in sys.stdin:\n"
      "    print(json.dumps({'logprobs': [-1], 'hits': [0], 'id': 1}), flush=True)\n";
  Adapter adapter(options(python(program)));
  const auto scorer = make_adapter_scorer(adapter);
  const std::vector<Request> requests{scores({1}, {2})};
  scorer->answer(requests);
  EXPECT_SAYS(error_of([&] { scorer->answer(requests); }), "it answered request 1; expected 2");
}

TEST_F(AdapterTest, AWrongFirstLineIsNamed) {
  const auto hello = [](const std::string& fields) {
    return options("echo '{\"name\": \"x\", \"vocab_size\": 99" + fields + "}'; cat > /dev/null");
  };
  const auto expect_error = [&](const std::string& fields, const std::string& part) {
    EXPECT_SAYS(error_of([&] { Adapter(hello(fields)); }), "its first line has " + part);
  };
  EXPECT_FALSE(Adapter(hello(R"(, "bos": -1, "eos": null)")).facts().bos);
  EXPECT_EQ(Adapter(hello(R"(, "bos": 98, "eos": 0)")).facts().bos, 98);
  for (const char* mark : {"bos", "eos"}) {
    for (const char* value : {"-7", "99", "18446744073709551615", "1.5", "\"1\""}) {
      expect_error(
          fmt::format(R"(, "{}": {})", mark, value),
          fmt::format(
              "\"{}\": {}; expected a token id below 99, or -1 or null for none", mark, value));
    }
  }
  for (const char* value : {"-1", "18446744073709551615", "64.0", "\"64\""}) {
    expect_error(fmt::format(R"(, "train_length": {})", value),
                 fmt::format("\"train_length\": {}; expected a whole number", value));
  }
  EXPECT_EQ(Adapter(hello(R"(, "train_length": null)")).facts().train_length, 0);
}

TEST_F(AdapterTest, TextThatWasNotAskedForIsNamed) {
  const auto error_with = [&](const std::string& tokens) {
    const std::string program =
        "import sys\n"
        "print('{\"name\": \"x\", \"vocab_size\": 99, \"generates\": true}', flush=True)\n"
        "for line in sys.stdin: print('{\"tokens\": " +
        tokens + "}', flush=True)\n";
    return error_of([&] {
      Adapter adapter(options(python(program)));
      Generate query;
      query.prompt = {1};
      query.max_tokens = 2;
      const std::vector<Request> requests{{"x", {}, query}};
      make_adapter_scorer(adapter)->answer(requests);
    });
  };
  EXPECT_EQ(error_with("[98, 0]"), "no error");
  EXPECT_SAYS(error_with("[1, 2, 3]"), "\"tokens\" holds 3; expected at most max_tokens = 2");
  for (const char* token : {"99", "-1", "1000000000000", "18446744073709551615", "1.0"}) {
    EXPECT_SAYS(error_with(fmt::format("[0, {}]", token)),
                fmt::format("tokens[1] is {}; expected a token id below 99", token));
  }
}

// Another run would write the same.
TEST_F(AdapterTest, NumbersThatAreNoJsonAreReportedAtOnce) {
  for (const char* value : {"NaN", "-Infinity"}) {
    AdapterOptions writing = options(python(fmt::format(
        "import sys\nprint('{{\"name\": \"x\"}}', flush=True)\n"
        "for line in sys.stdin: print('{{\"logprobs\": [{}], \"hits\": [0]}}', flush=True)\n",
        value)));
    int64_t notes = 0;
    writing.retries = {
        .attempts = 3, .first_pause_s = 0.01, .note = [&](const std::string&) { ++notes; }};
    Adapter adapter(writing);
    const std::vector<Request> requests{scores({1}, {2})};
    EXPECT_SAYS(error_of([&] { make_adapter_scorer(adapter)->answer(requests); }),
                "holds NaN or Infinity, which JSON does not have: {\"logprobs\": [");
    EXPECT_EQ(notes, 0);
  }
}

TEST_F(AdapterTest, AnAdapterThatEndsOrStallsIsReported) {
  EXPECT_NE(error_of([&] { Adapter(options("exit 3")); }).find("it ended with status 3"),
            std::string::npos);
  EXPECT_NE(error_of([&] { Adapter(options("echo '{}'")); }).find("its first line has no \"name\""),
            std::string::npos);
  EXPECT_NE(
      error_of([&] { Adapter(options("sleep 20; true", 0.2)); }).find("no answer within 0.2 s"),
      std::string::npos);
  const std::string message = error_of([&] {
    Adapter adapter(
        options(python("print('{\"name\": \"x\"}', flush=True)\nraise SystemExit(4)\n")));
    const std::vector<Request> requests{scores({1}, {2, 3})};
    make_adapter_scorer(adapter)->answer(requests);
  });
  EXPECT_NE(message.find("it ended with status 4"), std::string::npos) << message;
}

// Larger than any buffer of a socket.
TEST_F(AdapterTest, AnAdapterThatReadsNothingIsReported) {
  Adapter adapter(options("echo '{\"name\": \"x\"}'; sleep 20; true", 1));
  const std::vector<Request> requests{scores(std::vector<int64_t>(400'000, 12345), {2})};
  const std::string message = error_of([&] { make_adapter_scorer(adapter)->answer(requests); });
  EXPECT_NE(message.find("it did not read its request within 1 s"), std::string::npos) << message;
}

// Each run of the program counts itself in a file; the first dies at its second request, the second
// stalls, the third writes nonsense, the fourth answers.
constexpr const char* kFragile = R"(
import json, pathlib, sys, time
runs = pathlib.Path(sys.argv[1])
run = len(runs.read_text()) if runs.exists() else 0
runs.write_text("x" * (run + 1))
print(json.dumps({"name": "stub", "generates": True}), flush=True)
for i, line in enumerate(sys.stdin):
    if run == 0 and i == 1: sys.exit(5)
    if run == 1: time.sleep(60)
    if run == 2: print("Traceback", flush=True)
    print(json.dumps({"tokens": json.loads(line)["prompt"]}), flush=True)
)";

TEST_F(AdapterTest, IsStartedAgainAfterItDiesStallsOrWritesNonsense) {
  AdapterOptions fragile = options(python(kFragile) + " " + (folder_ / "runs").string(), 3);
  std::vector<std::string> notes;
  fragile.retries = {.attempts = 5, .first_pause_s = 0.01, .note = [&](const std::string& note) {
                       notes.push_back(note);
                     }};
  Adapter adapter(fragile);
  const auto scorer = make_adapter_scorer(adapter);
  std::vector<Request> requests;
  for (int64_t i = 0; i < 4; ++i) {
    Generate query;
    query.prompt = {i, i};
    requests.push_back({std::to_string(i), {}, query});
  }
  std::vector<int64_t> answered;
  scorer->answer_each(requests, [&](size_t i, const Response& response) {
    EXPECT_EQ(i, answered.size());
    answered.push_back(std::get<Generated>(response).tokens.at(0));
  });
  EXPECT_EQ(answered, (std::vector<int64_t>{0, 1, 2, 3}));
  ASSERT_EQ(notes.size(), 3U);
  EXPECT_NE(notes[0].find("it ended with status 5; again in 0.0 s (1 of 5)"), std::string::npos)
      << notes[0];
  EXPECT_NE(notes[1].find("no answer within 3 s"), std::string::npos) << notes[1];
  EXPECT_NE(notes[2].find("no JSON object in its line: Traceback"), std::string::npos) << notes[2];
}

// Dies at every request after the third; a second evaluation goes on with what was answered.
TEST_F(AdapterTest, NothingIsLostWhenItIsGivenUp) {
  const std::string program =
      "import json, sys\n"
      "print(json.dumps({'name': 'stub', 'generates': True}), flush=True)\n"
      "for i, line in enumerate(sys.stdin):\n"
      "    if i == 3: sys.exit(6)\n"
      "    print(json.dumps({'tokens': [49]}), flush=True)\n";
  const Corpus corpus = [] {
    Corpus text = test::corpus_of(std::vector<int64_t>(2000, 'a'), {2000});
    text.bos = 256;
    return text;
  }();
  EvaluationConfig config;
  config.passkey.lengths = {500};
  config.passkey.trials = 5;
  const auto task = task_named("passkey").make(corpus, config, {});
  const auto run = [&] {
    Adapter adapter(options(python(program)));
    return evaluate(*make_adapter_scorer(adapter), *task, {.folder = folder_ / "eval"});
  };
  const std::string message = error_of([&] { run(); });
  EXPECT_NE(message.find("it ended with status 6"), std::string::npos) << message;
  EXPECT_NE(message.find("the same command goes on from there"), std::string::npos) << message;
  const nlohmann::json summary = run();
  EXPECT_EQ(summary.at("metrics").at("samples"), 5);
  EXPECT_EQ(summary.at("effort").at("reused_samples"), 3);
}

TEST_F(AdapterTest, AnotherModelAfterARestartIsAnError) {
  const std::string program =
      "import json, os, sys\n"
      "print(json.dumps({'name': str(os.getpid()), 'generates': True}), flush=True)\n"
      "sys.stdin.readline()\n";
  AdapterOptions changing = options(python(program));
  changing.retries = {.attempts = 3, .first_pause_s = 0.01};
  Adapter adapter(changing);
  EXPECT_NE(error_of([&] {
              adapter.ask({{"tokens", {1, 2}}});
            }).find("started again it is another model"),
            std::string::npos);
}

TEST_F(AdapterTest, OneThatDoesNotWriteIsNotAsked) {
  Adapter adapter(options("echo '{\"name\": \"x\"}'; cat > /dev/null"));
  const auto scorer = make_adapter_scorer(adapter);
  EXPECT_EQ(scorer->cannot_answer({"x", {}, Generate{}}), "text written by the model");
  EXPECT_EQ(scorer->cannot_answer(scores({1}, {2})), "");
}

}  // namespace
}  // namespace reynard::evaluation

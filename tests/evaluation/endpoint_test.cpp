// A model behind an OpenAI-compatible server, on stub servers that answer well, badly, late or not
// at all.

#include "reynard/evaluation/endpoint_scorer.h"

#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/registry.h"
#include "tests/evaluation/stub_server.h"
#include "tests/support/corpus.h"
#include "tests/support/errors.h"
#include "tests/support/eventually.h"
#include "tests/support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace reynard::evaluation {
namespace {

using nlohmann::json;

using test::answer_json;
using test::error_of;
using test::StubServer;

// Token t has the log-probability -t / 100; it is a hit where t is even.
json echo_of(const json& body) {
  json chosen = json::array({nullptr});
  json best = json::array({nullptr});
  for (size_t i = 1; i < body.at("prompt").size(); ++i) {
    const auto token = body.at("prompt")[i].get<int64_t>();
    const double logprob = -static_cast<double>(token) / 100;
    chosen.push_back(logprob);
    best.push_back({{"a", token % 2 == 0 ? logprob : logprob / 2}, {"b", logprob}});
  }
  chosen.push_back(-0.5);
  best.push_back({{"c", -0.5}});
  return {{"choices", {{{"logprobs", {{"token_logprobs", chosen}, {"top_logprobs", best}}}}}}};
}

// Echoes prompts that are scored and completes the others with the number that is hidden in them.
void answer_well(const json& body, httplib::Response& response) {
  if (body.contains("echo")) return answer_json(response, echo_of(body));
  std::string prompt;
  for (const json& token : body.at("prompt")) {
    if (token.get<int>() < 256) prompt += static_cast<char>(token.get<int>());
  }
  const std::string mark = "The pass key is ";
  const size_t key = prompt.find(mark) + mark.size();
  const std::string number = prompt.substr(key, prompt.find('.', key) - key);
  answer_json(response, {{"choices", {{{"text", " " + number}}}}});
}

Corpus small_corpus() {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < 4000; ++i) tokens.push_back(32 + i * i % 90);
  Corpus corpus = test::corpus_of(std::move(tokens), {4000});
  corpus.bos = 256;
  corpus.eos = 257;
  return corpus;
}

Request score_of(std::vector<int64_t> context, std::vector<int64_t> continuation) {
  return {"x", {}, Score{std::move(context), std::move(continuation), {}}};
}

TEST(EndpointScorer, ReadsLogProbabilitiesAndHits) {
  const StubServer server(answer_well);
  const Corpus corpus = small_corpus();
  EndpointOptions options = server.options();
  options.api_key = "secret";
  const auto scorer = make_endpoint_scorer(options, corpus, 3);
  const std::vector<Request> requests{
      score_of({10, 11}, {12, 13}), score_of({}, {20, 22}), score_of({}, {5})};
  const std::vector<Response> responses = scorer->answer(requests);
  const auto& first = std::get<Scored>(responses[0]);
  EXPECT_EQ(first.logprobs, (std::vector<float>{-0.12F, -0.13F}));
  EXPECT_EQ(first.hits, (std::vector<uint8_t>{1, 0}));
  const auto& second = std::get<Scored>(responses[1]);
  EXPECT_TRUE(std::isnan(second.logprobs[0]));
  EXPECT_EQ(second.logprobs[1], -0.22F);
  EXPECT_TRUE(std::isnan(std::get<Scored>(responses[2]).logprobs[0]));
  EXPECT_EQ(server.key(), "Bearer secret");
  ASSERT_EQ(server.bodies().size(), 2U);  // one token alone is not asked about
  const json body = server.bodies().front();
  EXPECT_EQ(body.at("model"), "stub");
  EXPECT_EQ(body.at("max_tokens"), 1);
  EXPECT_EQ(body.at("logprobs"), 1);
  EXPECT_EQ(body.at("echo"), true);
}

TEST(EndpointScorer, CompletesPrompts) {
  const StubServer server([](const json&, httplib::Response& r) {
    answer_json(r, {{"choices", {{{"text", "yes"}}}}});
  });
  const Corpus corpus = small_corpus();
  const auto scorer = make_endpoint_scorer(server.options(), corpus, 1);
  Generate query;
  query.prompt = {65, 66};
  query.max_tokens = 7;
  query.stop = {257, '\n'};
  query.stop_after_text = {'.'};  // which it would take for a stop at the beginning too
  const std::vector<Request> requests{{"x", {}, query}};
  EXPECT_EQ(std::get<Generated>(scorer->answer(requests)[0]).tokens, corpus.encode("yes"));
  const json body = server.bodies().front();
  EXPECT_EQ(body.at("prompt"), json({65, 66}));
  EXPECT_EQ(body.at("max_tokens"), 7);
  EXPECT_EQ(body.at("temperature"), 0);
  EXPECT_EQ(body.at("stop"), json({"\n"}));  // EOS is the server's own business
  EXPECT_FALSE(body.contains("seed"));       // of what is not drawn
  query.temperature = 0.5;
  query.seed = 9;
  query.stop = {'a', 'b', 'c', 'd', 'e'};  // the API takes four
  scorer->answer(std::vector<Request>{{"y", {}, query}});
  const json drawn = server.bodies().back();
  EXPECT_EQ(drawn.at("temperature"), 0.5);
  EXPECT_EQ(drawn.at("seed"), 9);
  EXPECT_EQ(drawn.at("stop"), json({"a", "b", "c", "d"}));
}

TEST(EndpointScorer, MeasuresATask) {
  const StubServer server(answer_well);
  const Corpus corpus = small_corpus();
  const test::TempDir folder;
  EvaluationConfig config;
  config.passkey.lengths = {600};
  config.passkey.trials = 6;
  config.per_position_loss.length = 50;
  config.per_position_loss.rows = 8;
  const auto scorer = make_endpoint_scorer(server.options(), corpus, 2);
  const auto passkey = task_named("passkey").make(corpus, config, {});
  EXPECT_EQ(evaluate(*scorer, *passkey, {.folder = folder.path()}).at("metrics").at("score"), 1.0);
  const auto loss = task_named("per_position_loss").make(corpus, config, {});
  const double mean = evaluate(*scorer, *loss, {.folder = folder.path()}).at("metrics").at("loss");
  EXPECT_GT(mean, 0.32);
  EXPECT_LT(mean, 1.22);
}

// A process that is killed while one answer is waited for has those before it.
TEST(EndpointScorer, AnswersAreRecordedWhileALaterOneIsWaitedFor) {
  const test::TempDir folder;
  const std::filesystem::path log = folder / "passkey.jsonl";
  const auto lines = [&] {
    const std::string text = std::filesystem::exists(log) ? test::read_file(log) : "";
    return std::count(text.begin(), text.end(), '\n');
  };
  json third;  // in the order of the task; it may come to the server as the second or the fourth
  std::atomic<bool> recorded = false;
  const StubServer server([&](const json& body, httplib::Response& response) {
    if (body.at("prompt") == third) {
      recorded = test::eventually([&] { return lines() >= 3; });  // with the header
    }
    answer_well(body, response);
  });
  const Corpus corpus = small_corpus();
  EvaluationConfig config;
  config.passkey.lengths = {600};
  config.passkey.trials = 6;
  for (const int64_t concurrency : {1, 2}) {
    recorded = false;
    std::filesystem::remove(log);
    const auto scorer = make_endpoint_scorer(server.options(), corpus, concurrency);
    const auto passkey = task_named("passkey").make(corpus, config, {});
    third = std::get<Generate>(passkey->requests().at(2).query).prompt;
    const auto summary = evaluate(*scorer, *passkey, {.folder = folder.path()});
    EXPECT_TRUE(recorded) << "asked by " << concurrency << " at once";
    EXPECT_EQ(summary.at("effort").at("samples"), 6);
  }
}

TEST(EndpointScorer, AFieldThatIsMissingOrWrongIsNamed) {
  const Score asked{{10}, {11, 12}, {}};
  const json good = echo_of({{"prompt", {10, 11, 12}}});
  EXPECT_EQ(read_echo(good, asked).logprobs.size(), 2U);
  const auto expect_named = [&](const char* pointer, const json& value, const std::string& part) {
    json bad = good;
    bad[json::json_pointer(std::string("/choices/0/") + pointer)] = value;
    const std::string message = error_of([&] { read_echo(bad, asked); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect_named("logprobs", nullptr, "choices[0].logprobs is missing");
  expect_named("logprobs/token_logprobs", nullptr, "choices[0].logprobs.token_logprobs is missing");
  expect_named("logprobs/top_logprobs", nullptr, "choices[0].logprobs.top_logprobs is missing");
  // Only the token written: echo was ignored.
  expect_named("logprobs/token_logprobs",
               json::array({-0.5}),
               "choices[0].logprobs.token_logprobs is a list of length 1; expected 4");
  expect_named("logprobs/top_logprobs",
               json::array({nullptr, nullptr}),
               "choices[0].logprobs.top_logprobs is a list of length 2; expected 4");
  expect_named("logprobs/token_logprobs/2", nullptr, "token_logprobs[2] is null");
  expect_named("logprobs/token_logprobs/1", "-1", "token_logprobs[1] is \"-1\"");
  expect_named("logprobs/token_logprobs/1", 0.5, "token_logprobs[1] is 0.5");
  expect_named("logprobs/top_logprobs/1", json::object(), "top_logprobs[1] is {}");
  expect_named("logprobs/top_logprobs/2", nullptr, "top_logprobs[2] is null");
}

TEST(EndpointScorer, AsksAgainAfterFailuresStallsAndNonsense) {
  std::atomic<int> asked = 0;
  const StubServer server([&](const json& body, httplib::Response& response) {
    switch (asked++) {
      case 0:
        response.status = 500;
        break;
      case 1:
        response.set_content("<html>busy</html>", "text/html");
        break;
      case 2:
        answer_json(response, {{"object", "text_completion"}});
        break;
      case 3:
        response.status = 429;
        break;
      case 4:
        std::this_thread::sleep_for(std::chrono::milliseconds(3000));
        [[fallthrough]];
      default:
        answer_well(body, response);
    }
  });
  const Corpus corpus = small_corpus();
  EndpointOptions options = server.options(/*attempts=*/8);
  options.timeout_s = 2;
  std::vector<std::string> notes;
  options.retries.note = [&](const std::string& note) { notes.push_back(note); };
  const std::vector<Request> requests{score_of({10}, {12})};
  const auto scorer = make_endpoint_scorer(options, corpus, 1);
  EXPECT_EQ(std::get<Scored>(scorer->answer(requests)[0]).logprobs, std::vector<float>{-0.12F});
  ASSERT_GE(notes.size(), 5U);  // more on a machine so busy that answers take seconds
  EXPECT_NE(notes[0].find("status 500"), std::string::npos) << notes[0];
  EXPECT_NE(notes[1].find("no JSON: <html>"), std::string::npos) << notes[1];
  EXPECT_NE(notes[2].find("no list \"choices\""), std::string::npos) << notes[2];
  EXPECT_NE(notes[4].find("silent for 2 s"), std::string::npos) << notes[4];
  EXPECT_NE(notes[4].find("(5 of 8)"), std::string::npos) << notes[4];
}

// What comes byte by byte is no answer; what comes in time but without an end neither.
TEST(EndpointScorer, AnAnswerThatDripsOrHasNoEndIsGivenUp) {
  double pause_s = 0.1;
  std::string piece = " ";
  const StubServer server([&](const json&, httplib::Response& response) {
    response.set_content_provider("application/json", [&](size_t, httplib::DataSink& sink) {
      std::this_thread::sleep_for(std::chrono::duration<double>(pause_s));
      return sink.is_writable() && sink.write(piece.data(), piece.size());
    });
  });
  const Corpus corpus = small_corpus();
  EndpointOptions options = server.options();
  options.timeout_s = 1;
  const std::vector<Request> requests{score_of({10}, {12})};
  const auto answer = [&] { make_endpoint_scorer(options, corpus, 1)->answer(requests); };
  const auto begin = std::chrono::steady_clock::now();
  const std::string late = error_of(answer);
  EXPECT_NE(late.find("no whole answer within 1 s (1 attempt)"), std::string::npos) << late;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  pause_s = 0;
  piece.assign(1000, ' ');
  options.timeout_s = 30;
  options.longest_answer = 100'000;
  options.retries.attempts = 5;
  const std::string endless = error_of(answer);
  EXPECT_NE(endless.find("an answer is longer than 100000 bytes"), std::string::npos) << endless;
  EXPECT_EQ(server.bodies().size(), 2U);  // no second attempt of that
}

TEST(EndpointScorer, OnlyWhatMayPassIsAskedAgain) {
  const Corpus corpus = small_corpus();
  const std::vector<Request> requests{score_of({10}, {12})};
  for (const auto& [status, may_pass] : {std::pair{408, true},
                                         {429, true},
                                         {500, true},
                                         {503, true},
                                         {400, false},
                                         {401, false},
                                         {404, false},
                                         {501, false}}) {
    std::atomic<int> asked = 0;
    const StubServer server([&](const json& body, httplib::Response& response) {
      if (asked++ > 0) return answer_well(body, response);
      response.status = status;
      response.set_header("Retry-After", "0.3");
    });
    EndpointOptions options = server.options(/*attempts=*/4);
    std::string notes;
    options.retries.note = [&](const std::string& note) { notes += note; };
    const auto scorer = make_endpoint_scorer(options, corpus, 1);
    const std::string error = error_of([&] { scorer->answer(requests); });
    EXPECT_EQ(asked, may_pass ? 2 : 1) << status;
    EXPECT_SAYS(error, may_pass ? "no error" : fmt::format("status {}", status));
    EXPECT_EQ(notes.find("again in 0.3 s") != notes.npos, may_pass) << notes;
  }
}

TEST(Retries, PausesDoubleUnlessALongerOneIsAskedFor) {
  std::string notes;
  Retries retries({.attempts = 4,
                   .first_pause_s = 0.1,
                   .note = [&](const std::string& note) { notes += note + "\n"; }},
                  "it");
  retries.failed("no");
  retries.failed("no");
  retries.failed("no", /*asked_pause_s=*/0.5);
  EXPECT_EQ(notes,
            "it: no; again in 0.1 s (1 of 4)\nit: no; again in 0.2 s (2 of 4)\n"
            "it: no; again in 0.5 s (3 of 4)\n");
  EXPECT_SAYS(error_of([&] { retries.failed("no"); }), "eval: it: no (4 attempts)");
}

TEST(EndpointScorer, ARefusalIsReportedAtOnce) {
  std::atomic<int> asked = 0;
  const StubServer server([&](const json&, httplib::Response& response) {
    ++asked;
    response.status = 400;
    response.set_content(R"({"error": {"message": "too long by 7 tokens"}})", "application/json");
  });
  const Corpus corpus = small_corpus();
  const auto scorer = make_endpoint_scorer(server.options(/*attempts=*/5), corpus, 1);
  const std::vector<Request> requests(5, score_of({10}, {12}));  // the others too would be refused
  const std::string message = error_of([&] { scorer->answer(requests); });
  EXPECT_NE(message.find("status 400: too long by 7 tokens"), std::string::npos) << message;
  EXPECT_EQ(asked, 1);
}

TEST(EndpointScorer, NothingIsLostWhenTheServerGoesAway) {
  std::atomic<int> patience = 7;
  std::atomic<int> answered = 0;
  const StubServer server([&](const json& body, httplib::Response& response) {
    if (--patience < 0) {
      response.status = 503;
      return;
    }
    ++answered;
    answer_well(body, response);
  });
  const Corpus corpus = small_corpus();
  const test::TempDir folder;
  EvaluationConfig config;
  config.passkey.lengths = {600};
  config.passkey.trials = 10;
  const auto task = task_named("passkey").make(corpus, config, {});
  // All ten in one batch, three at a time.
  const auto scorer = make_endpoint_scorer(server.options(/*attempts=*/2), corpus, 3);
  const std::string message =
      error_of([&] { evaluate(*scorer, *task, {.folder = folder.path()}); });
  EXPECT_NE(message.find("status 503"), std::string::npos) << message;
  EXPECT_NE(message.find("2 attempts"), std::string::npos) << message;
  patience = 100;
  const json summary = evaluate(*scorer, *task, {.folder = folder.path()});
  EXPECT_EQ(summary.at("metrics").at("samples"), 10);
  EXPECT_EQ(summary.at("metrics").at("score"), 1.0);
  EXPECT_EQ(summary.at("effort").at("reused_samples"), 7);
  EXPECT_EQ(answered, 10);
}

// By the API's code, or in the words of servers that give none.
class TooLong : public testing::TestWithParam<const char*> {};

TEST_P(TooLong, ALengthThatTheModelDoesNotTakeEndsTheCurve) {
  const StubServer server([](const json& body, httplib::Response& response) {
    if (body.at("prompt").size() <= 200) return answer_well(body, response);
    response.status = 400;
    response.set_content(GetParam(), "application/json");
  });
  const Corpus corpus = small_corpus();
  const test::TempDir folder;
  EvaluationConfig config;
  config.forgetting_curve.length = 128;
  config.forgetting_curve.points = 4;
  config.forgetting_curve.repeats = 2;
  const auto scorer = make_endpoint_scorer(server.options(), corpus, 2);
  const auto task = task_named("forgetting_curve").make(corpus, config, {});
  const std::string message =
      error_of([&] { evaluate(*scorer, *task, {.folder = folder.path(), .batch_tokens = 1}); });
  EXPECT_NE(message.find("201 > 200"), std::string::npos) << message;
  EXPECT_NE(message.find("what was measured before is in"), std::string::npos) << message;
  const json summary = json::parse(test::read_file(folder / "forgetting_curve.json"));
  EXPECT_EQ(summary.at("series").at("points").size(), 3U);  // 32, 64 and 96 tokens
}

INSTANTIATE_TEST_SUITE_P(
    EndpointScorer,
    TooLong,
    testing::Values(R"({"error": {"message": "201 > 200", "code": "context_length_exceeded"}})",
                    R"({"error": "the maximum context length is 200: 201 > 200"})"));

// A server that has only chat completions, whose model finds the pass key.
TEST(EndpointScorer, AChatEndpointWritesButDoesNotScore) {
  const StubServer server(
      [](const json& body, httplib::Response& response) {
        const json& message = body.at("messages").at(0);
        EXPECT_EQ(message.at("role"), "user");
        const json content = message.at("content");
        httplib::Response plain;
        answer_well({{"prompt", small_corpus().encode(content.get<std::string>())}}, plain);
        const std::string number = json::parse(plain.body).at("choices")[0].at("text");
        answer_json(response, {{"choices", {{{"message", {{"content", "\n\n" + number}}}}}}});
      },
      "/v1/chat/completions");
  const Corpus corpus = small_corpus();
  EndpointOptions options = server.options();
  options.chat = true;
  const auto scorer = make_endpoint_scorer(options, corpus, 2);
  EXPECT_NE(scorer->cannot_answer(score_of({1}, {2})).find("log-probabilities"), std::string::npos);
  EXPECT_EQ(scorer->cannot_answer({"x", {}, Generate{}}), "");
  const test::TempDir folder;
  EvaluationConfig config;
  config.passkey.lengths = {600};
  config.passkey.trials = 4;
  const auto passkey = task_named("passkey").make(corpus, config, {});
  EXPECT_EQ(evaluate(*scorer, *passkey, {.folder = folder.path()}).at("metrics").at("score"), 1.0);
  const json body = server.bodies().front();
  EXPECT_FALSE(body.contains("stop"));  // the reply begins with empty lines
  EXPECT_FALSE(body.contains("prompt"));
  EXPECT_EQ(body.at("max_tokens"), config.passkey.max_tokens);

  // The same server asked for what it does not have.
  const auto plain = make_endpoint_scorer(server.options(/*attempts=*/5), corpus, 1);
  const std::vector<Request> requests{score_of({10}, {12})};
  const std::string message = error_of([&] { plain->answer(requests); });
  EXPECT_NE(message.find("status 404"), std::string::npos) << message;
  EXPECT_NE(message.find("--chat"), std::string::npos) << message;
}

TEST(EndpointScorer, AReplyWithoutContentIsNamed) {
  const StubServer server(
      [](const json&, httplib::Response& response) {
        answer_json(response, {{"choices", {{{"message", {{"content", nullptr}}}}}}});
      },
      "/v1/chat/completions");
  const Corpus corpus = small_corpus();
  EndpointOptions options = server.options();
  options.chat = true;
  const auto scorer = make_endpoint_scorer(options, corpus, 1);
  Generate query;
  query.prompt = {65};
  const std::vector<Request> requests{{"x", {}, query}};
  EXPECT_NE(
      error_of([&] { scorer->answer(requests); }).find("choices[0].message.content is missing"),
      std::string::npos);
}

TEST(EndpointScorer, SaysWhatItCannotAnswer) {
  const Corpus corpus = small_corpus();
  const auto scorer = make_endpoint_scorer({.url = "http://127.0.0.1:1"}, corpus, 1);
  EXPECT_EQ(scorer->cannot_answer(score_of({1}, {2})), "");
  EXPECT_EQ(scorer->cannot_answer({"x", {}, Generate{}}), "");
  EXPECT_NE(scorer->cannot_answer({"x", {}, Probe{}}), "");
  EXPECT_NE(scorer->cannot_answer({"x", {}, Score{{1}, {2}, -10.0}}), "");
}

TEST(Endpoint, TakesTheUsualFormsOfItsUrl) {
  const auto url_of = [](const std::string& url) {
    return Endpoint({.url = url}).route_url("completions");
  };
  EXPECT_EQ(url_of("http://host:8000"), "http://host:8000/v1/completions");
  EXPECT_EQ(url_of("http://host:8000/"), "http://host:8000/v1/completions");
  EXPECT_EQ(url_of("https://host/v1"), "https://host/v1/completions");
  EXPECT_EQ(url_of("https://host/v1/completions"), "https://host/v1/completions");
  EXPECT_EQ(url_of("https://host/api/v2/chat/completions/"), "https://host/api/v2/completions");
  for (const char* bad : {"", "host:8000", "ftp://host", "http://", "http:///v1"}) {
    EXPECT_NE(error_of([&] { url_of(bad); }).find("is no URL"), std::string::npos) << bad;
  }
}

}  // namespace
}  // namespace reynard::evaluation

#include "reynard/serving/web_origin.h"

#include "tests/serving/served.h"
#include "tests/support/errors.h"

#include <gtest/gtest.h>

namespace reynard::serving {
namespace {

using test::Served;

TEST(WebOrigin, OwnPagesAndProgramsAreAnswered) {
  EXPECT_EQ(refused_origin("", "", "127.0.0.1"), "");
  EXPECT_EQ(refused_origin("http://127.0.0.1:8000", "127.0.0.1:8000", "127.0.0.1"), "");
  EXPECT_EQ(refused_origin("http://LocalHost:8000", "localhost:8000", "127.0.0.1"), "");
  EXPECT_EQ(refused_origin("https://models.example", "models.example", "0.0.0.0"), "");
  for (const char* host : {"127.0.0.1",
                           "127.0.0.1:8000",
                           "localhost:1",
                           "fox.localhost",
                           "[::1]",
                           "[::1]:8000",
                           "10.0.0.7:80"}) {
    EXPECT_EQ(refused_origin("", host, "127.0.0.1"), "") << host;
    EXPECT_EQ(refused_origin("", host, "::1"), "") << host;
  }
  EXPECT_EQ(refused_origin("", "models.example:8000", "0.0.0.0"), "");
  EXPECT_EQ(refused_origin("", "models.example:8000", "192.168.0.4"), "");
}

TEST(WebOrigin, PagesOfOthersAreNot) {
  for (const char* origin : {"https://evil.example",
                             "http://127.0.0.1:8001",
                             "null",
                             "http://127.0.0.1",
                             "http://127.0.0.1:8000.evil.example"}) {
    EXPECT_SAYS(refused_origin(origin, "127.0.0.1:8000", "127.0.0.1"), origin);
    EXPECT_SAYS(refused_origin(origin, "127.0.0.1:8000", "0.0.0.0"), "--api-key");
  }
  for (const char* host : {"evil.example",
                           "evil.example:8000",
                           "localhost.evil.example",
                           "127.0.0.1.evil.example:8000",
                           "evillocalhost",
                           ".localhost",
                           "a"}) {
    EXPECT_SAYS(refused_origin("", host, "127.0.0.1"), host);
    EXPECT_SAYS(refused_origin("http://" + std::string(host), host, "localhost"), host);
  }
}

TEST(WebOrigin, ServersRefuseThemWithoutAKey) {
  const std::string body = R"({"prompt": "a", "max_tokens": 1})";
  const std::string path = "/v1/completions";
  HttpOptions with_key;
  with_key.api_key = "secret";
  const Served open, keyed({}, with_key);
  const std::string own = "127.0.0.1:" + std::to_string(open.server.port());
  EXPECT_EQ(open.post(path, body, {{"Origin", "http://" + own}}).status, 200);
  const auto refused = open.post(path, body, {{"Origin", "https://evil.example"}});
  EXPECT_EQ(refused.status, 403);
  EXPECT_SAYS(refused.json["error"]["message"].get<std::string>(), "evil.example");
  EXPECT_EQ(open.post(path, body, {{"Host", "evil.example"}}).status, 403);
  EXPECT_EQ(open.client().Get("/metrics", {{"Host", "evil.example"}})->status, 403);
  const httplib::Headers known = {{"Authorization", "Bearer secret"},
                                  {"Origin", "https://pages.example"},
                                  {"Host", "models.example"}};
  EXPECT_EQ(keyed.post(path, body, known).status, 200);
}

}  // namespace
}  // namespace reynard::serving

// Requests that were damaged on their way: each is answered or closed, and the server goes on.

#include "tests/serving/served.h"
#include "tests/support/mutate.h"
#include "tests/support/raw_client.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace reynard::serving {
namespace {

TEST(HostileRequests, AreAnsweredOrClosed) {
  HttpOptions http;
  http.limits.read_seconds = http.limits.keep_alive_seconds = 1;
  const test::Served served({}, http, /*max_length=*/100);
  const std::string body = R"({"prompt": "abc", "max_tokens": 2, "temperature": 0})";
  const std::string whole = test::post_text(body);
  const std::string null(1, '\0');
  test::repeat_for(3, 300, [&](uint64_t attempt) {
    const std::string damaged = test::Mutator(attempt).mutate(whole,
                                                              {"\r\n",
                                                               "\r\n\r\n",
                                                               "Content-Length: 5",
                                                               "Transfer-Encoding: chunked",
                                                               "Expect: 100-continue",
                                                               "Range: bytes=0-",
                                                               "HTTP/9.9",
                                                               "%",
                                                               null});
    const test::RawClient client(served.server.port());
    client.send(damaged);
    ::shutdown(client.socket, SHUT_WR);
    const std::string answer = client.read_all();
    EXPECT_TRUE(answer.empty() || answer.starts_with("HTTP/1.1 ")) << answer << "\nfor " << damaged;
  });
  EXPECT_EQ(served.post("/v1/completions", body).status, 200);
}

}  // namespace
}  // namespace reynard::serving

#include "reynard/http/body_head.h"

#include <gtest/gtest.h>

#include <string>

namespace reynard::http {
namespace {

constexpr int64_t kMost = 1000;

// 0: the body is read.
int status_of(const std::string& method, const std::string& fields) {
  const auto refusal = refused_body(method + " / HTTP/1.1\r\nHost: x\r\n" + fields, kMost);
  if (!refusal) return 0;
  EXPECT_FALSE(refusal->message.empty() || std::string(refusal->reason).empty());
  return refusal->status;
}

TEST(RefusedBody, LengthsWithinTheLimitAreRead) {
  EXPECT_EQ(status_of("GET", ""), 0);
  EXPECT_EQ(status_of("POST", "Content-Length: 1000"), 0);
  EXPECT_EQ(status_of("POST", "content-LENGTH:0 \r\nX: y"), 0);
  EXPECT_EQ(status_of("POST", "Transfer-Encoding: chunked"), 0);
  EXPECT_EQ(status_of("POST", "Content-Length: 5\r\nContent-Encoding: identity"), 0);
}

TEST(RefusedBody, SaysWhyOthersAreNot) {
  EXPECT_EQ(status_of("POST", "Content-Length: 1001"), 413);
  EXPECT_EQ(status_of("GET", "Content-Length: 99999999999999999999999"), 413);
  for (const char* length : {"-5", "5x", "", "0x10", "1 2"}) {
    EXPECT_EQ(status_of("POST", std::string("Content-Length: ") + length), 400) << length;
  }
  EXPECT_EQ(status_of("POST", "X-Content-Length: 5"), 411);
  EXPECT_EQ(status_of("PUT", ""), 411);
  EXPECT_EQ(status_of("POST", "Content-Length: 5\r\nContent-Encoding: gzip"), 415);
}

}  // namespace
}  // namespace reynard::http

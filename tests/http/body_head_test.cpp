#include "reynard/http/body_head.h"

#include <gtest/gtest.h>

#include <string>

namespace reynard::http {
namespace {

constexpr int64_t kMost = 1000;

// 0: the body is read.
int status_of(const std::string& method, const std::string& fields) {
  const std::string head = method + " / HTTP/1.1\r\nHost: x" + (fields.empty() ? "" : "\r\n");
  const auto refusal = refused_body(head + fields, kMost);
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

// A reader in front of this one might take another length for the body, and its end for a request.
TEST(RefusedBody, WhatIsReadInTwoWaysIsRefused) {
  EXPECT_EQ(status_of("POST", "Content-Length: 0\r\nContent-Length: 24"), 400);
  EXPECT_EQ(status_of("POST", "Content-Length: 3\r\nTransfer-Encoding: chunked"), 400);
  EXPECT_EQ(status_of("POST", "Transfer-Encoding: gzip, chunked"), 501);
  EXPECT_EQ(status_of("POST", "Transfer-Encoding: identity"), 501);
  EXPECT_EQ(status_of("POST", "Transfer-Encoding: %63hunked"), 501);
  EXPECT_EQ(status_of("GET", "Content-Length: 24"), 400);
  EXPECT_EQ(status_of("GET", "Transfer-Encoding: chunked"), 400);
  EXPECT_EQ(status_of("GET", "Content-Length: 0"), 0);
  EXPECT_EQ(status_of(" POST", "Content-Length: 1"), 400);
  for (const char* line : {"X: a\nContent-Length: 5",
                           "Content-Length : 5",
                           "Transfer-Encoding\v: chunked",
                           "Transfer-Encoding\x80: chunked",
                           "(x): y",
                           ": chunked",
                           " folded",
                           "X",
                           "\r"}) {
    EXPECT_EQ(status_of("POST", std::string("Content-Length: 5\r\n") + line), 400) << line;
  }
}

TEST(RefusedBody, FieldsHaveNoZeroBytes) {
  EXPECT_EQ(status_of("GET", std::string("X: a\0b", 6)), 400);
  EXPECT_EQ(status_of(std::string("GE\0T", 4), ""), 400);
}

TEST(RefusedBody, EveryCodingCounts) {
  constexpr const char* kLength = "Content-Length: 5\r\n";
  for (const char* fields : {"Content-Encoding:\r\nContent-Encoding: gzip",
                             "Content-Encoding: identity\r\nContent-Encoding: br"}) {
    EXPECT_EQ(status_of("POST", std::string(kLength) + fields), 415) << fields;
  }
  EXPECT_EQ(status_of("POST", std::string(kLength) + "Content-Encoding: identity\nX: y"), 400);
  EXPECT_EQ(status_of("POST", std::string(kLength) + "Content-Encoding: Identity"), 0);
}

TEST(BodyLength, IsThatOfTheHead) {
  EXPECT_EQ(body_length("POST / HTTP/1.1\r\ncontent-length: 17"), 17);
  EXPECT_EQ(body_length("GET / HTTP/1.1\r\nHost: x"), 0);
  EXPECT_EQ(body_length("POST / HTTP/1.1\r\nTransfer-Encoding: chunked"), std::nullopt);
}

}  // namespace
}  // namespace reynard::http

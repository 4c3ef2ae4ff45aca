#include "reynard/http/request_target.h"

#include "tests/support/mutate.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace reynard::http {
namespace {

std::string head_of(const std::string& target) {
  return "GET " + target + " HTTP/1.1\r\nHost: x";
}

// 0: it is taken.
int status_of(const std::string& target) {
  const auto refusal = refused_target(head_of(target));
  return refusal ? refusal->status : 0;
}

TEST(RequestTarget, OfAbsoluteFormBecomesItsPath) {
  for (const auto& [target, path] : {std::pair("http://x/v1/models", "/v1/models"),
                                     {"HTTP://127.0.0.1:8000/a?b=http://c/d", "/a?b=http://c/d"},
                                     {"http://[::1]:8000/", "/"},
                                     {"http://x:", "/"},
                                     {"http://a%20b.example?q", "/?q"},
                                     {"http://x//y", "//y"}}) {
    EXPECT_EQ(status_of(target), 0) << target;
    EXPECT_EQ(with_origin_form(head_of(target)), head_of(path)) << target;
  }
  EXPECT_EQ(with_origin_form("GET http://x/ HTTP/1.0"), "GET / HTTP/1.0");
}

TEST(RequestTarget, OfOtherFormsStaysAsItIs) {
  for (const char* target : {"/v1/models", "/http://x/", "*", "x:80", "ftp://x/", "http:/x", ""}) {
    EXPECT_EQ(status_of(target), 0) << target;
    EXPECT_EQ(with_origin_form(head_of(target)), std::nullopt) << target;
  }
  for (const std::string head :
       {"", "GET", "GET ", "\r\nX: http://x/", "GET /\r\nX: http://x/ y"}) {
    EXPECT_EQ(refused_target(head + "\r\nHost: x").has_value(), false) << head;
    EXPECT_EQ(with_origin_form(head), std::nullopt) << head;
  }
}

TEST(RequestTarget, WithoutAHostIsRefused) {
  for (const char* target : {"http://",
                             "http:///v1/models",
                             "http://:80/",
                             "http://user@x/",
                             "http://user:word@x:80/",
                             "http://x:port/",
                             "http://x:123456/",
                             "http://[]/",
                             "http://[::1/",
                             "http://::1/",
                             "http://a\\b/",
                             "http://\x80/"}) {
    EXPECT_EQ(status_of(target), 400) << target;
  }
  EXPECT_EQ(status_of("https://x/v1/models"), 421);
}

TEST(RequestTarget, HasOneHost) {
  const auto is_refused = [](const std::string& fields) {
    const auto refusal = refused_target("GET / HTTP/1.1" + fields);
    EXPECT_EQ(refusal ? refusal->status : 400, 400);
    return refusal.has_value();
  };
  for (const char* fields : {"\r\nHost:",
                             "\r\nHost: \t ",
                             "\r\nhost:my_service:8000",
                             "\r\nHOST: [::1]:80 \r\nX: y",
                             "\r\nX: y\r\nX-Host: a b\r\nHost: x"}) {
    EXPECT_FALSE(is_refused(fields)) << fields;
  }
  for (const char* fields : {"",
                             "\r\nX-Host: x",
                             "\r\nHost: x\r\nHost: x",
                             "\r\nHost:\r\nX: y\r\nhost:",
                             "\r\nHost: a b",
                             "\r\nHost: a,b/",
                             "\r\nHost: user@x",
                             "\r\nHost: x:y"}) {
    EXPECT_TRUE(is_refused(fields)) << fields;
  }
  EXPECT_FALSE(refused_target("GET / HTTP/1.0")) << "it knew no hosts";
  EXPECT_TRUE(refused_target("GET / HTTP/1.0\r\nHost: x\r\nHost: x"));
}

TEST(RequestTarget, WhateverIsTakenBecomesAPath) {
  const std::string whole[] = {"GET http://a.example:8000/v1/models?x=1 HTTP/1.1\r\nHost: b",
                               "POST http://[::1]/ HTTP/1.1\r\nContent-Length: 2"};
  test::repeat_for(0.5, 20'000, [&](uint64_t attempt) {
    const std::string head = test::Mutator(attempt).mutate(
        whole[attempt % 2], {"http://", "https://", "@", ":", "[", "]", " ", "\r\n", "/"});
    const auto routed = with_origin_form(head);
    if (!routed || refused_target(head)) return;
    const std::size_t begin = routed->find(' ') + 1;
    EXPECT_EQ(routed->at(begin), '/') << head;
    EXPECT_LT(routed->size(), head.size()) << head;
    EXPECT_EQ(routed->substr(0, begin), head.substr(0, begin)) << head;
  });
}

}  // namespace
}  // namespace reynard::http

#include "reynard/http/request_head.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::http {
namespace {

TEST(RequestHead, FieldsOfANameAreReadInTheirOrder) {
  const std::string head = "GET /x: HTTP/1.1\r\nX: a\r\nXY: b\r\nx:\t c, d \r\nX\r\nX:";
  EXPECT_EQ(method_of(head), "GET");
  EXPECT_EQ(values_of(head, "x"), (std::vector<std::string_view>{"a", "c, d", ""}));
  EXPECT_TRUE(values_of(head, "get /x").empty()) << "the first line is no field";
  EXPECT_TRUE(values_of("GET / HTTP/1.1", "x").empty());
}

TEST(RequestHead, TheConnectionEndsWhereCloseIsAnOption) {
  const auto ends = [](const std::string& fields) {
    return ends_connection("GET / HTTP/1.1\r\nHost: x" + fields);
  };
  for (const char* fields : {"\r\nConnection: close",
                             "\r\nConnection: close, TE",
                             "\r\nconnection: TE ,\tClose",
                             "\r\nConnection: ,,close",
                             "\r\nConnection: TE\r\nConnection: close"}) {
    EXPECT_TRUE(ends(fields)) << fields;
  }
  for (const char* fields : {"",
                             "\r\nConnection:",
                             "\r\nConnection: ,",
                             "\r\nConnection: keep-alive, TE",
                             "\r\nConnection: closed, not close",
                             "\r\nX-Connection: close"}) {
    EXPECT_FALSE(ends(fields)) << fields;
  }
  EXPECT_TRUE(ends_connection("GET / HTTP/1.0\r\nConnection: keep-alive"));
}

TEST(RequestHead, KeysStandBehindTheirScheme) {
  EXPECT_EQ(bearer_key("Bearer K"), "K");
  EXPECT_EQ(bearer_key("bEARER  a b "), "a b");
  for (const char* none : {"", "Bearer", "BearerK", "Basic K", " Bearer K", "K"}) {
    EXPECT_EQ(bearer_key(none), "") << none;
  }
}

TEST(RequestHead, LinesOfFieldsAreBounded) {
  const std::string_view head = "GET /long HTTP/1.1\r\nHost: x\r\nA: 12345";
  EXPECT_FALSE(refused_line(head, 8));
  const std::optional<Refusal> refusal = refused_line(head, 7);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->status, 431);
  EXPECT_EQ(refusal->message, "a line of the head has 8 bytes; it may have 7");
  EXPECT_FALSE(refused_line("GET /long HTTP/1.1", 3)) << "the target has a limit of its own";
}

TEST(RequestHead, MethodsThatAreNotOfHttpAreRefused) {
  const auto status_of = [](const std::string& line) {
    const auto refusal = refused_method(line + "\r\nHost: x");
    return refusal ? refusal->status : 0;
  };
  for (const char* line : {"FOO / HTTP/1.1", "get / HTTP/1.1", "PROPFIND /x HTTP/1.0"}) {
    EXPECT_EQ(status_of(line), 501) << line;
  }
  // What is no request is refused elsewhere, as that.
  for (const char* line :
       {"GET / HTTP/1.1", "TRACE / HTTP/1.1", "FOO", "FOO / HTTP/2.0", "F(O / HTTP/1.1"}) {
    EXPECT_EQ(status_of(line), 0) << line;
  }
}

}  // namespace
}  // namespace reynard::http

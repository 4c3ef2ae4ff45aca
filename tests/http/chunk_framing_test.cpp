#include "reynard/http/chunk_framing.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstddef>
#include <string>

namespace reynard::http {
namespace {

constexpr int64_t kMostLineBytes = 50;

// What is left of a body that arrives in pieces of this size; "malformed": nothing.
std::string kept_of(std::string body, std::size_t piece) {
  ChunkFraming framing(kMostLineBytes);
  std::string kept;
  for (std::size_t at = 0; at < body.size(); at += piece) {
    const auto count = framing.keep(body.data() + at, std::min(piece, body.size() - at));
    if (!count) return "malformed";
    kept += body.substr(at, *count);
  }
  return kept;
}

void expect_kept(const std::string& body, const std::string& kept) {
  for (const std::size_t piece : {1, 2, 3, 7, 1000}) {
    EXPECT_EQ(kept_of(body, piece), kept) << "of " << body << " in pieces of " << piece;
  }
}

TEST(ChunkFraming, ChunksPassAsTheyAre) {
  for (const std::string& body : {std::string("0\r\n\r\n"),
                                  std::string("3\r\na\r\n\r\n0\r\n\r\n"),
                                  std::string("5;name=\"x\"\r\n0\r\n\r\n\r\n000\r\n\r\n"),
                                  "1F\r\n" + std::string(31, 'x') + "\r\na\r\n0123456789\r\n"}) {
    expect_kept(body, body);
  }
}

TEST(ChunkFraming, TrailerFieldsAreLeftOut) {
  expect_kept("1\r\na\r\n0\r\nX: y\r\nLonger: field\r\n\r\n", "1\r\na\r\n0\r\n\r\n");
}

TEST(ChunkFraming, WhatIsNotToTheLetterIsMalformed) {
  for (const char* size :
       {"", "x", "-1", "+1", "0x1", " 1", "1 ", "1 ;x", "1,", "10000000000000000", "1\r"}) {
    expect_kept(size + std::string("\r\na\r\n0\r\n\r\n"), "malformed");
  }
  for (const char* body : {"1\na\r\n0\r\n\r\n",
                           "1\r\nab\r\n0\r\n\r\n",
                           "1\r\na\n0\r\n\r\n",
                           "0\r\nX: y\n\r\n",
                           "0\r\nX: y\rZ: y\r\n\r\n",
                           "0\r\n\rX\r\n\r\n",
                           "0\r\n\n",
                           "0\r\n\r\nGET"}) {
    expect_kept(body, "malformed");
  }
}

// Whatever it is: no more comes out than went in, and pieces end where they like.
TEST(ChunkFraming, WhereABodyIsCutMakesNoDifference) {
  using rc::gen::element;
  const auto some = [](const rc::Gen<std::string>& part, int most) {
    std::string all;
    for (int left = *rc::gen::inRange(0, most + 1); left > 0; --left) all += *part;
    return all;
  };
  const auto chunk = element<std::string>("1\r\na\r\n", "2;x\r\n\r\n\r\n", "03\r\n0\r\n\r\n");
  const auto field = element<std::string>("X: y\r\n", "0\r\n", "Longer: field\r\n");
  const auto rest = element<std::string>("", "\r\n", "\r\n", "\r\n", "\r", "a", "\r\na");
  EXPECT_TRUE(rc::check([&] {
    const std::string body =
        some(chunk, 4) + some(element<std::string>("0\r\n"), 1) + some(field, 3) + some(rest, 1);
    const auto piece = *rc::gen::inRange<std::size_t>(1, 9);
    const std::string kept = kept_of(body, body.size() + 1);
    RC_CLASSIFY(kept != "malformed", "well formed");
    RC_ASSERT(kept == "malformed" || kept.size() <= body.size());
    RC_ASSERT(kept_of(body, piece) == kept);
  }));
}

TEST(ChunkFraming, LinesAreBounded) {
  const std::string most(kMostLineBytes - 2, 'x'), begin = "0\r\n";
  expect_kept("0;" + most.substr(2) + "\r\n\r\n", "0;" + most.substr(2) + "\r\n\r\n");
  expect_kept("0;" + most.substr(1) + "\r\n\r\n", "malformed");
  expect_kept(begin + most.substr(2) + "\r\n\r\n", begin + "\r\n");
  expect_kept(begin + most.substr(1) + "\r\n\r\n", "malformed");
  expect_kept(begin + "X: y\r\n" + most + "\r\n\r\n", "malformed");  // together
}

}  // namespace
}  // namespace reynard::http

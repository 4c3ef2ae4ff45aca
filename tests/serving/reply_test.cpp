#include "reynard/serving/reply.h"

#include <gtest/gtest.h>

#include <chrono>

namespace reynard::serving {
namespace {

using generation::FinishReason;

// Who goes away with the whole answer had it: its text was not cut short.
TEST(Reply, IsCancelledWhileATextIsOpen) {
  Reply reply(2);
  reply.add({.index = 0, .finished = FinishReason::kStop});
  reply.add({.index = 1, .finished = FinishReason::kLength});
  reply.cancel();
  EXPECT_FALSE(reply.is_cancelled());
  EXPECT_FALSE(reply.is_done()) << "two pieces are left";
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(reply.next(std::chrono::milliseconds(0)));
  EXPECT_TRUE(reply.is_done());

  Reply open(1);
  open.cancel();
  EXPECT_TRUE(open.is_cancelled());
}

}  // namespace
}  // namespace reynard::serving

// When a bench says that its peer was too slow to compare with.

#include "bench/reference_figures.h"

#include <gtest/gtest.h>

namespace reynard::bench {
namespace {

constexpr const char* kZen5 = "Zen 5 x 2 threads";

Row dense_forward(double peer_value) {
  Row row;
  row.name = "dense_forward";
  row.shape = "B1 H8 T4096 D64";
  row.dtype = "bf16";
  row.peer = "torch_sdpa";
  row.peer_value = peer_value;
  row.unit = "GFLOP/s";
  return row;
}

TEST(SlowPeerNote, SaysWhenThePeerFallsShortOfItsFigure) {
  const std::string note = slow_peer_note(dense_forward(100), kZen5);
  EXPECT_NE(note.find("torch_sdpa ran at 100 GFLOP/s, 66 % of the 151"), std::string::npos) << note;
}

TEST(SlowPeerNote, IsSilentAboutPeersAtFullSpeed) {
  EXPECT_EQ(slow_peer_note(dense_forward(0.86 * 151), kZen5), "");
  EXPECT_NE(slow_peer_note(dense_forward(0.84 * 151), kZen5), "");
}

TEST(SlowPeerNote, IsSilentWhereThereIsNoFigure) {
  EXPECT_EQ(slow_peer_note(dense_forward(1), ""), "");
  EXPECT_EQ(slow_peer_note(dense_forward(1), "Zen 5 x 16 threads"), "");
  Row other = dense_forward(1);
  other.shape = "B1 H8 T4097 D64";
  EXPECT_EQ(slow_peer_note(other, kZen5), "");
}

}  // namespace
}  // namespace reynard::bench

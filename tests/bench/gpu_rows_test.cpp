// Rows of the benches on a GPU from what their peers answer: here from a shell script in the place
// of Python, since the peers need a GPU.

#include "bench/decode_cuda.h"
#include "bench/knn_cuda.h"

#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace reynard::bench {
namespace {

namespace fs = std::filesystem;

// A peer that answers by a shell's `case` over the first word of each line; what it is asked, it
// keeps.
class ScriptedPeer {
 public:
  explicit ScriptedPeer(const std::string& answers) {
    const fs::path script = folder_ / "python";
    test::write_file(script,
                     "#!/bin/sh\nwhile read -r what rest; do\necho \"$what $rest\" >>" +
                         asked_.string() + "\ncase $what in\ndevice) echo 'a GPU';;\n" + answers +
                         "\nesac\ndone\n");
    fs::permissions(script, fs::perms::owner_all);
    ::setenv("REYNARD_PEER_PYTHON", script.c_str(), 1);
  }
  ~ScriptedPeer() { ::unsetenv("REYNARD_PEER_PYTHON"); }
  ScriptedPeer(const ScriptedPeer&) = delete;
  ScriptedPeer& operator=(const ScriptedPeer&) = delete;

  Rows decode_rows(const DecodeCudaBench& options) {
    PeerProcess peer("decode_cuda_peer.py", {});
    return decode_cuda_rows(peer, options);
  }
  Rows knn_rows(const KnnCudaBench& options) {
    PeerProcess peer("knn_cuda_peer.py", {});
    return knn_cuda_rows(peer, options);
  }
  std::string asked() const { return test::read_file(asked_); }

 private:
  test::TempDir folder_;
  fs::path asked_ = folder_ / "asked";
};

void expect_row(const Row& row, const std::string& name, double ours, double peer, double ratio) {
  EXPECT_EQ(row.name, name);
  EXPECT_EQ(row.device, "a GPU");
  EXPECT_EQ(row.dtype, "bf16");
  EXPECT_NEAR(row.ours, ours, 1e-9 * ours) << name;
  EXPECT_NEAR(row.peer_value, peer, 1e-9 * peer) << name;
  EXPECT_NEAR(row.ratio, ratio, 1e-9 * ratio) << name;
}

DecodeCudaBench two_shapes() {
  return {.shapes = {{.H = 4, .G = 2, .T = 640, .D = 64}, {.H = 2, .G = 2, .T = 64, .D = 128}}};
}

TEST(DecodeCuda, BandwidthIsThatOfKeysValuesAndSums) {
  ScriptedPeer peer(
      "copy) echo 2000;;\nparity) echo '0.002 0';;\ntimes) echo '0.5 0.4 0.125 0.1';;");
  DecodeCudaBench options = two_shapes();
  size_t rows_kept = 0;
  options.measured = [&](const Rows& rows, int64_t done, int64_t all) {
    rows_kept = rows.size();
    EXPECT_EQ(rows_kept, static_cast<size_t>(2 * done));
    EXPECT_EQ(all, 2);
  };
  const Rows rows = peer.decode_rows(options);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows_kept, 4U);
  // Two tensors of 640 x 2 x 64 in bf16, 640 x 4 sums in f64, in half a millisecond.
  const double speed = (2 * 640 * 2 * 64 * 2 + 640 * 4 * 8) / 0.5e-3 / 1e9;
  expect_row(rows[0], "decode", speed, 2000, speed / 2000);
  expect_row(rows[1], "pruned_decode", 0.125, 0.5, 4);
  EXPECT_NEAR(rows[0].ours_best, speed * 0.5 / 0.4, 1e-9 * speed);
  EXPECT_EQ(rows[1].ours_best, 0.1);
  EXPECT_EQ(rows[1].peer_best, 0.4);
  EXPECT_EQ(rows[0].shape, "H4 G2 T640 D64");
  EXPECT_EQ(rows[3].shape, "H2 G2 T64 D128");
  EXPECT_EQ(peer.asked(),
            "device \ncopy \nparity 4 2 640 64\ntimes 4 2 640 64\nparity 2 2 64 128\n"
            "times 2 2 64 128\n");
}

TEST(DecodeCuda, WhatIsWrongIsNotTimed) {
  for (const auto& [answer, says] :
       {std::pair("0.007 0", "outputs of H4 G2 T640 D64 differ from f64 by 0.007 of their norm"),
        std::pair("nan 0", "differ from f64 by nan"),
        std::pair("0.002 3", "3 runs of H4 G2 T640 D64 gave other bits"),
        std::pair("0.002", "answered \"0.002\" to \"parity 4 2 640 64\"; expected 2 numbers"),
        std::pair("0.002 0 x", "expected 2 numbers")}) {
    ScriptedPeer peer("copy) echo 2000;;\nparity) echo " + std::string(answer) +
                      ";;\ntimes) echo '0.5 0.4 0.125 0.1';;");
    EXPECT_SAYS(test::error_of([&] { peer.decode_rows(two_shapes()); }), says);
    EXPECT_EQ(peer.asked().find("times"), std::string::npos) << answer;
  }
}

TEST(KnnCuda, TimesAndMemoryOfBothPlaces) {
  ScriptedPeer peer(
      "parity) echo '1e-7 0';;\nsearch) echo '2 1 1048576';;\nhost) echo '50 40 4194304';;");
  const Rows rows = peer.knn_rows({.num_keys = 1 << 20, .queries = {8, 64}});
  ASSERT_EQ(rows.size(), 8U);
  expect_row(rows[0], "knn", 2, 1, 0.5);
  expect_row(rows[1], "knn_memory", 1, 8 * 4, 32);  // MB: eight f32 of a million keys
  expect_row(rows[2], "knn_host", 50, 40, 0.8);
  expect_row(rows[3], "knn_host_memory", 4, 64 * 2, 32);
  EXPECT_EQ(rows[0].shape, "Q8 N1048576 D64 k128");
  EXPECT_EQ(rows[4].shape, "Q64 N1048576 D64 k128");
  EXPECT_EQ(peer.asked(), "device \nparity 8\nsearch 8\nhost 8\nparity 64\nsearch 64\nhost 64\n");
}

TEST(KnnCuda, WhatIsWrongIsNotTimed) {
  for (const auto& [answer, says] :
       {std::pair("0.001 0", "scores of 1 queries differ from torch's by 0.001 of the largest"),
        std::pair("nan 0", "differ from torch's by nan"),
        std::pair("1e-7 2", "2 of the ids and scores of 1 queries are others with keys in host")}) {
    ScriptedPeer peer("parity) echo " + std::string(answer) +
                      ";;\nsearch) echo '2 1 1';;\nhost) echo '2 1 1';;");
    EXPECT_SAYS(test::error_of([&] { peer.knn_rows({}); }), says);
    EXPECT_EQ(peer.asked().find("search"), std::string::npos) << answer;
  }
}

}  // namespace
}  // namespace reynard::bench

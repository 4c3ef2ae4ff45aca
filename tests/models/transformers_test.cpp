// Models of the Llama family that `transformers` wrote are read here with its logits, and those
// that are written here are read there with equal ones.

#include "reynard/checkpoint/safetensors.h"
#include "reynard/models/pretrained.h"
#include "reynard/models/score.h"
#include "tests/support/compare.h"
#include "tests/support/eventually.h"
#include "tests/support/files.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>

namespace reynard::models {
namespace {

// transformers_peer.py, one process for both directions: importing its packages takes seconds.
class Peer {
 public:
  explicit Peer(const test::TempDir& folder) : folder_(folder.path()) {
    const std::string command =
        std::string("timeout 200 " REYNARD_TEST_PYTHON " " REYNARD_SOURCE_DIR
                    "/tests/models/transformers_peer.py ") +
        folder_.string();
    // A peer that ended is told by the write that fails.
    std::signal(SIGPIPE, SIG_IGN);
    pipe_ = popen(command.c_str(), "w");
  }
  // Whether it makes its models; without them it has ended by itself.
  bool made() {
    bool made = false, ended = false;
    const auto made_or_ended = [&] {
      made = std::filesystem::exists(folder_ / "made");
      // A space is no line: it only tells whether the process still reads.
      ended = std::fputc(' ', pipe_) == EOF || std::fflush(pipe_) == EOF;
      return made || ended;
    };
    return test::eventually(made_or_ended, std::chrono::seconds(220)) && made;
  }
  void check() { std::fputs("\n", pipe_); }
  // Its exit status.
  int end() {
    const int status = pclose(pipe_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  std::filesystem::path folder_;
  FILE* pipe_ = nullptr;
};

// "llama_yarn" -> "llama": the layout to be written.
std::string layout_of(const std::string& name) {
  return name.substr(0, name.find('_'));
}

TEST(Transformers, ReadsAndWritesWithEqualLogits) {
  if (!std::filesystem::exists(REYNARD_TEST_PYTHON)) {
    GTEST_SKIP() << REYNARD_TEST_PYTHON " is not there";
  }
  const test::TempDir folder;
  Peer peer(folder);
  if (!peer.made()) {
    const int status = peer.end();
    if (status == 77) GTEST_SKIP() << "the transformers package is not installed";
    FAIL() << "the peer ended with " << status;
  }
  const at::NoGradGuard no_grad;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    const std::string name = entry.path().filename();
    if (!entry.is_directory() || name.ends_with("-ours")) continue;
    Decoder decoder = load_model(folder / name);
    const checkpoint::SafetensorsFile expected(folder / name / "peer.safetensors");
    const at::Tensor hidden =
        decoder.hidden(expected.read("input_ids")[0], at::zeros({1}, at::kLong));
    EXPECT_TENSORS_NEAR(logits(decoder, hidden), expected.read("logits")[0], 1e-4, 1e-4) << name;
    save_model(decoder, folder / (name + "-ours"), layout_of(name));
  }
  peer.check();
  EXPECT_EQ(peer.end(), 0);
}

}  // namespace
}  // namespace reynard::models

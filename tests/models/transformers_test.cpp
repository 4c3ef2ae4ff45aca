// Models of the Llama family that `transformers` wrote are read here with its logits, and those
// that are written here are read there with equal ones.

#include "reynard/checkpoint/safetensors.h"
#include "reynard/models/pretrained.h"
#include "reynard/models/score.h"
#include "tests/support/compare.h"
#include "tests/support/files.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

namespace reynard::models {
namespace {

int run_peer(const std::string& what, const test::TempDir& folder) {
  const std::string command = std::string("timeout 200 " REYNARD_TEST_PYTHON " " REYNARD_SOURCE_DIR
                                          "/tests/models/transformers_peer.py ") +
                              what + " " + folder.path().string();
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Transformers, ReadsAndWritesWithEqualLogits) {
  const test::TempDir folder;
  const int made = run_peer("make", folder);
  if (made == 77) GTEST_SKIP() << "the transformers package is not installed";
  ASSERT_EQ(made, 0);
  const at::NoGradGuard no_grad;
  for (const std::string name : {"llama", "llama_tied", "mistral", "mistral_full", "qwen2"}) {
    Decoder decoder = load_model(folder / name);
    const checkpoint::SafetensorsFile peer(folder / name / "peer.safetensors");
    const at::Tensor ids = peer.read("input_ids")[0];
    const at::Tensor hidden = decoder.hidden(ids, at::zeros({1}, at::kLong));
    EXPECT_TENSORS_NEAR(logits(decoder, hidden), peer.read("logits")[0], 1e-4, 1e-4) << name;
    save_model(decoder, folder / (name + "-ours"), name.substr(0, name.find('_')));
  }
  EXPECT_EQ(run_peer("check", folder), 0);
}

}  // namespace
}  // namespace reynard::models

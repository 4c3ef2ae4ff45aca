// The main function of every suite. Each test draws the same random inputs in every run, whichever
// tests run before it; REYNARD_TEST_SEED=2 draws others.

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>

namespace {

class SameRandomInputs : public testing::EmptyTestEventListener {
 public:
  explicit SameRandomInputs(uint64_t seed) : seed_(seed) {}

 private:
  // Not at::manual_seed, which looks for a GPU before a test has opened libreynard_cuda.so.
  void seed() const {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    generator.set_current_seed(seed_);
  }
  void OnTestSuiteStart(const testing::TestSuite& /*suite*/) override { seed(); }
  void OnTestStart(const testing::TestInfo& /*test*/) override { seed(); }

  uint64_t seed_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const char* const seed = std::getenv("REYNARD_TEST_SEED");
  // GoogleTest owns it.
  testing::UnitTest::GetInstance()->listeners().Append(
      new SameRandomInputs(seed ? std::strtoull(seed, nullptr, 10) : 1));
  return RUN_ALL_TESTS();
}

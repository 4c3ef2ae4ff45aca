// Gaps beside a long prompt, where there is one.

#include "bench/serve.h"
#include "tests/support/errors.h"

#include <gtest/gtest.h>

namespace reynard::bench {
namespace {

TEST(ServeBench, APromptThatIsReadBeforeAnotherClientComesIsAnError) {
  const ServeBench options{
      .clients = 2, .tokens = 8, .long_prompt = 64, .width = 64, .layers = 1, .names = {"gap"}};
  EXPECT_SAYS(test::error_of([&] { bench_serve(options); }),
              "bench serve: --long-prompt = 64; expected more tokens than are read in 0.2 s");
}

}  // namespace
}  // namespace reynard::bench

// Peers in other processes: what is said of one that does not answer.

#include "bench/peer_process.h"

#include "tests/support/errors.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace reynard::bench {
namespace {

TEST(PeerProcess, OneThatDoesNotRunIsNamedWithItsPython) {
  for (const char* python : {"/bin/false", "/nowhere/python"}) {
    ::setenv("REYNARD_PEER_PYTHON", python, 1);
    const std::string error =
        test::error_of([] { PeerProcess("train_step_peer.py", {}).ask("step"); });
    EXPECT_SAYS(error, "the peer train_step_peer.py ended early");
    EXPECT_SAYS(error, std::string("it runs with ") + python + ", $REYNARD_PEER_PYTHON names");
  }
  ::unsetenv("REYNARD_PEER_PYTHON");
}

}  // namespace
}  // namespace reynard::bench

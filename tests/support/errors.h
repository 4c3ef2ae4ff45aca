#pragma once
// What an Error says: the checks of tests that reject arguments and files.

#include "reynard/tensor/error.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace reynard::test {

// The message of the reynard::Error that the call throws; "no error" when it throws none.
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline testing::AssertionResult says(const std::string& message, const std::string& part) {
  if (message.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << '"' << message << "\" does not say \"" << part << '"';
}

}  // namespace reynard::test

#define EXPECT_SAYS(message, part) EXPECT_TRUE(::reynard::test::says(message, part))

#pragma once
// The exception for mistakes that a user can cause; it needs no libtorch header.

#include <stdexcept>

namespace reynard {

// A mistake of the user or a bad file: the message names the value and the remedy. The program
// prints it and exits with 2.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace reynard

#pragma once
// A request that is longer than the model behind an endpoint takes: like one that does not fit into
// the memory, it ends a task whose shorter samples can stand alone.

#include "reynard/tensor/error.h"

namespace reynard::evaluation {

class ContextLimitError : public Error {
 public:
  using Error::Error;
};

}  // namespace reynard::evaluation

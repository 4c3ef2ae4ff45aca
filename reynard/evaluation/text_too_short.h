#pragma once
// What a task throws where a longer text, or one of longer documents, could give what it needs:
// `eval` leaves it out where nobody asked for it.

#include "reynard/tensor/error.h"

namespace reynard::evaluation {

struct TextTooShort : Error {
  using Error::Error;
};

}  // namespace reynard::evaluation

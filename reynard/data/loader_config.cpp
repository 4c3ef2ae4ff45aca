#include "reynard/data/loader.h"

namespace reynard::data {

config::EnumNames<LoaderMode> enum_names(LoaderMode) {
  return {{LoaderMode::kPacked, "packed"},
          {LoaderMode::kSlices, "slices"},
          {LoaderMode::kOrdered, "ordered"}};
}

}  // namespace reynard::data

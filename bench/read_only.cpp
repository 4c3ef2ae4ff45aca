#include "bench/read_only.h"

namespace reynard::bench {

void make_read_only(models::Decoder& decoder, at::ScalarType products) {
  decoder.set_compute_dtype(products);
  decoder.parameters([](const std::string& /*name*/, models::Parameter& parameter) {
    parameter.value.requires_grad_(false);
  });
}

}  // namespace reynard::bench

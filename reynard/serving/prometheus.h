#pragma once
// The text format in which Prometheus reads metrics.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace reynard::serving {

struct Metric {
  std::string_view name;  // without the project's prefix
  std::string_view help;
  bool is_counter = true;  // else a gauge
  int64_t value = 0;
};

std::string prometheus_text(std::initializer_list<Metric> metrics);

}  // namespace reynard::serving

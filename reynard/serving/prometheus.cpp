#include "reynard/serving/prometheus.h"

#include <fmt/format.h>

namespace reynard::serving {

std::string prometheus_text(std::initializer_list<Metric> metrics) {
  std::string text;
  for (const Metric& metric : metrics) {
    text += fmt::format("# HELP reynard_{0} {1}\n# TYPE reynard_{0} {2}\nreynard_{0} {3}\n",
                        metric.name,
                        metric.help,
                        metric.is_counter ? "counter" : "gauge",
                        metric.value);
  }
  return text;
}

}  // namespace reynard::serving

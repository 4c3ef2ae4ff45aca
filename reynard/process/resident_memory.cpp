#include "reynard/process/resident_memory.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

namespace reynard::process {

namespace {

int64_t status_bytes(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::atoll(line.c_str() + field.size()) * 1024;
  }
  return 0;
}

}  // namespace

int64_t resident_bytes() {
  return status_bytes("VmRSS:");
}

int64_t peak_resident_bytes() {
  return status_bytes("VmHWM:");
}

bool forget_peak_resident_bytes() {
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5" << std::flush;  // the peak becomes what is held now
  return clear.good();
}

}  // namespace reynard::process

#include "bench/resident_memory.h"

#include "reynard/tensor/error.h"

#include <malloc.h>

#include <fstream>
#include <string>

namespace reynard::bench {

namespace {

double status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) return 1024.0 * std::stod(line.substr(field.size() + 1));
  }
  throw Error("bench: /proc/self/status has no " + field + "; expected Linux");
}

}  // namespace

double resident_bytes() {
  return status_bytes("VmRSS");
}

double peak_resident_bytes() {
  return status_bytes("VmHWM");
}

void forget_peak() {
  ::malloc_trim(0);
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5" << std::flush;  // the peak becomes what is held now
  if (!clear) throw Error("bench: cannot write /proc/self/clear_refs; expected Linux");
}

}  // namespace reynard::bench

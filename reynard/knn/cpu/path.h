#pragma once
// Which loops this machine scans keys with: the best that it has, or those that the environment
// variable REYNARD_CPU_PATH names.

#include "reynard/knn/cpu/scan_kernels.h"

#include <string>
#include <vector>

namespace reynard::knn::cpu {

// Names of what this machine can run, best first; portable is always there.
std::vector<std::string> available_paths();

// Asked at every search, so that tests may switch. Throws reynard::Error listing what this machine
// has if REYNARD_CPU_PATH names anything else.
const ScanTables& scan_tables();

}  // namespace reynard::knn::cpu

#pragma once
// Rows of a benchmark as JSON for machines.

#include "bench/rows.h"

#include <string>
#include <vector>

namespace reynard::bench {

// Writes a JSON list of rows; replaces the file only when it is complete. Empty path: nothing.
void write_rows(const std::vector<Row>& rows, const std::string& path);

}  // namespace reynard::bench

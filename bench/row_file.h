#pragma once
// Rows of a benchmark as JSON for machines.

#include "bench/rows.h"

#include <string>

namespace reynard::bench {

// Throws reynard::Error where write_rows() would: before measurements that take minutes.
void check_rows_can_be_written(const std::string& path);

// Writes a JSON list of rows; replaces the file only when it is complete. Empty path: nothing.
void write_rows(const Rows& rows, const std::string& path);

}  // namespace reynard::bench

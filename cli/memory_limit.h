#pragma once
// Turns running out of memory into an exception: without a limit the kernel grants more than there
// is and kills the process, or another one, later.

#include <cstdint>

namespace reynard::cli {

// Bytes of memory that this process may have: the machine's or container's, swap included, or a
// lower limit that was set before (ulimit -d); 0 when unknown.
int64_t machine_memory();

// Lets allocations beyond machine_memory() fail.
void limit_memory_to_machine();

}  // namespace reynard::cli

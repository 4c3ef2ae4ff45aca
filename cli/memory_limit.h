#pragma once
// Turns running out of memory into an exception: without a limit the kernel grants more than there
// is and kills the process, or another one, later.

#include <cstdint>

namespace reynard::cli {

// Lets allocations fail beyond what is free now, swap included, in the machine and in the
// container. A lower limit that was set before (ulimit -d) stays.
void limit_memory_to_free();

// Bytes of data that this process may have.
int64_t memory_limit();

}  // namespace reynard::cli

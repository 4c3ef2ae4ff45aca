#pragma once
// How much main memory this process holds and has held, as Linux counts it. Not what a GPU holds.

#include <cstdint>

namespace reynard::process {

// Bytes; 0 where the system does not say.
int64_t resident_bytes();       // now
int64_t peak_resident_bytes();  // at most since the program began, or since it was told to forget

// Begins to watch anew; false where the system does not let it.
bool forget_peak_resident_bytes();

}  // namespace reynard::process

#pragma once
// How much main memory this process holds and has held, as Linux counts it. Not what a GPU holds.

namespace reynard::bench {

double resident_bytes();  // now
// At most since the program began, or since forget_peak().
double peak_resident_bytes();
// Gives memory that nothing uses back to the system and begins to watch anew.
void forget_peak();

}  // namespace reynard::bench

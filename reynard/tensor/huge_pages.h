#pragma once
// Huge pages for memory that is read in random order or touched for the first time in each step:
// a 2 MB page is one fault and one entry of the processor's table of pages where small ones are
// 512.

#include <cstdint>

namespace reynard::tensor {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Asks for huge pages wherever they lie whole in [data, data + bytes), before it is first written.
// Advice only: without them the memory works all the same.
void advise_huge_pages(void* data, int64_t bytes);

}  // namespace reynard::tensor

#pragma once
// New tokens into pages of the cache that lie in host memory.

#include "reynard/attention/page_kernels.h"

namespace reynard::attention::cpu {

void write_pages(const PageWrite& tokens);

}  // namespace reynard::attention::cpu

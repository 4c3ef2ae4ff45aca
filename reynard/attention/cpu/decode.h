#pragma once
// One query per sequence against pages in place (split-KV decode): the keys of a sequence are cut
// into fixed runs of pages, each run is attended by itself, and the runs are combined in order, so
// the bits do not depend on the thread count. Pages before a query's start are never read.

#include "reynard/attention/page_kernels.h"

namespace reynard::attention::cpu {

DecodeOutput decode(const DecodeArguments& arguments);

}  // namespace reynard::attention::cpu

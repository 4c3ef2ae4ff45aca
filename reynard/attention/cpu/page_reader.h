#pragma once
// What pages of a cache in host memory hold, as rows.

#include "reynard/attention/page_kernels.h"

namespace reynard::attention::cpu {

PageRows read_pages(const at::Tensor& keys,
                    const at::Tensor& values,
                    const at::Tensor& ids,
                    int64_t head_dim);

}  // namespace reynard::attention::cpu

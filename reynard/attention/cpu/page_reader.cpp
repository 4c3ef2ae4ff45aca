#include "reynard/attention/cpu/page_reader.h"

#include "reynard/attention/cpu/page_words.h"
#include "reynard/tensor/parallel.h"

#include <ATen/ops/empty.h>

namespace reynard::attention::cpu {

namespace {

// Of pages whose elements are as large as Bits.
template <class Bits>
PageRows read(const at::Tensor& keys,
              const at::Tensor& values,
              const at::Tensor& ids,
              int64_t head_dim) {
  const int64_t N = ids.size(0);
  PageRows rows = {at::empty({N, kKeysPerPage, head_dim}, keys.options()),
                   at::empty({N, kKeysPerPage, head_dim}, values.options())};
  const auto* id = ids.const_data_ptr<int64_t>();
  const auto read_all = [&](const at::Tensor& pages, const at::Tensor& to, const auto& read_page) {
    const auto* from = static_cast<const uint32_t*>(pages.const_data_ptr());
    auto* first = static_cast<Bits*>(to.mutable_data_ptr());
    tensor::run_tasks(N, [&](int64_t n, int64_t /*worker*/) {
      const uint32_t* page = from + id[n] * page_words<Bits>(head_dim);
      read_page(page, head_dim, first + n * kKeysPerPage * head_dim);
    });
  };
  read_all(keys, rows.keys, read_keys<Bits>);
  read_all(values, rows.values, read_values<Bits>);
  return rows;
}

}  // namespace

PageRows read_pages(const at::Tensor& keys,
                    const at::Tensor& values,
                    const at::Tensor& ids,
                    int64_t head_dim) {
  switch (keys.element_size()) {
    case sizeof(uint8_t):
      return read<uint8_t>(keys, values, ids, head_dim);
    case sizeof(uint16_t):
      return read<uint16_t>(keys, values, ids, head_dim);
    default:
      return read<uint32_t>(keys, values, ids, head_dim);
  }
}

}  // namespace reynard::attention::cpu

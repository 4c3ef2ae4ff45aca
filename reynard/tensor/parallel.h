#pragma once
// One pool for the whole program: libtorch's. Tasks are handed out by a shared counter, so that
// unequal tasks balance; which thread runs a task must not change its result.

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace reynard::tensor {

// How many workers run_tasks uses for this many tasks; scratch memory is allotted per worker.
inline int64_t num_workers(int64_t num_tasks) {
  if (at::in_parallel_region()) return 1;
  return std::max<int64_t>(1, std::min<int64_t>(at::get_num_threads(), num_tasks));
}

// Calls body(task, worker) once for each task in [0, num_tasks), in this order of starting. Put
// expensive tasks first. Inside a parallel region the tasks run serially.
template <class Body>
void run_tasks(int64_t num_tasks, const Body& body) {
  if (num_tasks <= 0) return;
  std::atomic<int64_t> next{0};
  at::parallel_for(0, num_workers(num_tasks), 1, [&](int64_t first, int64_t last) {
    for (int64_t worker = first; worker < last; ++worker) {
      for (int64_t task = next.fetch_add(1); task < num_tasks; task = next.fetch_add(1)) {
        body(task, worker);
      }
    }
  });
}

}  // namespace reynard::tensor

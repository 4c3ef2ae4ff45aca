#pragma once
// The loading side of the forward kernel: one thread keeps the rings of tiles full, and one takes
// the tasks for it, so that neither waits for global memory with the other's registers.

#include "reynard/attention/cuda/sm90/forward_config.cuh"

namespace reynard::attention::cuda::sm90::fwd {

// Takes a task whenever the loading thread wants one.
template <class C>
__device__ void take_tasks(const Params& p, Shared<C>& s) {
  QueryTask task;
  uint32_t parity = 0;
  do {
    wait(shared_address(&s.task_wanted), parity);
    parity ^= 1;
    const int number = atomicAdd(p.plan.next_task, 1);
    task = number < p.num_tasks ? p.plan.tasks[number] : QueryTask();
    s.next_task = task;
    arrive(shared_address(&s.task_known));
  } while (task.m >= 0);
}

template <class C>
class Producer {
 public:
  __device__ Producer(const Params& p, Shared<C>& s) : p_(p), s_(s) {}

  __device__ void run() {
    want_task();
    for (int turn = 0;; ++turn) {
      const int slot = turn % C::kQuerySlots;
      wait(shared_address(&s_.task_known), turn & 1);
      const QueryTask task = s_.next_task;
      wait(shared_address(&s_.query_empty[slot]), ((turn / C::kQuerySlots) & 1) ^ 1);
      s_.tasks[slot] = task;
      if (task.m < 0) {
        arrive(shared_address(&s_.query_full[slot]));
        return;
      }
      load_queries(task, slot);
      load_blocks(task);
    }
  }

 private:
  // Blocks that are left of a task when the next one is taken: late, so that whoever is free first
  // takes the next of the list; early enough not to wait for it.
  static constexpr int kBlocksLeft = 2 * C::kBlocksPerRecord;

  __device__ void want_task() { arrive(shared_address(&s_.task_wanted)); }

  __device__ void load_queries(const QueryTask& task, int slot) {
    const uint32_t full = shared_address(&s_.query_full[slot]);
    const Problem& problem = p_.task.problem;
    b_ = task.batch, h_ = task.head - b_ * problem.H;
    g_ = h_ / (problem.H / problem.G);
    if constexpr (C::kGated) {
      records_ = p_.records + int64_t{task.head} * p_.num_records;
      asm volatile("" : "+l"(records_));  // kept: ptxas would find it anew for each block
    }
    arrive_expecting(full, C::kQueryBytes + C::kQuerySumBytes);
    for (int half = 0; half < C::kHalves; ++half) {
      load_tile(shared_address(s_.queries[slot]) + half * C::kRows * kRowBytes,
                p_.q,
                {half * 64, task.m * C::kRows, h_, b_},
                full);
    }
    if constexpr (C::kGated) {
      const int64_t block = int64_t{task.head} * p_.num_query_blocks + task.m;
      load_bytes(shared_address(s_.query_sums[slot]),
                 p_.query_sums + block * C::kRows,
                 C::kQuerySumBytes,
                 full);
    }
  }

  // Values follow their keys by one block, as they are used.
  __device__ void load_blocks(const QueryTask& task) {
    const auto [first, last] = task.blocks;
    const int want_at = min(last, first + kBlocksLeft);
    if (last < first) want_task();
    for (int n = last; n >= first; --n) {
      load_keys(n);
      if (n == want_at) want_task();
      if (n < last) load_values(n + 1);
    }
    if (last >= first) load_values(first);
  }

  __device__ void load_keys(int n) {
    const uint32_t full = shared_address(&s_.key_full[keys_.index]);
    wait(shared_address(&s_.key_empty[keys_.index]), keys_.parity ^ 1);
    arrive_expecting(full, C::kKeyBytes + (C::kGated ? sizeof(BiasRecord) : 0));
    load(shared_address(s_.keys[keys_.index]), p_.k, n, full);
    if (C::kGated) {
      load_bytes(shared_address(&s_.bias[keys_.index]),
                 records_ + static_cast<unsigned>(n) / C::kBlocksPerRecord,
                 sizeof(BiasRecord),
                 full);
    }
    keys_.next();
  }

  __device__ void load_values(int n) {
    const uint32_t full = shared_address(&s_.value_full[values_.index]);
    wait(shared_address(&s_.value_empty[values_.index]), values_.parity ^ 1);
    arrive_expecting(full, C::kKeyBytes);
    load(shared_address(s_.values[values_.index]), p_.v, n, full);
    values_.next();
  }

  __device__ void load(uint32_t to, const CUtensorMap& map, int n, uint32_t full) {
    for (int half = 0; half < C::kHalves; ++half) {
      load_tile(to + half * C::kKeys * kRowBytes, map, {half * 64, n * C::kKeys, g_, b_}, full);
    }
  }

  const Params& p_;
  Shared<C>& s_;
  Stage<C::kStages> keys_, values_;
  // Of the task.
  const BiasRecord* records_ = nullptr;
  int b_ = 0, h_ = 0, g_ = 0;
};

}  // namespace reynard::attention::cuda::sm90::fwd

#include "reynard/attention/cpu/key_packer.h"

#include <thread>

namespace reynard::attention::cpu {

KeyPacker::KeyPacker(const PreparedProblem& prepared, const PackedKeys& packed)
    : prepared_(prepared), packed_(packed), states_(packed.num_pairs * prepared.num_key_blocks) {}

void KeyPacker::pack(int64_t pair, KeyRange keys) {
  if (keys.empty()) return;
  const int64_t per_block = prepared_.kernels->keys_per_block;
  for (int64_t block = keys.begin / per_block; block * per_block < keys.end; ++block) {
    std::atomic<State>& state = states_[pair * prepared_.num_key_blocks + block];
    State seen = State::kOpen;
    if (state.compare_exchange_strong(seen, State::kBeingPacked)) {
      prepared_.kernels->pack_keys(prepared_.problem, packed_, pair, block);
      state.store(State::kPacked, std::memory_order_release);
    }
    // Another thread packs for some microseconds, less than it takes to sleep and be woken.
    while (seen == State::kBeingPacked) {
      std::this_thread::yield();
      seen = state.load(std::memory_order_acquire);
    }
  }
}

}  // namespace reynard::attention::cpu

#pragma once
// What follows dS: a warpgroup owns 64 keys of a block, whose dK and dV stay in its registers, and
// multiplies dQ, or a part of it, over all keys of the block. How it walks over the steps of a task
// lies in backward_by_step.cuh, backward_ahead.cuh and backward_halves.cuh.

#include "reynard/attention/cuda/sm90/backward_consumer.cuh"

namespace reynard::attention::cuda::sm90::bwd {

template <class C>
class OwnKeysConsumer : protected Consumer<C> {
  using Base = Consumer<C>;

 protected:
  using Base::buffer_, Base::dk_, Base::dscores_, Base::dv_, Base::dweights_;
  using Base::key, Base::key_sums_, Base::p_, Base::s_, Base::stage_;
  using Base::store_pairs, Base::thread_, Base::warpgroup_, Base::weights_;
  using typename Base::Scalar;

  // Of the task, as pieces lie in shared memory.
  static constexpr int kFirstOwnPiece = C::kPieces - C::kTaskPieces;

  using Base::Base;

  __device__ __forceinline__ void wait_for_pending() const {
    wait(shared_address(&s_.dscores_full[pending_buffer_.index]), pending_buffer_.parity);
  }
  __device__ __forceinline__ void issue_dq() {
    wgmma_fence();
    multiply_dq();
    wgmma_commit();
  }
  __device__ __forceinline__ void issue_gradients() {
    wgmma_fence();
    add_product(weights_, s_.douts[stage_.index], dv_);    // dV += P^T dO
    add_product(dscores_, s_.queries[stage_.index], dk_);  // dK += dS^T Q
    wgmma_commit();
  }

  __device__ __forceinline__ void pin_gradients() {
    pin(dk_);
    pin(dv_);
  }

  __device__ __forceinline__ void store_dscores() const {
    wait(shared_address(&s_.dscores_empty[buffer_.index]), buffer_.parity ^ 1);
    store_pairs(dscores_, s_.dscores[buffer_.index]);
  }

  // Left operand: 64 keys of this warpgroup; right: the task's dimensions; depth: 64 queries.
  __device__ __forceinline__ void add_product(const uint32_t* left,
                                              const char* right,
                                              float (&sums)[C::kGradientDims / 2]) {
    const uint64_t b = swizzled_descriptor(
        shared_address(right) + kFirstOwnPiece * kPieceBytes, kPieceBytes, 1024);
#pragma unroll
    for (int step = 0; step < kQueriesPerTile / 16; ++step) {
      wgmma_registers<C::kGradientDims, Scalar, Contiguous::kRows>(
          sums, left + 4 * step, advanced(b, step * 16 * kRowBytes), 1);
    }
  }

  // dQ = dS K over all keys of the block, or this warpgroup's 64 dimensions of it, into dweights_.
  __device__ __forceinline__ void multiply_dq() {
    const int piece = kFirstOwnPiece + warpgroup_ % C::kTaskPieces;
    const char* keys = s_.keys + piece * C::kKeys * kRowBytes;
    const uint64_t ds =
        swizzled_descriptor(shared_address(s_.dscores[pending_buffer_.index]), 16, 1024);
    const uint64_t k = swizzled_descriptor(shared_address(keys), 16, 1024);
#pragma unroll
    for (int step = 0; step < C::kKeys / 16; ++step) {
      wgmma<64, Scalar, Contiguous::kRows, Contiguous::kRows>(dweights_,
                                                              advanced(ds, step * 16 * kRowBytes),
                                                              advanced(k, step * 16 * kRowBytes),
                                                              step > 0);
    }
  }

  // Those of the task: asked for while its keys are held, behind which the next task is written.
  __device__ __forceinline__ OwnKeys own_keys() const {
    return {s_.task, key(0), thread_};
  }

  __device__ __forceinline__ void store_key_sums(const OwnKeys& keys) const {
    if (!p_.task.dkey_sums) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const double sum = sum_of_key(key_sums_[r]);
      if (thread_ % 4 == 0) store_key_sum(p_.task, keys.task, keys[r], sum);
    }
  }

  Stage<C::kBuffers> pending_buffer_;  // of the dS whose dQ is next
};

}  // namespace reynard::attention::cuda::sm90::bwd

#include "reynard/attention/cuda/gate_scan.h"

#include "reynard/attention/bias_limits.h"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

namespace reynard::attention::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kOwn = 4;                  // consecutive positions per thread
constexpr int kPiece = kThreads * kOwn;  // positions that a block of threads walks over

// A running sum that may start anew: what lies before a restart does not reach beyond it.
struct Run {
  double sum = 0;
  bool restarted = false;
};

__device__ Run join(const Run& before, const Run& after) {
  return {after.restarted ? after.sum : before.sum + after.sum,
          before.restarted || after.restarted};
}

__device__ Run shuffled_up(const Run& run, int distance) {
  return {__shfl_up_sync(~0U, run.sum, distance),
          static_cast<bool>(__shfl_up_sync(~0U, static_cast<int>(run.restarted), distance))};
}

// Inclusive scan over the threads of a block; returns what lies before this thread, and in `whole`
// the run of all threads.
__device__ Run scanned_before(const Run& own, Run* warps, Run& whole) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Run run = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const Run other = shuffled_up(run, distance);
    if (lane >= distance) run = join(other, run);
  }
  __syncthreads();
  if (lane == 31) warps[warp] = run;
  __syncthreads();
  if (warp == 0) {
    Run total = lane < kWarps ? warps[lane] : Run{};
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const Run other = shuffled_up(total, distance);
      if (lane >= distance) total = join(other, total);
    }
    if (lane < kWarps) warps[lane] = total;
  }
  __syncthreads();
  Run before = shuffled_up(run, 1);
  if (lane == 0) before = {};
  if (warp > 0) before = join(warps[warp - 1], before);
  whole = warps[kWarps - 1];
  return before;
}

// The gradient: pieces of positions by themselves, then each with what lies after it.

__host__ __device__ int num_pieces(int T) {
  return (T + kPiece - 1) / kPiece;
}

// Positions are walked from the last to the first; piece 0 is that of the last ones.
class Piece {
 public:
  __device__ explicit Piece(const GateGradient& g)
      : g_(g),
        number_(blockIdx.x % num_pieces(g.scan.T)),
        row_(blockIdx.x / num_pieces(g.scan.T)),
        first_(g.scan.T - 1 - number_ * kPiece - static_cast<int>(threadIdx.x) * kOwn) {
    const double* dsums = g.dsums + row_ * g.scan.T;
    Run own;
#pragma unroll
    for (int e = 0; e < kOwn; ++e) {
      const int t = position(e);
      if (t >= 0) own = is_idle(t) ? Run{0, true} : Run{own.sum + dsums[t], own.restarted};
      until_[e] = own;
    }
  }

  __device__ int number() const {
    return number_;
  }
  __device__ int64_t row() const {
    return row_;
  }
  __device__ int position(int e) const {
    return first_ - e;
  }
  // Of the own positions.
  __device__ const Run& whole() const {
    return until_[kOwn - 1];
  }
  __device__ const Run& until(int e) const {
    return until_[e];
  }

  // A gate that has no effect (its token sees nothing before itself): gradient 0, and the sum
  // starts anew for the tokens before it.
  __device__ bool is_idle(int t) const {
    const int query = t - (g_.scan.T - g_.Tq);
    return g_.first_key && query >= 0 && g_.first_key[row_ / g_.scan.H * g_.Tq + query] >= t;
  }

 private:
  const GateGradient& g_;
  int number_;
  int64_t row_;
  int first_;
  Run until_[kOwn];
};

//   totals (B, H, pieces)
__global__ void __launch_bounds__(kThreads) piece_totals_kernel(const GateGradient g, Run* totals) {
  tensor::let_next_kernel_start();
  __shared__ Run warps[kWarps];
  const Piece piece(g);
  Run whole;
  scanned_before(piece.whole(), warps, whole);
  if (threadIdx.x == 0) totals[blockIdx.x] = whole;
}

template <class Scalar>
__global__ void __launch_bounds__(kThreads)
    gradient_kernel(const GateGradient g, const Run* totals) {
  __shared__ Run warps[kWarps];
  const GateScan& scan = g.scan;
  const Piece piece(g);
  Run whole, carry;
  const Run before_own = scanned_before(piece.whole(), warps, whole);
  tensor::wait_for_kernel_before();
  const Run* of_row = totals + piece.row() * num_pieces(scan.T);
  for (int base = 0; base < piece.number(); base += kThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    scanned_before(i < piece.number() ? of_row[i] : Run{}, warps, whole);
    carry = join(carry, whole);
  }
  const Run before = join(carry, before_own);
  const int64_t column = piece.row() / scan.H * scan.T * scan.H + piece.row() % scan.H;
  const auto* gates = static_cast<const Scalar*>(scan.log_gate) + column;
  auto* out = static_cast<Scalar*>(g.dgate) + column;
#pragma unroll
  for (int e = 0; e < kOwn; ++e) {
    const int t = piece.position(e);
    if (t < 0) continue;
    const int64_t index = int64_t{t} * scan.H;
    const bool silent = piece.is_idle(t) || static_cast<double>(gates[index]) < kSmallestLogGate;
    out[index] = silent ? Scalar{0} : static_cast<Scalar>(join(before, piece.until(e)).sum);
  }
}

template <class Scalar>
void launch_gradient(const GateGradient& g, void* scratch, cudaStream_t stream) {
  auto* totals = static_cast<Run*>(scratch);
  const unsigned blocks = g.scan.B * g.scan.H * num_pieces(g.scan.T);
  // Not early: the kernel after it reads, before it waits, what was written before this one.
  piece_totals_kernel<<<blocks, kThreads, 0, stream>>>(g, totals);
  REYNARD_CHECK_LAUNCH();
  tensor::launch_early(gradient_kernel<Scalar>,
                       dim3(blocks),
                       kThreads,
                       0,
                       stream,
                       g,
                       static_cast<const Run*>(totals));
  REYNARD_CHECK_LAUNCH();
}

// Sums: chunks of positions by themselves, then each with what lies before it.

constexpr int kChunk = 256;  // positions
constexpr int kChunkWarps = 8;
constexpr int kLaneSteps = kChunk / 32;

__host__ __device__ int num_chunks(int T) {
  return (T + kChunk - 1) / kChunk;
}

// Heads whose gates lie in 128 bytes.
template <class Scalar>
constexpr int kHeadsPerChunk = 128 / sizeof(Scalar);

// The gates of a chunk, read in rows of heads and walked along positions.
template <class Scalar>
struct Chunk {
  static constexpr int kHeads = kHeadsPerChunk<Scalar>;

  __device__ Chunk(const GateScan& scan, Scalar (*gates)[kHeads + 1])
      : gates_(gates),
        number_(blockIdx.x % num_chunks(scan.T)),
        batch_(blockIdx.x / num_chunks(scan.T)),
        first_(number_ * kChunk),
        first_head_(blockIdx.y * kHeads) {
    const int64_t start = (int64_t{batch_} * scan.T + first_) * scan.H + first_head_;
    const auto* from = static_cast<const Scalar*>(scan.log_gate) + start;
    const int t_end = scan.T - first_, h_end = scan.H - first_head_;
#pragma unroll 8
    for (int i = threadIdx.x; i < kChunk * kHeads; i += 32 * kChunkWarps) {
      const int t = i / kHeads, h = i % kHeads;
      gates[t][h] = t < t_end && h < h_end ? from[int64_t{t} * scan.H + h] : Scalar{0};
    }
    __syncthreads();
  }

  // Of position first() + 32 step + lane.
  __device__ double gate(int h, int step) const {
    const double gate = gates_[32 * step + threadIdx.x % 32][h];
    // Written so that NaN stays.
    return gate < kSmallestLogGate ? kSmallestLogGate : gate;
  }
  __device__ int number() const {
    return number_;
  }
  __device__ int first() const {
    return first_;
  }
  // Heads of this block of threads, and the row of (B, H) of one of them.
  __device__ int num_heads(const GateScan& scan) const {
    return min(kHeads, scan.H - first_head_);
  }
  __device__ int64_t row(const GateScan& scan, int h) const {
    return int64_t{batch_} * scan.H + first_head_ + h;
  }

 private:
  const Scalar (*gates_)[kHeads + 1];
  int number_, batch_, first_, first_head_;
};

__device__ double warp_sum(double value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0U, value, distance);
  }
  return value;
}

//   totals (B, H, chunks)
template <class Scalar>
__global__ void __launch_bounds__(32 * kChunkWarps)
    totals_kernel(const GateScan scan, double* totals) {
  tensor::let_next_kernel_start();
  __shared__ Scalar gates[kChunk][Chunk<Scalar>::kHeads + 1];
  const Chunk<Scalar> chunk(scan, gates);
  for (int h = threadIdx.x / 32; h < chunk.num_heads(scan); h += kChunkWarps) {
    double total = 0;
#pragma unroll
    for (int step = 0; step < kLaneSteps; ++step) total += chunk.gate(h, step);
    total = warp_sum(total);
    const int64_t place = chunk.row(scan, h) * num_chunks(scan.T) + chunk.number();
    if (threadIdx.x % 32 == 0) totals[place] = total;
  }
}

template <class Scalar>
__global__ void __launch_bounds__(32 * kChunkWarps)
    sums_kernel(const GateScan scan, const double* totals, double* sums) {
  tensor::let_next_kernel_start();
  __shared__ Scalar gates[kChunk][Chunk<Scalar>::kHeads + 1];
  const Chunk<Scalar> chunk(scan, gates);
  tensor::wait_for_kernel_before();
  const int lane = threadIdx.x % 32;
  for (int h = threadIdx.x / 32; h < chunk.num_heads(scan); h += kChunkWarps) {
    const int64_t row = chunk.row(scan, h);
    const double* of_row = totals + row * num_chunks(scan.T);
    double before = 0;
    for (int c = lane; c < chunk.number(); c += 32) before += of_row[c];
    before = warp_sum(before);
    double runs[kLaneSteps];
#pragma unroll
    for (int step = 0; step < kLaneSteps; ++step) runs[step] = chunk.gate(h, step);
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
#pragma unroll
      for (double& run : runs) {
        const double other = __shfl_up_sync(~0U, run, distance);
        if (lane >= distance) run += other;
      }
    }
#pragma unroll
    for (int step = 0; step < kLaneSteps; ++step) {
      const int t = chunk.first() + 32 * step + lane;
      if (t < scan.T) sums[row * scan.T + t] = before + runs[step];
      before += __shfl_sync(~0U, runs[step], 31);
    }
  }
}

template <class Scalar>
void launch_sums(const GateScan& scan, double* totals, double* sums, cudaStream_t stream) {
  const int heads = kHeadsPerChunk<Scalar>;
  const dim3 blocks(num_chunks(scan.T) * scan.B, (scan.H + heads - 1) / heads);
  // Not early: the kernel after it reads, before it waits, what was written before this one.
  totals_kernel<Scalar><<<blocks, 32 * kChunkWarps, 0, stream>>>(scan, totals);
  REYNARD_CHECK_LAUNCH();
  tensor::launch_early(sums_kernel<Scalar>,
                       blocks,
                       32 * kChunkWarps,
                       0,
                       stream,
                       scan,
                       static_cast<const double*>(totals),
                       sums);
  REYNARD_CHECK_LAUNCH();
}

}  // namespace

int gate_chunks(int T) {
  return num_chunks(T);
}

void gate_sums(const GateScan& scan, double* totals, double* sums, cudaStream_t stream) {
  const auto run = scan.is_double ? &launch_sums<double> : &launch_sums<float>;
  run(scan, totals, sums, stream);
}

int64_t gate_gradient_scratch_bytes(const GateScan& scan) {
  return int64_t{scan.B} * scan.H * num_pieces(scan.T) * static_cast<int64_t>(sizeof(Run));
}

void gate_sums_backward(const GateGradient& gradient, void* scratch, cudaStream_t stream) {
  const auto run = gradient.scan.is_double ? &launch_gradient<double> : &launch_gradient<float>;
  run(gradient, scratch, stream);
}

}  // namespace reynard::attention::cuda

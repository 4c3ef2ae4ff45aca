#include "reynard/attention/cuda/bounds.h"

#include "reynard/attention/cuda/simt_tile.cuh"
#include "reynard/attention/pruning_limits.h"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

#include <cmath>

namespace reynard::attention::cuda {

namespace {

using simt::load_value;

constexpr int kWarpsPerBlock = 8;
constexpr int kThreads = 32 * kWarpsPerBlock;

__device__ int64_t warp_task() {
  return int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / 32;
}
unsigned warp_blocks(int64_t tasks) {
  return static_cast<unsigned>((tasks + kWarpsPerBlock - 1) / kWarpsPerBlock);
}

// The larger of two values; NaN once there stays, so that a comparison with it keeps the keys.
template <class Value>
__device__ Value sticky_max(Value a, Value b) {
  return b > a || b != b ? b : a;
}

template <class Value>
__device__ Value warp_sum(Value value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0U, value, step);
  return value;
}

// log(exp(a) + exp(b)). What the smaller one adds is at most ln 2: f32 has it to 1e-7.
template <class Value>
__device__ Value log_add_exp(Value a, Value b) {
  const Value high = a > b ? a : b, low = a > b ? b : a;
  if (low == -INFINITY) return high;
  return high + __logf(1 + __expf(static_cast<float>(low - high)));  // NaN if one is
}

// Eight neighbouring 2-byte elements in one access, widened.
template <class Value>
struct Eight {
  float at[8];
  __device__ explicit Eight(const uint4& bits) {
    Value values[8];
    memcpy(values, &bits, sizeof bits);
#pragma unroll
    for (int i = 0; i < 8; ++i) at[i] = static_cast<float>(values[i]);
  }
};

// Whether rows of D elements are read by whole teams of lanes, a power of two of them, eight 2-byte
// elements each.
bool has_packs(const Operand& x, int D) {
  const int lanes = D / 8;
  return is_tileable(x, D) && lanes <= 32 && (lanes & (lanes - 1)) == 0;
}

// The norm of a block of rows from the largest squares that its warps saw.
__device__ void store_norm(float largest, float* norm) {
  __shared__ float of_warps[kWarpsPerBlock];
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const float other : of_warps) largest = sticky_max(largest, other);
  *norm = sqrtf(largest) * kNormMargin;
}

// One warp per row and one block of threads per block of rows.
__global__ void __launch_bounds__(kThreads)
    norms_kernel(const Operand rows, int T, int heads, int D, int size, float* norms) {
  const int num_blocks = div_up(T, size), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t task = blockIdx.x;
  const int n = task % num_blocks, head = task / num_blocks % heads;
  const int64_t b = task / num_blocks / heads;
  const int end = min(T, (n + 1) * size);
  float largest = 0;
#pragma unroll 4
  for (int t = n * size + warp; t < end; t += kWarpsPerBlock) {
    const int64_t base = b * rows.batch + int64_t{t} * rows.time + head * rows.head;
    float sum = 0;
    for (int d = lane; d < D; d += 32) {
      const float value = load_value(rows, base + d);
      sum = fmaf(value, value, sum);
    }
    largest = sticky_max(largest, warp_sum(sum));
  }
  store_norm(largest, norms + task);
}

// The same with a team of lanes per row, whose loads are 16 bytes each.
template <class Value>
__global__ void __launch_bounds__(kThreads)
    packed_norms_kernel(const Operand rows, int T, int heads, int lanes, int size, float* norms) {
  const int num_blocks = div_up(T, size), teams = kThreads / lanes;
  const int64_t task = blockIdx.x;
  const int n = task % num_blocks, head = task / num_blocks % heads;
  const int64_t b = task / num_blocks / heads;
  const int end = min(T, (n + 1) * size);
  const auto* column = static_cast<const Value*>(rows.data) + b * rows.batch + head * rows.head +
                       8 * (threadIdx.x % lanes);
  float largest = 0;
#pragma unroll 4
  for (int first = n * size; first < end; first += teams) {
    // The last teams repeat the last row.
    const int t = min(first + static_cast<int>(threadIdx.x) / lanes, end - 1);
    const Eight<Value> row(*reinterpret_cast<const uint4*>(column + int64_t{t} * rows.time));
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(row.at[i], row.at[i], sum);
    for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
    largest = sticky_max(largest, sum);
  }
  for (int step = lanes; step < 32; step *= 2) {
    largest = sticky_max(largest, __shfl_xor_sync(~0U, largest, step));
  }
  store_norm(largest, norms + task);
}

__global__ void __launch_bounds__(kThreads)
    masses_kernel(const double* sums, int rows, int Tk, double* masses) {
  tensor::wait_for_kernel_before();
  const int num_blocks = div_up(Tk, kKeyBlock), lane = threadIdx.x % 32;
  const int64_t task = warp_task();
  if (task >= int64_t{rows} * num_blocks) return;
  const double* c = sums + task / num_blocks * Tk;
  const int first = task % num_blocks * kKeyBlock, last = min(first + int{kKeyBlock}, Tk) - 1;
  double total = 0;
  for (int j = first + lane; j <= last; j += 32) total += exp(c[last] - c[j]);
  total = warp_sum(total);
  if (lane == 0) masses[task] = log(total) - c[last];
}

__device__ int first_of(const PruningTask& task, int64_t b, int query) {
  return task.first_key ? max(task.first_key[b * task.Tq + query], 0) : 0;
}

// block: the first one that the query block of that index keeps.
__device__ void raise_start(const PruningTask& task, int index, int block) {
  const int visible = task.first_key ? task.start[index] : 0;
  task.start[index] = max(visible, block * int{kKeyBlock});
}

// Last key that a query sees, or -1.
__device__ int last_key(const PruningTask& task, int query) {
  return task.causal ? task.Tk - task.Tq + query : task.Tk - 1;
}

// c_i - floor_i of a row; -inf if it is none or sees nothing at all, as its floor then says.
__device__ double top_of(const PruningTask& task, int64_t bh, int row, int end) {
  // Read whether or not they count, so that many are on their way together.
  const int64_t at = bh * task.Tq + min(row, end - 1);
  const double floor = task.floors[at], sum = task.query_sums[at];
  return row >= end || floor == -INFINITY ? -INFINITY : sum - floor;
}

// The largest of 128 rows.
__device__ double largest_top(const PruningTask& task, int64_t bh, int first, int end) {
  const int lane = threadIdx.x % 32;
  double top = -INFINITY;
#pragma unroll
  for (int row = lane; row < kQueryBlock; row += 32) {
    top = sticky_max(top, top_of(task, bh, first + row, end));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    top = sticky_max(top, __shfl_xor_sync(~0U, top, step));
  }
  return top;
}

// Running maxima of 128 rows in shared memory: tops[i] covers rows 0..i.
__device__ void running_tops(
    const PruningTask& task, int64_t bh, int first, int end, double* tops) {
  const int lane = threadIdx.x % 32;
  double carry = -INFINITY;
  for (int base = 0; base < kQueryBlock; base += 32) {
    double top = top_of(task, bh, first + base + lane, end);
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const double other = __shfl_up_sync(~0U, top, distance);
      if (lane >= distance) top = sticky_max(top, other);
    }
    top = sticky_max(top, carry);
    tops[base + lane] = top;
    carry = __shfl_sync(~0U, top, 31);
  }
  __syncwarp();
}

// Rows of [first, end) whose first key lies before `key`: they come first.
__device__ int rows_before(const PruningTask& task, int64_t b, int first, int end, int key) {
  int low = first, high = end;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (first_of(task, b, middle) < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - first;
}

// Log-sum-exp over the lanes until this one.
template <class Value>
__device__ Value log_sum_exp_until(Value mass) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const Value other = __shfl_up_sync(~0U, mass, distance);
    if (lane >= distance) mass = log_add_exp(other, mass);
  }
  return mass;
}

// Masses of the blocks of a warp, in f32 beside the first: unless one of them is too far from it.
struct Masses {
  double own, first;
  float beside;
  bool are_near;

  __device__ explicit Masses(double mass) : own(mass), first(__shfl_sync(~0U, mass, 0)) {
    constexpr double kFar = 1 << 15;  // where f32 rounds to 0.002, a fifth of kFloorMargin
    const bool is_far = mass != -INFINITY && !(fabs(mass - first) <= kFar);  // NaN is
    are_near = !__any_sync(~0U, is_far);
    beside = mass == -INFINITY ? -INFINITY : static_cast<float>(mass - first);
  }
  // Log-sum-exp over the lanes until this one.
  __device__ double until() const {
    return are_near ? first + log_sum_exp_until(beside) : log_sum_exp_until(own);
  }
  // Over all lanes.
  __device__ double all() const {
    if (!are_near) return __shfl_sync(~0U, log_sum_exp_until(own), 31);
    float top = beside;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0U, top, step));
    return first + (top + __logf(warp_sum(__expf(beside - top))));
  }
};

// One warp per query block: 32 key blocks at a time, from the first visible one on. The first block
// whose mass, with all before it, might exceed the tolerance of some row is kept. That mass and the
// rows that count only grow, so that 32 blocks are dropped at once if the last of them is.
// Six blocks of threads a processor: with five, those of 48 heads of 16,384 rows would not all run
// at once.
__global__ void __launch_bounds__(kThreads, 6) tight_kernel(const PruningTask task) {
  tensor::wait_for_kernel_before();
  __shared__ double shared_tops[kWarpsPerBlock][kQueryBlock];
  const int lane = threadIdx.x % 32;
  const int num_query_blocks = div_up(task.Tq, kQueryBlock);
  const int num_key_blocks = div_up(task.Tk, kKeyBlock);
  const auto index = static_cast<int>(warp_task());
  if (index >= task.B * task.H * num_query_blocks) return;
  const int bh = index / num_query_blocks, b = bh / task.H;
  const int first = index % num_query_blocks * int{kQueryBlock};
  const int end = min(first + int{kQueryBlock}, task.Tq);
  const double fading =
      task.query_sums[int64_t{bh} * task.Tq + task.Tq - 1] - task.key_sums[int64_t{bh} * task.Tk];
  if (keeps_all_keys(fading, task.log_tolerance)) {
    if (lane == 0) raise_start(task, index, 0);
    return;
  }
  double* tops = shared_tops[threadIdx.x / 32];
  double top_of_all = 0;
  if (task.first_key) {
    running_tops(task, bh, first, end, tops);
  } else {
    top_of_all = largest_top(task, bh, first, end);
  }

  const int64_t bg = int64_t{b} * task.G + bh % task.H / (task.H / task.G);
  const double factor = task.factors[index] * task.factor_scale;
  const int last_block = max(last_key(task, end - 1), 0) / kKeyBlock;
  int kept = last_block;
  const float* norms = task.key_norms ? task.key_norms + bg * num_key_blocks : nullptr;
  const double* own_masses = task.masses + int64_t{bh} * num_key_blocks;
  // Whether so much, of block n and all before it, is too little to be kept.
  const auto drops = [&](int n, double mass) {
    double top = top_of_all;
    if (task.first_key) {
      const int rows = rows_before(task, b, first, end, (n + 1) * kKeyBlock);
      top = rows > 0 ? tops[rows - 1] : -INFINITY;
    }
    return mass + top <= task.log_tolerance - kFloorMargin;  // NaN is kept
  };
  double carry = -INFINITY;  // log mass of the blocks before
  int base = first_of(task, b, first) / kKeyBlock;
  // Of the next 32 blocks, asked for early: reading takes as long as the rest.
  float norm = 1;
  double block_mass = 0;
  const auto read = [&](int n) {
    n = min(n, num_key_blocks - 1);
    if (norms) norm = norms[n];
    block_mass = own_masses[n];
  };
  read(base + lane);
  for (; base < last_block; base += 32) {
    const double mass_here = factor * norm + block_mass;
    const Masses masses(base + lane < last_block ? mass_here : -INFINITY);
    read(base + 32 + lane);
    const double all = log_add_exp(carry, masses.all());
    if (drops(min(base + 32, last_block) - 1, all)) {
      carry = all;
      continue;
    }
    const int n = base + lane;
    const double mass = log_add_exp(carry, masses.until());
    const unsigned kept_lanes = __ballot_sync(~0U, n >= last_block || !drops(n, mass));
    // None, if the two sums of the last block lie on either side by rounding.
    kept = min(base + (kept_lanes ? __ffs(static_cast<int>(kept_lanes)) - 1 : 32), last_block);
    break;
  }
  // A query block that sees nothing before last_block keeps from its own first key on.
  kept = max(kept, min(first_of(task, b, first) / int{kKeyBlock}, last_block));
  if (lane == 0) raise_start(task, index, kept);
}

// What the published rule compares decays with, of queries that see every key up to their own:
// log tolerance - 2 U - ln Tk, and the smallest bias that the nearest key of a row carries.
__device__ double threshold_of(const PruningTask& task, int64_t bh, int first, int end) {
  const double* sums = task.key_sums + bh * task.Tk + task.Tk - task.Tq;
  double nearest = 0;
  for (int i = first + static_cast<int>(threadIdx.x) % 32; i < end; i += 32) {
    const double bias = task.query_sums[bh * task.Tq + i] - sums[i];
    if (bias < nearest || bias != bias) nearest = bias;  // NaN stays and keeps every key
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const double other = __shfl_xor_sync(~0U, nearest, step);
    if (other < nearest || other != other) nearest = other;
  }
  const int64_t b = bh / task.H, h = bh % task.H;
  const double bound = task.logit_bounds[b * task.bound_stride + h];
  return task.log_tolerance - bound * 2 - log(static_cast<double>(max(task.Tk, 1))) + nearest;
}

// One warp per query block. The largest decay of a tile is that of the first row and the last
// column; it only grows with n, so that 32 key blocks at a time narrow the range.
__global__ void __launch_bounds__(kThreads) published_kernel(const PruningTask task) {
  tensor::wait_for_kernel_before();
  const int num_query_blocks = div_up(task.Tq, kQueryBlock);
  const int lane = threadIdx.x % 32;
  const auto index = static_cast<int>(warp_task());
  if (index >= task.B * task.H * num_query_blocks) return;
  const int bh = index / num_query_blocks, b = bh / task.H;
  const int first = index % num_query_blocks * int{kQueryBlock};
  const int end = min(first + int{kQueryBlock}, task.Tq);
  const double* sums = task.key_sums + int64_t{bh} * task.Tk;
  const double c = task.query_sums[int64_t{bh} * task.Tq + first];
  const double threshold =
      task.thresholds ? task.thresholds[index] : threshold_of(task, bh, first, end);
  const int last_block = max(last_key(task, end - 1), 0) / kKeyBlock;
  int low = min(first_of(task, b, first) / int{kKeyBlock}, last_block), high = last_block;
  while (low < high) {  // blocks before low are skipped, block `high` is kept
    const int step = div_up(high - low, 32);
    const int n = low + lane * step;
    const bool skipped = n < high && c - sums[(n + 1) * kKeyBlock - 1] < threshold;
    const int count = __popc(__ballot_sync(~0U, skipped));
    if (count == 0) break;
    const int next = low + (count - 1) * step + 1;
    high = min(high, low + count * step);
    low = next;
  }
  if (lane == 0) raise_start(task, index, low);
}

__global__ void __launch_bounds__(kThreads)
    products_kernel(const RowArray douts, const Operand out, double* products) {
  const int lane = threadIdx.x % 32;
  const int64_t task = warp_task(), T = douts.T, H = douts.heads;
  const Operand& dout = douts.rows;
  if (task >= douts.B * T * H) return;
  const int64_t b = task / (T * H), t = task / H % T, h = task % H;
  const int64_t left = b * dout.batch + t * dout.time + h * dout.head;
  const int64_t right = b * out.batch + t * out.time + h * out.head;
  double sum = 0;
  for (int d = lane; d < douts.D; d += 32) {
    sum += static_cast<double>(load_value(dout, left + d)) * load_value(out, right + d);
  }
  sum = warp_sum(sum);
  if (lane == 0) products[(b * H + h) * T + t] = sum;
}

// The same with a team of lanes for a few rows, eight elements each. The products of 2-byte
// elements are exact in f32.
constexpr int kRowsOfTeam = 2;
template <class Value>
__global__ void __launch_bounds__(kThreads)
    packed_products_kernel(const RowArray douts, const Operand out, double* products) {
  tensor::wait_for_kernel_before();
  // 32 bits: divisions of 64 would take longer than the rows' way from memory.
  const uint32_t T = douts.T, H = douts.heads, rows = douts.B * T * H, lanes = douts.D / 8;
  const uint32_t thread = threadIdx.x, last = rows - 1, d = 8 * (thread % lanes);
  const uint32_t teams = kThreads / lanes, first = blockIdx.x * kRowsOfTeam * teams;
  uint4 left[kRowsOfTeam], right[kRowsOfTeam];  // all on their way together
  int64_t places[kRowsOfTeam];
#pragma unroll
  for (int row = 0; row < kRowsOfTeam; ++row) {
    const uint32_t task = min(first + row * teams + thread / lanes, last);
    const uint32_t h = task % H, t = task / H % T;
    const int64_t b = task / H / T;
    const auto at = [&](const Operand& x) {
      const auto* values = static_cast<const Value*>(x.data);
      return *reinterpret_cast<const uint4*>(values + b * x.batch + t * x.time + h * x.head + d);
    };
    left[row] = at(douts.rows), right[row] = at(out);
    places[row] = (b * H + h) * T + t;
  }
#pragma unroll
  for (int row = 0; row < kRowsOfTeam; ++row) {
    const Eight<Value> a(left[row]), b(right[row]);
    double sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += static_cast<double>(a.at[i] * b.at[i]);
    for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
    if (d == 0) products[places[row]] = sum;
  }
}

}  // namespace

void block_norms(const RowArray& array, int size, float* norms, cudaStream_t stream) {
  const auto& [rows, B, T, heads, D] = array;
  const unsigned blocks = B * heads * div_up(T, size);
  if (blocks == 0) return;
  if (!has_packs(rows, D)) {
    norms_kernel<<<blocks, kThreads, 0, stream>>>(rows, T, heads, D, size, norms);
  } else {
    const auto kernel = rows.element == Element::kBFloat16 ? &packed_norms_kernel<__nv_bfloat16>
                                                           : &packed_norms_kernel<__half>;
    kernel<<<blocks, kThreads, 0, stream>>>(rows, T, heads, D / 8, size, norms);
  }
  REYNARD_CHECK_LAUNCH();
}

void block_masses(const double* sums, int rows, int Tk, double* masses, cudaStream_t stream) {
  const unsigned blocks = warp_blocks(int64_t{rows} * div_up(Tk, kKeyBlock));
  if (blocks == 0) return;
  tensor::launch_early(masses_kernel, blocks, kThreads, 0, stream, sums, rows, Tk, masses);
  REYNARD_CHECK_LAUNCH();
}

void raise_starts_tight(const PruningTask& task, cudaStream_t stream) {
  const int64_t tasks = int64_t{task.B} * task.H * div_up(task.Tq, kQueryBlock);
  tensor::launch_early(tight_kernel, warp_blocks(tasks), kThreads, 0, stream, task);
  REYNARD_CHECK_LAUNCH();
}

void raise_starts_published(const PruningTask& task, cudaStream_t stream) {
  const int64_t tasks = int64_t{task.B} * task.H * div_up(task.Tq, kQueryBlock);
  tensor::launch_early(published_kernel, warp_blocks(tasks), kThreads, 0, stream, task);
  REYNARD_CHECK_LAUNCH();
}

void row_products(const RowArray& dout, const Operand& out, double* products, cudaStream_t stream) {
  const int64_t rows = int64_t{dout.B} * dout.T * dout.heads;
  if (!has_packs(dout.rows, dout.D) || !has_packs(out, dout.D) ||
      dout.rows.element != out.element || rows > UINT32_MAX) {
    products_kernel<<<warp_blocks(rows), kThreads, 0, stream>>>(dout, out, products);
  } else {
    const int64_t of_block = int64_t{kThreads} / (dout.D / 8) * kRowsOfTeam;
    const auto blocks = static_cast<unsigned>((rows + of_block - 1) / of_block);
    const auto kernel = out.element == Element::kBFloat16 ? &packed_products_kernel<__nv_bfloat16>
                                                          : &packed_products_kernel<__half>;
    tensor::launch_early(kernel, blocks, kThreads, 0, stream, dout, out, products);
  }
  REYNARD_CHECK_LAUNCH();
}

}  // namespace reynard::attention::cuda

// The token shift: one team of lanes per head and kTokens tokens in a row, whose rows are read
// once for their own token and the next.

#include "reynard/ops/cuda/packs.cuh"
#include "reynard/ops/cuda/row_launch.h"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

namespace reynard::ops::cuda {

namespace {

constexpr int kTokens = 2;
constexpr int kBlocksPerProcessor = 4;  // at least: what matters is how many loads are under way

// The tokens of a team and the one after: which of them begin a sequence.
struct Begins {
  int64_t sequence[kTokens + 1];  // that begins here, or -1

  __device__ void find(const ShiftForward& p, int64_t first_token) {
    int64_t low = 0, high = p.num_starts;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (p.starts[middle] < first_token) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
#pragma unroll
    for (int r = 0; r <= kTokens; ++r) {
      const int64_t found = low;
      while (low < p.num_starts && p.starts[low] == first_token + r) ++low;
      sequence[r] = low > found ? found : -1;
    }
  }
};

// What a team reads and writes: rows `width` apart from token to token, of which those outside of
// [0, rows) stand for the nearest inside, so that no branch parts the loads.
struct Run {
  int64_t first, head, rows, token_width, column;

  __device__ Run(const ShiftForward& p, Teams teams, int64_t num_rows)
      : rows(num_rows), token_width(p.heads * p.width) {
    const int64_t team =
        static_cast<int64_t>(blockIdx.x) * teams.per_block() + threadIdx.x / teams.lanes;
    const Divided of_heads = divided(team, p.heads);
    first = of_heads.quotient * kTokens, head = of_heads.rest;
    column = head * p.width;
  }
  __device__ bool has(int r) const { return first + r < rows; }
  __device__ int64_t token(int r) const { return max(min(first + r, rows - 1), int64_t{0}); }
  __device__ int64_t offset(int r) const { return token(r) * token_width + column; }
};

// The row before token `first + r`, of which `neighbour` is what stands before it in memory.
template <class T, int V>
__device__ Pack<V> earlier(const ShiftForward& p,
                           const Run& run,
                           const Begins& begins,
                           int r,
                           int64_t i,
                           const Elements<T, V>& neighbour) {
  Pack<V> pack{};
  if (begins.sequence[r] < 0) {
    if (run.first + r == 0) return pack;
#pragma unroll
    for (int v = 0; v < V; ++v) pack.at[v] = widened(neighbour.at[v]);
  } else if (p.previous) {
    const auto* rows = static_cast<const T*>(p.previous);
    pack = load<V>(rows + begins.sequence[r] * run.token_width + run.column + i);
  }
  return pack;
}

template <class T>
__device__ float shift_weight(const ShiftForward& p, const Run& run, int r) {
  const int64_t index = run.token(r) * p.heads + run.head;
  return sigmoid(widened(static_cast<const T*>(p.logit)[index]));
}

template <class T, int V>
__global__ void __launch_bounds__(Teams::kThreads, kBlocksPerProcessor)
    shift_forward_kernel(ShiftForward p, Teams teams, int64_t rows) {
  tensor::wait_for_kernel_before();
  tensor::let_next_kernel_start();
  const Run run(p, teams, rows);
  if (!run.has(0)) return;
  Begins begins;
  const int64_t step = teams.lanes * V;
  for (int64_t i = threadIdx.x % teams.lanes * V; i < p.width; i += step) {
    Elements<T, V> x[kTokens + 1];  // from the token before on
#pragma unroll
    for (int r = 0; r <= kTokens; ++r) {
      x[r] = load_elements<V>(static_cast<const T*>(p.x) + run.offset(r - 1) + i);
    }
    if (i < step) begins.find(p, run.first);  // while the first loads are under way
#pragma unroll
    for (int r = 0; r < kTokens; ++r) {
      if (!run.has(r)) break;
      const float a = shift_weight<T>(p, run, r);
      const Pack<V> before = earlier<T, V>(p, run, begins, r, i, x[r]);
      Pack<V> y;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        y.at[v] = (1.0F - a) * widened(x[r + 1].at[v]) + a * before.at[v];
      }
      store(static_cast<T*>(p.y) + run.offset(r) + i, y);
    }
  }
}

// dx_t = (1 - a_t) dy_t + a_{t+1} dy_{t+1} where t + 1 goes on with the sequence.
template <class T, int V>
__global__ void __launch_bounds__(Teams::kThreads, kBlocksPerProcessor)
    shift_backward_kernel(ShiftBackward p, Teams teams, int64_t rows) {
  tensor::wait_for_kernel_before();
  const ShiftForward& f = p.forward;
  const Run run(f, teams, rows);
  Begins begins;
  float a[kTokens + 1], products[kTokens] = {};
  const int64_t step = teams.lanes * V;
  for (int64_t i = threadIdx.x % teams.lanes * V; i < f.width && run.has(0); i += step) {
    Elements<T, V> x[kTokens + 1], g[kTokens + 1];  // x from the token before on
#pragma unroll
    for (int r = 0; r <= kTokens; ++r) {
      x[r] = load_elements<V>(static_cast<const T*>(f.x) + run.offset(r - 1) + i);
      g[r] = load_elements<V>(static_cast<const T*>(p.dy) + run.offset(r) + i);
    }
    if (i < step) {  // while the first loads are under way
      begins.find(f, run.first);
#pragma unroll
      for (int r = 0; r <= kTokens; ++r) a[r] = shift_weight<T>(f, run, r);
    }
#pragma unroll
    for (int r = 0; r < kTokens; ++r) {
      if (!run.has(r)) break;
      const Pack<V> before = earlier<T, V>(f, run, begins, r, i, x[r]);
      const bool goes_on = run.has(r + 1) && begins.sequence[r + 1] < 0;
      const float a_next = goes_on ? a[r + 1] : 0.0F;
      Pack<V> dx;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float own = widened(g[r].at[v]), next = goes_on ? widened(g[r + 1].at[v]) : 0.0F;
        products[r] += own * (before.at[v] - widened(x[r + 1].at[v]));
        dx.at[v] = (1.0F - a[r]) * own + a_next * next;
      }
      store(static_cast<T*>(p.dx) + run.offset(r) + i, dx);
    }
  }
#pragma unroll
  for (int r = 0; r < kTokens; ++r) {
    const float sum = team_sum(products[r], teams.lanes);
    if (threadIdx.x % teams.lanes != 0 || !run.has(r)) continue;
    const int64_t index = run.token(r) * f.heads + run.head;
    narrow(sum * a[r] * (1.0F - a[r]), static_cast<T*>(p.d_logit)[index]);
  }
}

unsigned shift_blocks(const ShiftForward& p, Teams teams, int64_t rows) {
  return blocks_for((rows + kTokens - 1) / kTokens * p.heads, teams.per_block());
}

}  // namespace

void shift_forward(const ShiftForward& p, Element element, int64_t rows, cudaStream_t stream) {
  const Teams teams = teams_for(p.width, {p.x, p.previous, p.y});
  with_element(element, [&](auto zero) {
    with_width(teams.vector, [&](auto width) {
      tensor::launch_early(shift_forward_kernel<decltype(zero), width()>,
                           shift_blocks(p, teams, rows),
                           Teams::kThreads,
                           0,
                           stream,
                           p,
                           teams,
                           rows);
    });
  });
  REYNARD_CHECK_LAUNCH();
}

void shift_backward(const ShiftBackward& p, Element element, int64_t rows, cudaStream_t stream) {
  const ShiftForward& f = p.forward;
  const Teams teams = teams_for(f.width, {f.x, f.previous, p.dy, p.dx});
  with_element(element, [&](auto zero) {
    with_width(teams.vector, [&](auto width) {
      tensor::launch_early(shift_backward_kernel<decltype(zero), width()>,
                           shift_blocks(f, teams, rows),
                           Teams::kThreads,
                           0,
                           stream,
                           p,
                           teams,
                           rows);
    });
  });
  REYNARD_CHECK_LAUNCH();
}

}  // namespace reynard::ops::cuda

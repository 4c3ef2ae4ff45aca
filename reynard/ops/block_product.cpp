#include "reynard/ops/block_product.h"

#include "reynard/ops/block_product_kernels.h"
#include "reynard/ops/cpu/row_path.h"
#include "reynard/tensor/div_up.h"
#include "reynard/tensor/parallel.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <numeric>
#include <vector>

namespace reynard::ops {

namespace {

using tensor::div_up;

constexpr int64_t kDepthStep = 32;
constexpr int64_t kSlabRows = 64;   // of a right factor that are packed together
constexpr int64_t kTaskPanels = 8;  // with kLeftBlockRows rows of f32: a quarter of a cache of 1 MB
constexpr int64_t kPackingTaskPanels = 12;  // where each task packs its rows: for less of that
// Tasks are made smaller until there are this many for each thread, of all sums together.
constexpr int64_t kTasksPerThread = 2;
constexpr int64_t kLeastTaskRows = 64;
constexpr int64_t kLeastRows = 16;  // of either factor
constexpr int64_t kLeastProducts = int64_t{1} << 20;

Factor factor_of(const at::Tensor& x) {
  return {static_cast<const uint16_t*>(x.const_data_ptr()), x.stride(0), x.stride(1)};
}

// With one of the strides 1.
at::Tensor readable(const at::Tensor& x) {
  return x.stride(0) == 1 || x.stride(1) == 1 ? x : x.contiguous();
}

// Blocks of the depth depend on its length and the kernels alone: they decide the bits.
struct DepthCut {
  int64_t K, depth, num_blocks;

  DepthCut(int64_t k, int64_t most) : K(k) {
    depth = div_up(div_up(K, div_up(K, most)), kDepthStep) * kDepthStep;
    num_blocks = div_up(K, depth);
  }
  int64_t count(int64_t block) const { return std::min(depth, K - block * depth); }
};

// A right factor (K, N) and its place among the packed ones: panels by (block of depth, panel).
struct RightFactor {
  at::Tensor matrix;
  DepthCut cut;
  int64_t num_panels;
  at::Tensor asked;    // before it was made readable
  int64_t offset = 0;  // values of the factors before it

  RightFactor(const at::Tensor& b, int64_t block_depth)
      : matrix(readable(b)),
        cut(b.size(0), block_depth),
        num_panels(div_up(b.size(1), kPanelColumns)),
        asked(b) {}

  bool is(const at::Tensor& b) const {
    return asked.const_data_ptr() == b.const_data_ptr() && asked.sizes() == b.sizes() &&
           asked.strides() == b.strides();
  }
  int64_t panel_values() const { return cut.depth * kPanelColumns; }
  int64_t block_values() const { return num_panels * panel_values(); }
  int64_t values() const { return cut.num_blocks * block_values(); }

  // Where rows are contiguous a task packs few of them, but whole; else one panel.
  bool has_whole_rows() const { return matrix.stride(1) == 1; }
  int64_t slabs() const { return div_up(cut.depth, kSlabRows); }
  int64_t num_tasks() const { return cut.num_blocks * (has_whole_rows() ? slabs() : num_panels); }
  void pack(const BlockProductKernels& kernels, int64_t task, uint16_t* packed) const {
    if (!has_whole_rows()) {
      return pack_part(kernels, task / num_panels, 0, cut.depth, task % num_panels, packed);
    }
    const int64_t first = task % slabs() * kSlabRows;
    for (int64_t panel = 0; panel < num_panels; ++panel) {
      const int64_t depth = std::min(kSlabRows, cut.depth - first);
      pack_part(kernels, task / slabs(), first, depth, panel, packed);
    }
  }
  // Rows [first, first + depth) of one panel.
  void pack_part(const BlockProductKernels& kernels,
                 int64_t block,
                 int64_t first,
                 int64_t depth,
                 int64_t panel,
                 uint16_t* packed) const {
    const int64_t column = panel * kPanelColumns;
    const FactorPart part = {.of = factor_of(matrix),
                             .row = block * cut.depth + first,
                             .rows = std::clamp<int64_t>(cut.count(block) - first, 0, depth),
                             .column = column,
                             .columns = std::min(kPanelColumns, matrix.size(1) - column)};
    kernels.pack_panel(
        part,
        depth,
        packed + offset + block * block_values() + panel * panel_values() + first * kPanelColumns);
  }
};

// One product of a sum.
struct Term {
  at::Tensor left;  // readable
  const RightFactor* right;

  Factor a() const { return factor_of(left); }
  // Whether rows of a are read where they lie; else they are packed.
  bool is_read_in_place(const BlockProductKernels& kernels) const {
    return left.stride(1) == 1 && right->cut.K % kernels.in_place_depth == 0;
  }
};

// A sum and how its rows and columns are cut.
struct Sum {
  std::vector<Term> terms;
  at::Tensor c;  // (M, N)
  bool add;
  int64_t work, rows = 0, panels = 0;  // rows and panels of a task

  int64_t M() const { return c.size(0); }
  int64_t N() const { return c.size(1); }
  int64_t num_panels() const { return div_up(N(), kPanelColumns); }
  int64_t row_blocks() const { return div_up(M(), rows); }
  int64_t num_tasks() const { return row_blocks() * div_up(num_panels(), panels); }
  bool is_rounded() const { return c.scalar_type() == at::kBFloat16; }
  bool packs_rows(const BlockProductKernels& kernels) const {
    return !std::ranges::all_of(terms,
                                [&](const Term& term) { return term.is_read_in_place(kernels); });
  }
  int64_t sums_size() const { return is_rounded() ? rows * panels * kPanelColumns : 0; }
  int64_t packed_size(const BlockProductKernels& kernels) const {
    int64_t depth = 0;
    for (const Term& term : terms) {
      if (!term.is_read_in_place(kernels)) depth = std::max(depth, term.right->cut.depth);
    }
    return kernels.packed_rows_values(rows, depth);
  }

  // Into at least `wanted` tasks where they do not become too small.
  void cut(const BlockProductKernels& kernels, int64_t wanted) {
    rows = even_part(M(), kLeftBlockRows, kernels.rows_at_once);
    panels = even_part(num_panels(), packs_rows(kernels) ? kPackingTaskPanels : kTaskPanels, 1);
    while (num_tasks() < wanted && (rows > kLeastTaskRows || panels > 1)) {
      if (rows > kLeastTaskRows) {
        rows = even_part(M(), std::max(kLeastTaskRows, rows / 2), kernels.rows_at_once);
      } else {
        panels = even_part(num_panels(), panels / 2, 1);
      }
    }
  }
  // `size` in equal parts of at most `most`, a multiple of `step`.
  static int64_t even_part(int64_t size, int64_t most, int64_t step) {
    const int64_t parts = div_up(size, most);
    return div_up(div_up(size, parts), step) * step;
  }
};

// What a thread may write.
struct Scratch {
  float* sums;
  uint16_t* packed;
};

// Rows and columns of one task, for all of the depth.
void form_block(const BlockProductKernels& kernels,
                const Sum& sum,
                int64_t task,
                const uint16_t* panels,
                const Scratch& scratch) {
  const int64_t row = task % sum.row_blocks() * sum.rows;
  const int64_t first_panel = task / sum.row_blocks() * sum.panels;
  const int64_t column = first_panel * kPanelColumns;
  const int64_t to = row * sum.c.stride(0) + column;
  BlockProduct block{.a = {},
                     .rows = std::min(sum.rows, sum.M() - row),
                     .columns = std::min(sum.panels * kPanelColumns, sum.N() - column)};
  block.c = sum.is_rounded() ? scratch.sums : sum.c.mutable_data_ptr<float>() + to;
  block.c_stride = sum.is_rounded() ? sum.panels * kPanelColumns : sum.c.stride(0);
  block.add = sum.add && !sum.is_rounded();
  for (const Term& term : sum.terms) {
    const RightFactor& right = *term.right;
    const DepthCut& cut = right.cut;
    const Factor a = term.a();
    block.b_stride = right.panel_values();
    for (int64_t n = 0; n < cut.num_blocks; ++n) {
      const int64_t k = n * cut.depth, count = cut.count(n);
      if (term.is_read_in_place(kernels)) {
        block.a = {a.data + row * a.row + k, kLeftGroupRows * a.row, a.row, 2};
        block.depth = count;
      } else {
        block.a = kernels.pack_rows({a, row, block.rows, k, count}, cut.depth, scratch.packed);
        block.depth = cut.depth;
      }
      block.b = panels + right.offset + n * right.block_values() + first_panel * block.b_stride;
      if (sum.is_rounded() && &term == &sum.terms.back() && n + 1 == cut.num_blocks) {
        block.rounded = static_cast<uint16_t*>(sum.c.mutable_data_ptr()) + to;
        block.rounded_stride = sum.c.stride(0);
        block.add_rounded = sum.add;
      }
      kernels.multiply(block);
      block.add = true;
    }
  }
}

// Calls body(i, task of i) for the tasks of all i in order; counts: how many each has.
template <class Body>
void for_tasks_of_all(const std::vector<int64_t>& counts, const Body& body) {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  tensor::run_tasks(total, [&](int64_t task, int64_t worker) {
    size_t i = 0;
    for (; task >= counts[i]; ++i) task -= counts[i];
    body(i, task, worker);
  });
}

at::Tensor packed_panels(const BlockProductKernels& kernels, const std::deque<RightFactor>& all) {
  const at::Tensor packed = at::empty({all.back().offset + all.back().values()}, at::kBFloat16);
  auto* const values = static_cast<uint16_t*>(packed.mutable_data_ptr());
  std::vector<int64_t> counts;
  for (const RightFactor& factor : all) counts.push_back(factor.num_tasks());
  for_tasks_of_all(counts, [&](size_t i, int64_t task, int64_t /*worker*/) {
    all[i].pack(kernels, task, values);
  });
  return packed;
}

// The factor among `all`, to which it is added where it is not there.
const RightFactor& found(std::deque<RightFactor>& all, const at::Tensor& b, int64_t block_depth) {
  for (const RightFactor& factor : all) {
    if (factor.is(b)) return factor;
  }
  const int64_t offset = all.empty() ? 0 : all.back().offset + all.back().values();
  all.emplace_back(b, block_depth).offset = offset;
  return all.back();
}

}  // namespace

bool has_block_product(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cpu() && b.is_cpu() && a.scalar_type() == at::kBFloat16 &&
         b.scalar_type() == at::kBFloat16 && cpu::block_product_kernels() != nullptr &&
         std::min(a.size(0), b.size(1)) >= kLeastRows && a.numel() * b.size(1) >= kLeastProducts;
}

void block_products(std::span<const BlockSum> wanted) {
  if (wanted.empty()) return;  // as on machines without these kernels
  const BlockProductKernels& kernels = *cpu::block_product_kernels();
  std::deque<RightFactor> factors;  // terms point to them
  std::vector<Sum> sums;
  int64_t all_work = 0;
  for (const BlockSum& one : wanted) {
    Sum& sum = sums.emplace_back(Sum{.terms = {}, .c = one.c, .add = one.add, .work = 0});
    for (const auto& [a, b] : one.terms) {
      TORCH_INTERNAL_ASSERT(has_block_product(a, b) && a.size(1) == b.size(0) && one.c.is_cpu() &&
                            one.c.size(0) == a.size(0) && one.c.size(1) == b.size(1) &&
                            one.c.stride(1) == 1);
      sum.terms.push_back({readable(a), &found(factors, b, kernels.block_depth)});
      sum.work += a.numel() * b.size(1);
    }
    all_work += sum.work;
  }
  const at::Tensor panels = packed_panels(kernels, factors);
  const int64_t num_tasks = kTasksPerThread * at::get_num_threads();
  for (Sum& sum : sums) sum.cut(kernels, div_up(num_tasks * sum.work, all_work));
  // The largest tasks first: threads wait for each other at the end.
  std::ranges::stable_sort(
      sums, std::greater(), [](const Sum& sum) { return sum.work / sum.num_tasks(); });
  std::vector<int64_t> counts;
  int64_t sums_size = 0, packed_size = 0;
  for (const Sum& sum : sums) {
    counts.push_back(sum.num_tasks());
    sums_size = std::max(sums_size, sum.sums_size());
    packed_size = std::max(packed_size, sum.packed_size(kernels));
  }
  const int64_t num_workers =
      tensor::num_workers(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const at::Tensor scratch = at::empty({num_workers, sums_size}, at::kFloat);
  const at::Tensor packed = at::empty({num_workers, packed_size}, at::kBFloat16);
  for_tasks_of_all(counts, [&](size_t i, int64_t task, int64_t worker) {
    form_block(
        kernels,
        sums[i],
        task,
        static_cast<const uint16_t*>(panels.const_data_ptr()),
        {.sums = scratch.mutable_data_ptr<float>() + worker * sums_size,
         .packed = static_cast<uint16_t*>(packed.mutable_data_ptr()) + worker * packed_size});
  });
}

}  // namespace reynard::ops

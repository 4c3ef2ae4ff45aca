#include "reynard/ops/block_product.h"

#include "reynard/ops/block_product_kernels.h"
#include "reynard/ops/cpu/row_path.h"
#include "reynard/tensor/parallel.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace reynard::ops {

namespace {

// 64 columns by this many bf16 values are two thirds of a first-level cache of 48 KB.
constexpr int64_t kBlockDepth = 256;
constexpr int64_t kDepthStep = 32;
constexpr int64_t kSlabRows = 64;   // of a right factor that are packed together
constexpr int64_t kTaskPanels = 8;  // with kLeftBlockRows rows of f32: a quarter of a cache of 1 MB
constexpr int64_t kPackingTaskPanels = 12;  // where each task packs its rows: for less of that
// Tasks are made smaller until there are this many for each thread.
constexpr int64_t kTasksPerThread = 2;
constexpr int64_t kLeastTaskRows = 64;
constexpr int64_t kLeastRows = 16;  // of either factor
constexpr int64_t kLeastProducts = int64_t{1} << 20;

int64_t div_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

Factor factor_of(const at::Tensor& x) {
  return {static_cast<const uint16_t*>(x.const_data_ptr()), x.stride(0), x.stride(1)};
}

// With one of the strides 1.
at::Tensor readable(const at::Tensor& x) {
  return x.stride(0) == 1 || x.stride(1) == 1 ? x : x.contiguous();
}

// Whether the product reads pairs of a where they lie; else they are packed.
bool is_read_in_place(const Factor& a, int64_t depth) {
  return a.column == 1 && depth % 2 == 0;
}

// How a product is cut. Blocks of the depth depend on the shapes alone: they decide the bits.
struct Cut {
  int64_t M, N, K, depth, num_blocks, num_panels, rows, panels;

  // most_panels: of a task
  Cut(int64_t m, int64_t n, int64_t k, int64_t most_panels) : M(m), N(n), K(k) {
    num_blocks = std::max<int64_t>(1, div_up(K, kBlockDepth));
    depth = div_up(div_up(K, num_blocks), kDepthStep) * kDepthStep;
    num_blocks = div_up(K, depth);
    num_panels = div_up(N, kPanelColumns);
    rows = even_part(M, kLeftBlockRows, 4);
    panels = even_part(num_panels, most_panels, 1);
    const int64_t wanted = kTasksPerThread * at::get_num_threads();
    while (num_tasks() < wanted && (rows > kLeastTaskRows || panels > 1)) {
      if (rows > kLeastTaskRows) {
        rows = even_part(M, std::max(kLeastTaskRows, rows / 2), 4);
      } else {
        panels = even_part(num_panels, panels / 2, 1);
      }
    }
  }

  // `size` in equal parts of at most `most`, a multiple of `step`.
  static int64_t even_part(int64_t size, int64_t most, int64_t step) {
    const int64_t parts = div_up(size, most);
    return div_up(div_up(size, parts), step) * step;
  }
  int64_t row_blocks() const { return div_up(M, rows); }
  int64_t column_blocks() const { return div_up(num_panels, panels); }
  int64_t num_tasks() const { return row_blocks() * column_blocks(); }
  int64_t panel_values() const { return depth * kPanelColumns; }
};

// b as panels: (block of depth, panel).
at::Tensor packed_panels(const BlockProductKernels& kernels, const Factor& b, const Cut& cut) {
  const at::Tensor packed =
      at::empty({cut.num_blocks * cut.num_panels * cut.panel_values()}, at::kBFloat16);
  auto* const values = static_cast<uint16_t*>(packed.mutable_data_ptr());
  // Where rows are contiguous a task reads few of them, but whole.
  const int64_t slab = b.column == 1 ? kSlabRows : cut.depth;
  const int64_t slabs = div_up(cut.depth, slab), width = b.column == 1 ? cut.num_panels : 1;
  const int64_t tasks_across = div_up(cut.num_panels, width);
  tensor::run_tasks(cut.num_blocks * slabs * tasks_across, [&](int64_t task, int64_t /*worker*/) {
    const int64_t block = task / tasks_across / slabs, first = task / tasks_across % slabs * slab;
    const int64_t row = block * cut.depth + first, depth = std::min(slab, cut.depth - first);
    for (int64_t i = 0; i < width; ++i) {
      const int64_t panel = task % tasks_across * width + i, column = panel * kPanelColumns;
      kernels.pack_panel(
          b,
          row,
          std::clamp<int64_t>(cut.K - row, 0, depth),
          column,
          std::min(kPanelColumns, cut.N - column),
          depth,
          values + (block * cut.num_panels + panel) * cut.panel_values() + first * kPanelColumns);
    }
  });
  return packed;
}

// What all tasks of a product read, and where it goes.
struct Product {
  const BlockProductKernels& kernels;
  const Cut& cut;
  Factor a;
  const uint16_t* panels;
  const at::Tensor& c;
  bool add;

  bool reads_in_place() const { return is_read_in_place(a, cut.K); }
  bool is_rounded() const { return c.scalar_type() == at::kBFloat16; }
};

// Rows and columns of one task, for all of the depth.
void form_block(
    const Product& p, int64_t row_block, int64_t column_block, float* sums, uint16_t* packed) {
  const Cut& cut = p.cut;
  const int64_t row = row_block * cut.rows, first_panel = column_block * cut.panels;
  const int64_t column = first_panel * kPanelColumns;
  BlockProduct block{.a = {},
                     .b_stride = cut.panel_values(),
                     .rows = std::min(cut.rows, cut.M - row),
                     .columns = std::min(cut.panels * kPanelColumns, cut.N - column)};
  const int64_t to = row * p.c.stride(0) + column;
  block.c = p.is_rounded() ? sums : p.c.mutable_data_ptr<float>() + to;
  block.c_stride = p.is_rounded() ? cut.panels * kPanelColumns : p.c.stride(0);
  for (int64_t n = 0; n < cut.num_blocks; ++n) {
    const int64_t k = n * cut.depth, count = std::min(cut.depth, cut.K - k);
    if (p.reads_in_place()) {
      block.a = {p.a.data + row * p.a.row + k, kLeftGroupRows * p.a.row, p.a.row, 2};
      block.depth = count;
    } else {
      p.kernels.pack_rows(p.a, row, block.rows, k, count, cut.depth, packed);
      block.a = {packed, left_group_stride(cut.depth), 2, 2 * kLeftGroupRows};
      block.depth = cut.depth;
    }
    block.b = p.panels + (n * cut.num_panels + first_panel) * cut.panel_values();
    block.add = n > 0 || (p.add && !p.is_rounded());
    if (p.is_rounded() && n + 1 == cut.num_blocks) {
      block.rounded = static_cast<uint16_t*>(p.c.mutable_data_ptr()) + to;
      block.rounded_stride = p.c.stride(0);
      block.add_rounded = p.add;
    }
    p.kernels.multiply(block);
  }
}

}  // namespace

bool has_block_product(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cpu() && b.is_cpu() && a.scalar_type() == at::kBFloat16 &&
         b.scalar_type() == at::kBFloat16 && cpu::block_product_kernels() != nullptr &&
         std::min(a.size(0), b.size(1)) >= kLeastRows && a.numel() * b.size(1) >= kLeastProducts;
}

void block_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, bool add) {
  TORCH_INTERNAL_ASSERT(has_block_product(a, b) && a.size(1) == b.size(0) && c.is_cpu() &&
                        c.size(0) == a.size(0) && c.size(1) == b.size(1) && c.stride(1) == 1);
  const BlockProductKernels& kernels = *cpu::block_product_kernels();
  const at::Tensor left = readable(a), right = readable(b);
  const bool in_place = is_read_in_place(factor_of(left), a.size(1));
  const Cut cut(a.size(0), b.size(1), a.size(1), in_place ? kTaskPanels : kPackingTaskPanels);
  const at::Tensor panels = packed_panels(kernels, factor_of(right), cut);
  const Product product{.kernels = kernels,
                        .cut = cut,
                        .a = factor_of(left),
                        .panels = static_cast<const uint16_t*>(panels.const_data_ptr()),
                        .c = c,
                        .add = add};
  const int64_t num_workers = tensor::num_workers(cut.num_tasks());
  const int64_t sums_size = product.is_rounded() ? cut.rows * cut.panels * kPanelColumns : 0;
  const int64_t packed_size = product.reads_in_place()
                                  ? 0
                                  : div_up(cut.rows, kDepthStep) * kDepthStep / kLeftGroupRows *
                                        left_group_stride(cut.depth);
  const at::Tensor sums = at::empty({num_workers, sums_size}, at::kFloat);
  const at::Tensor packed = at::empty({num_workers, packed_size}, at::kBFloat16);
  tensor::run_tasks(cut.num_tasks(), [&](int64_t task, int64_t worker) {
    form_block(product,
               task % cut.row_blocks(),
               task / cut.row_blocks(),
               sums.mutable_data_ptr<float>() + worker * sums_size,
               static_cast<uint16_t*>(packed.mutable_data_ptr()) + worker * packed_size);
  });
}

}  // namespace reynard::ops

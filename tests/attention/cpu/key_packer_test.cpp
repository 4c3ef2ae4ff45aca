// The blocks of keys of a forward pass on every path of this machine: packed when they are asked
// for, as a plain loop lays them out, once, and no others.

#include "reynard/attention/cpu/key_packer.h"

#include "reynard/attention/cpu/path.h"
#include "tests/support/forced_path.h"

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

namespace reynard::attention::cpu {
namespace {

constexpr int64_t kPairs = 4, kHeads = 2;

// (B, T, G, D) of integers that every dtype holds, amid NaN that nobody may read.
at::Tensor operand_amid_nan(int64_t T, int64_t D, int64_t factor, at::ScalarType dtype) {
  const at::TensorOptions floats = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor all = at::full({kPairs / kHeads, T + 2, kHeads, D + 5},
                                  std::numeric_limits<double>::quiet_NaN(),
                                  floats.dtype(dtype));
  const at::Tensor x = all.narrow(1, 1, T).narrow(3, 2, D);
  x.copy_((at::arange(x.numel(), floats) * factor).remainder(251).add(1).reshape(x.sizes()));
  return x;
}

// Keys of a few blocks, the last not full, and the arrays that they are packed into, full of 0xff.
struct PackedProblem {
  PackedProblem(const KernelTable& table, Element element, int64_t head_dim)
      : dtype(element == Element::kFloat ? at::kFloat : at::kBFloat16),
        Tk(3 * table.keys_per_block + 13),
        k(operand_amid_nan(Tk, head_dim, 7, dtype)),
        v(operand_amid_nan(Tk, head_dim, 11, dtype)) {
    Problem& p = prepared.problem;
    p.B = kPairs / kHeads, p.Tq = p.Tk = Tk, p.H = p.G = kHeads, p.D = head_dim;
    p.k = {k.data_ptr(), k.stride(0), k.stride(1), k.stride(2), element};
    p.v = {v.data_ptr(), v.stride(0), v.stride(1), v.stride(2), element};
    prepared.kernels = &table;
    prepared.num_key_blocks = 4;
    packed.num_pairs = kPairs;
    packed.key_rows = poisoned(rows);
    packed.value_columns = poisoned(columns);
  }

  int64_t block_bytes() const { return prepared.kernels->key_block_bytes(prepared.problem.D); }
  int64_t last_block() const { return prepared.num_key_blocks - 1; }

  // Returns where the first block lies.
  char* poisoned(std::vector<char>& bytes) const {
    const int64_t alignment = 64;
    bytes.assign(kPairs * prepared.num_key_blocks * block_bytes() + alignment, '\xff');
    const auto address = reinterpret_cast<uintptr_t>(bytes.data());
    return bytes.data() + (alignment - address % alignment) % alignment;
  }

  const char* block_of(const char* array, int64_t pair, int64_t block) const {
    return array + (pair * prepared.num_key_blocks + block) * block_bytes();
  }
  bool is_untouched(const char* array, int64_t pair, int64_t block) const {
    const char* const begin = block_of(array, pair, block);
    return std::all_of(begin, begin + block_bytes(), [](char c) { return c == '\xff'; });
  }
  // Whether the block is [key][d] of the rows of x, or [d][key], and zeros where these end.
  bool holds(const char* array, const at::Tensor& x, int64_t pair, int64_t block, bool by_key) {
    const Problem& p = prepared.problem;
    const int64_t keys = prepared.kernels->keys_per_block;
    const int64_t dims = prepared.kernels->padded_head_dim(p.D);
    const bool is_bf16 = block_bytes() == keys * dims * 2;
    const char* const begin = block_of(array, pair, block);
    const at::Tensor head = x.select(0, pair / kHeads).select(1, pair % kHeads).to(at::kFloat);
    const auto values = head.accessor<float, 2>();
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t d = 0; d < dims; ++d) {
        const int64_t t = block * keys + j, at = by_key ? j * dims + d : d * keys + j;
        const float got = is_bf16
                              ? static_cast<float>(reinterpret_cast<const at::BFloat16*>(begin)[at])
                              : reinterpret_cast<const float*>(begin)[at];
        const float expected = t < Tk && d < p.D ? values[t][d] : 0;
        if (!(got == expected)) return false;
      }
    }
    return true;
  }
  bool holds_keys(int64_t pair, int64_t block) {
    return holds(packed.key_rows, k, pair, block, /*by_key=*/true);
  }
  bool holds_values(int64_t pair, int64_t block) {
    return holds(packed.value_columns, v, pair, block, /*by_key=*/false);
  }

  at::ScalarType dtype;
  int64_t Tk;
  at::Tensor k, v;  // (B, Tk, G, D)
  std::vector<char> rows, columns;
  PreparedProblem prepared;
  PackedKeys packed;
};

const KernelTable* hurrying_kernels = nullptr;

// The same kernels, so slow that threads ask for a block while another packs it.
KernelTable slowed(const KernelTable& table) {
  hurrying_kernels = &table;
  KernelTable slow = table;
  slow.pack_keys = [](const Problem& p, const PackedKeys& packed, int64_t pair, int64_t block) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    hurrying_kernels->pack_keys(p, packed, pair, block);
  };
  return slow;
}

class KeyPacking : public test::OnEachCpuPath {
 protected:
  // Calls body with a problem of each element, of odd head dimensions and of one that is padded by
  // nothing.
  template <class Body>
  void with_problems(const Body& body) {
    const Path path = find_path(GetParam());
    for (const Element element : {Element::kFloat, Element::kBFloat16}) {
      for (const int64_t head_dim : {1, 37, 64}) {
        SCOPED_TRACE(testing::Message()
                     << (element == Element::kFloat ? "f32" : "bf16") << ", D = " << head_dim);
        PackedProblem problem(path.kernels(element), element, head_dim);
        body(problem);
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Cpu,
                         KeyPacking,
                         testing::ValuesIn(test::path_names()),
                         [](const auto& info) { return info.param; });

TEST_P(KeyPacking, TakesTheBlocksThatHoldTheKeysAndNoOthers) {
  with_problems([](PackedProblem& problem) {
    KeyPacker packer(problem.prepared, problem.packed);
    const int64_t per_block = problem.prepared.kernels->keys_per_block;
    packer.pack(0, {per_block - 1, per_block + 1});
    packer.pack(1, {problem.Tk - 1, problem.Tk});
    packer.pack(2, {per_block, 2 * per_block});
    packer.pack(3, {5, 5});
    packer.pack(3, {7, 6});
    const std::vector<std::vector<bool>> is_packed = {{true, true, false, false},
                                                      {false, false, false, true},
                                                      {false, true, false, false},
                                                      {false, false, false, false}};
    for (int64_t pair = 0; pair < kPairs; ++pair) {
      for (int64_t block = 0; block <= problem.last_block(); ++block) {
        SCOPED_TRACE(testing::Message() << "pair " << pair << ", block " << block);
        if (is_packed[pair][block]) {
          EXPECT_TRUE(problem.holds_keys(pair, block));
          EXPECT_TRUE(problem.holds_values(pair, block));
        } else {
          EXPECT_TRUE(problem.is_untouched(problem.packed.key_rows, pair, block));
          EXPECT_TRUE(problem.is_untouched(problem.packed.value_columns, pair, block));
        }
      }
    }
  });
}

TEST_P(KeyPacking, ABlockIsPackedOnce) {
  with_problems([](PackedProblem& problem) {
    KeyPacker packer(problem.prepared, problem.packed);
    packer.pack(1, {0, 1});
    const at::Tensor before = problem.k.clone();
    problem.k.fill_(3);
    packer.pack(1, {0, problem.Tk});
    EXPECT_TRUE(problem.holds(problem.packed.key_rows, before, 1, 0, /*by_key=*/true));
    EXPECT_TRUE(problem.holds_keys(1, 1));
    EXPECT_TRUE(problem.holds_keys(1, problem.last_block()));
  });
}

TEST_P(KeyPacking, WithoutValuesKeysAreAlone) {
  with_problems([](PackedProblem& problem) {
    const char* const columns = std::exchange(problem.packed.value_columns, nullptr);
    problem.prepared.problem.v = {};
    KeyPacker packer(problem.prepared, problem.packed);
    packer.pack(0, {0, problem.Tk});
    for (int64_t block = 0; block <= problem.last_block(); ++block) {
      EXPECT_TRUE(problem.holds_keys(0, block)) << block;
      EXPECT_TRUE(problem.is_untouched(columns, 0, block)) << block;
    }
  });
}

// Who asks for a block while another packs it goes on only when it is whole.
TEST_P(KeyPacking, ManyThreadsFindWhatTheyAskedFor) {
  with_problems([](PackedProblem& problem) {
    constexpr int kThreads = 4;
    const KernelTable slow = slowed(*problem.prepared.kernels);
    problem.prepared.kernels = &slow;
    KeyPacker packer(problem.prepared, problem.packed);
    std::atomic<int> arrived = 0, wrong = 0;
    std::vector<std::thread> threads;
    for (int number = 0; number < kThreads; ++number) {
      threads.emplace_back([&] {
        ++arrived;
        while (arrived < kThreads) std::this_thread::yield();
        for (int64_t pair = 0; pair < kPairs; ++pair) {
          for (int64_t block = problem.last_block(); block >= 0; --block) {
            packer.pack(pair, {block * slow.keys_per_block, problem.Tk});
            wrong += !problem.holds_values(pair, block);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  });
}

}  // namespace
}  // namespace reynard::attention::cpu

#include "reynard/tensor/huge_pages.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <ATen/ops/full_like.h>

#include <vector>

namespace reynard::tensor {
namespace {

TEST(HugePageArena, TensorsDoNotOverlapAndOutliveIt) {
  std::vector<at::Tensor> tensors;
  {
    HugePageArena arena;
    for (int64_t i = 0; i < 40; ++i) {
      tensors.push_back(arena.empty({1000 + i, 768}, at::kBFloat16).fill_(i));
    }
    tensors.push_back(arena.empty({3, 5}, at::kChar).fill_(40));
    tensors.push_back(arena.empty({40 << 20}, at::kFloat).fill_(41));  // more than a block
    tensors.push_back(arena.empty({0, 7}, at::kFloat));
    tensors.push_back(arena.empty({7}, at::kDouble).fill_(43));
  }
  EXPECT_EQ(tensors[2].sizes(), (at::IntArrayRef{1002, 768}));
  EXPECT_EQ(tensors[42].numel(), 0);
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(tensors[i].is_contiguous());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors[i].data_ptr()) % 64, 0U) << i;
    EXPECT_TRUE(tensors[i].equal(at::full_like(tensors[i], static_cast<double>(i)))) << i;
  }
}

TEST(HugePageArena, SmallTensorsShareAPiece) {
  HugePageArena arena;
  const at::Tensor first = arena.empty({768, 768}, at::kBFloat16);
  const at::Tensor second = arena.empty({768, 768}, at::kBFloat16);
  EXPECT_EQ(static_cast<char*>(second.data_ptr()) - static_cast<char*>(first.data_ptr()),
            static_cast<int64_t>(first.nbytes()));
}

}  // namespace
}  // namespace reynard::tensor

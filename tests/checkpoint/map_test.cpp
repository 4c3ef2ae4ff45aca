// Tensors in the file's own pages.

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/safetensors.h"
#include "reynard/tensor/error.h"
#include "tests/support/compare.h"
#include "tests/support/files.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace reynard::checkpoint {
namespace {

// Tensors lie in the order of their names.
class Map : public testing::Test {
 protected:
  Map() {
    write_safetensors(
        folder_ / "model.safetensors",
        std::vector<NamedTensor>{
            {"a", a_}, {"b", b_}, {"c", at::ones({2, 4})}, {"d", at::ones({3}, at::kInt)}});
  }
  at::Tensor map(const std::vector<std::string>& names) const {
    return TensorFolder(folder_.path()).map(names);
  }
  test::TempDir folder_;
  at::Tensor a_ = at::arange(6, at::kFloat).reshape({2, 3});
  at::Tensor b_ = at::arange(9, at::kFloat).reshape({3, 3});
};

TEST_F(Map, OneTensorOrSeveralThatFollowEachOther) {
  EXPECT_BITWISE_EQUAL(map({"a"}), a_);  // and stays when the folder's object is gone
  EXPECT_BITWISE_EQUAL(map({"a", "b"}), at::cat({a_, b_}));
}

TEST_F(Map, UndefinedWhereTheyAreNotOneTensor) {
  EXPECT_FALSE(map({}).defined());
  EXPECT_FALSE(map({"b", "a"}).defined());
  EXPECT_FALSE(map({"a", "a"}).defined());
  EXPECT_FALSE(map({"b", "c"}).defined()) << "another row";
  EXPECT_FALSE(map({"d"}).defined()) << "no weight";
  EXPECT_FALSE(map({"e"}).defined());
}

TEST_F(Map, UnalignedTensorsAreNotMapped) {
  std::string text = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  text.insert(text.size(), text.size() % 2 == 0 ? " " : "");  // an odd length
  const uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  test::write_file(folder_ / "odd.safetensors", bytes + text + std::string(8, '\0'));
  const SafetensorsFile odd(folder_ / "odd.safetensors");
  EXPECT_FALSE(odd.map(std::array<std::string, 1>{"x"}).defined());
  EXPECT_EQ(odd.read("x").numel(), 2);
}

}  // namespace
}  // namespace reynard::checkpoint

#include "reynard/checkpoint/safetensors.h"

#include "reynard/checkpoint/sha256.h"
#include "reynard/tensor/check.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <csignal>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace reynard::checkpoint {
namespace {

using nlohmann::json;

// The bytes of a file with this header text (padded as given) and data.
std::string file_bytes(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

json entry(const std::string& dtype, const json& shape, uint64_t begin, uint64_t end) {
  return {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, end}}};
}

// The message with which opening these bytes fails; empty when it succeeds.
std::string problem(const test::TempDir& folder, const std::string& bytes) {
  test::write_file(folder / "f.safetensors", bytes);
  try {
    const SafetensorsFile file(folder / "f.safetensors");
    for (const TensorInfo& info : file.tensors()) file.read(info.name);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::vector<NamedTensor> one_of_each() {
  std::vector<NamedTensor> tensors;
  const at::Tensor base = at::randn({3, 5}) * 50;
  for (const at::ScalarType type : {at::kDouble,
                                    at::kFloat,
                                    at::kHalf,
                                    at::kBFloat16,
                                    at::kLong,
                                    at::kInt,
                                    at::kShort,
                                    at::kChar,
                                    at::kByte}) {
    tensors.push_back({fmt::format("t.{}", c10::toString(type)),
                       (type == at::kByte ? base.abs() : base).to(type)});
  }
  tensors.push_back({"bool", base > 0});
  tensors.push_back({"strided", base.t()});
  tensors.push_back({"empty", at::empty({0, 7}, at::kFloat)});
  tensors.push_back({"scalar", at::scalar_tensor(2.5, at::TensorOptions().dtype(at::kFloat))});
  return tensors;
}

TEST(Safetensors, WhatIsWrittenIsReadBitForBit) {
  const test::TempDir folder;
  const std::vector<NamedTensor> tensors = one_of_each();
  const WrittenFile written =
      write_safetensors(folder / "all.safetensors", tensors, {{"format", "pt"}});
  const SafetensorsFile file(folder / "all.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.tensors().size(), tensors.size());
  for (const NamedTensor& named : tensors) {
    EXPECT_BITWISE_EQUAL(file.read(named.name), named.tensor.contiguous()) << named.name;
  }
  EXPECT_EQ(written.size_bytes, std::filesystem::file_size(folder / "all.safetensors"));
  EXPECT_EQ(written.sha256, sha256_hex_of_file(folder / "all.safetensors"));
  EXPECT_EQ(file.find("nothing"), nullptr);
  EXPECT_THROW(file.read("nothing"), Error);
}

// Readers map files: an odd number of bytes before wider elements would leave these unaligned.
TEST(Safetensors, TensorsAreAlignedToTheirElements) {
  const test::TempDir folder;
  const auto path = folder / "model.safetensors";
  write_safetensors(path,
                    std::vector<NamedTensor>{{"a", at::ones({3}, at::kByte)},
                                             {"b", at::ones({1}, at::kBFloat16)},
                                             {"c", at::ones({2})}});
  const std::string bytes = test::read_file(path);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  const SafetensorsFile file(path);
  for (const TensorInfo& info : file.tensors()) {
    EXPECT_EQ((8 + header_bytes + info.begin) % c10::elementSize(info.dtype), 0U) << info.name;
  }
}

TEST(Safetensors, AgreesWithThePythonPackage) {
  const std::string python = REYNARD_TEST_PYTHON;
  if (std::system((python + " -c 'import safetensors.torch' 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << "PyPI safetensors is not installed in " << python;
  }
  const test::TempDir folder;
  const std::vector<NamedTensor> tensors = one_of_each();
  write_safetensors(folder / "ours.safetensors", tensors, {{"format", "pt"}});
  test::write_file(folder / "resave.py",
                   "import sys\n"
                   "from safetensors.torch import load_file, save_file\n"
                   "save_file(load_file(sys.argv[1]), sys.argv[2], {'by': 'python'})\n");
  const auto path = [&](const char* name) { return (folder / name).string(); };
  ASSERT_EQ(std::system(fmt::format("{} {} {} {}",
                                    python,
                                    path("resave.py"),
                                    path("ours.safetensors"),
                                    path("theirs.safetensors"))
                            .c_str()),
            0);
  const SafetensorsFile theirs(folder / "theirs.safetensors");
  EXPECT_EQ(theirs.metadata().at("by"), "python");
  for (const NamedTensor& named : tensors) {
    EXPECT_BITWISE_EQUAL(theirs.read(named.name), named.tensor.contiguous()) << named.name;
  }
}

struct BadFile {
  std::string what;     // of the case
  std::string bytes;    // of the file
  std::string message;  // part of the error
};

std::vector<BadFile> bad_files() {
  const std::string data(16, '\1');
  const auto with = [&](const json& header) { return file_bytes(header.dump(), data); };
  const auto raw = [&](const std::string& header) { return file_bytes(header, data); };
  const std::string a = R"("a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]})";
  std::string long_header = with({{"a", entry("F32", {4}, 0, 16)}});
  const uint64_t huge = uint64_t{1} << 62;
  std::memcpy(long_header.data(), &huge, 8);
  return {
      {"empty", "", "has 0 bytes"},
      {"seven bytes", "1234567", "has 7 bytes"},
      {"header length", long_header, "header length 4611686018427387904 goes beyond"},
      {"cut data", file_bytes("{" + a + "}", data.substr(0, 15)), "lie outside the 15 data bytes"},
      {"not JSON", raw("{\"a\":"), "not valid JSON"},
      {"not UTF-8", raw("{\"\xff\":1}"), "not valid JSON"},
      {"array", raw("[]"), "not a JSON object"},
      {"number", raw("3"), "not a JSON object"},
      {"deep", raw("{\"a\":" + std::string(50000, '[')), "unexpected array"},
      {"deep objects", raw(R"({"a":{"dtype":{"x":{)"), "unexpected object"},
      {"trailing", raw("{" + a + "}}"), "not valid JSON"},
      {"twice", raw("{" + a + "," + a + "}"), "\"a\" appears twice"},
      {"zero byte", raw("{" + a + "}" + std::string(1, '\0') + "}"), "not valid JSON at byte 56"},
      {"dtype twice", raw(R"({"a":{"dtype":"F16","dtype":"F32"}})"), "\"a\": dtype appears twice"},
      {"shape twice", raw(R"({"a":{"shape":[],"shape":[4]}})"), "shape appears twice"},
      {"offsets twice",
       raw(R"({"a":{"data_offsets":[],"data_offsets":[0,16]}})"),
       "data_offsets appears twice"},
      {"no dtype", with({{"a", {{"shape", {4}}, {"data_offsets", {0, 16}}}}}), "has no dtype"},
      {"no shape", with({{"a", {{"dtype", "F32"}, {"data_offsets", {0, 16}}}}}), "has no shape"},
      {"no offsets", with({{"a", {{"dtype", "F32"}, {"shape", {4}}}}}), "has no data_offsets"},
      {"dtype", with({{"a", entry("F8_E4M3", {16}, 0, 16)}}), "dtype \"F8_E4M3\" is not supported"},
      {"dtype number", raw(R"({"a":{"dtype":5}})"), "dtype holds a number"},
      {"unknown field", raw(R"({"a":{"strides":[1]}})"), "unknown field \"strides\""},
      {"negative", raw(R"({"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}})"), "negative"},
      {"fraction", raw(R"({"a":{"dtype":"F32","shape":[4.0],"data_offsets":[0,16]}})"), "fraction"},
      {"overflow", with({{"a", entry("F32", {huge, 8}, 0, 16)}}), "too large"},
      {"empty overflow", with({{"a", entry("F32", {0, huge, 8}, 0, 0)}}), "too large"},
      {"rank", with({{"a", entry("F32", std::vector<int>(65, 1), 0, 4)}}), "shape is too long"},
      {"three offsets", raw(R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1,2]}})"), "two"},
      {"backwards", with({{"a", entry("F32", {4}, 16, 0)}}), "go backwards"},
      {"wrong size", with({{"a", entry("F32", {3}, 0, 16)}}), "hold 16 bytes; F32 [3] needs 12"},
      {"overlap",
       with({{"a", entry("F32", {3}, 0, 12)}, {"b", entry("F32", {2}, 8, 16)}}),
       "tensors \"a\" and \"b\" overlap"},
      {"gap",
       with({{"a", entry("F32", {1}, 0, 4)}, {"b", entry("F32", {2}, 8, 16)}}),
       "4 bytes before tensor \"b\""},
      {"tail", with({{"a", entry("F32", {3}, 0, 12)}}), "the last 4 bytes belong to no tensor"},
      {"metadata", raw(R"({"__metadata__":{"a":1}})"), "metadata holds a number"},
      {"metadata list", raw(R"({"__metadata__":{"shape":[]}})"), "metadata holds a list"},
      {"metadata list after a tensor",
       raw("{" + a + R"(,"__metadata__":{"data_offsets":[1]}})"),
       "metadata holds a list"},
      {"metadata object", raw(R"({"__metadata__":{"a":{}}})"), "metadata holds an object"},
      {"bool", with({{"a", entry("BOOL", {16}, 0, 16)}}), ""},
      {"bad bool",
       file_bytes(json{{"a", entry("BOOL", {1}, 0, 1)}}.dump(), "\2"),
       "neither 0 nor 1"},
  };
}

TEST(Safetensors, EachLieIsNamed) {
  const test::TempDir folder;
  for (const BadFile& bad : bad_files()) {
    const std::string text = problem(folder, bad.bytes);
    if (bad.message.empty()) {
      EXPECT_EQ(text, "") << bad.what;
      continue;
    }
    EXPECT_NE(text.find(bad.message), std::string::npos) << bad.what << ": " << text;
    EXPECT_NE(text.find("f.safetensors"), std::string::npos) << bad.what << ": " << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << bad.what << ": " << text;
  }
  EXPECT_THROW(SafetensorsFile(folder / "missing.safetensors"), Error);
  EXPECT_THROW(SafetensorsFile(folder.path()), Error);
}

// Cuts and hundreds of byte changes: an error or a readable file, never anything else.
TEST(Safetensors, MutatedFilesNeverCrash) {
  const test::TempDir folder;
  write_safetensors(folder / "good.safetensors", one_of_each(), {{"format", "pt"}});
  const std::string good = test::read_file(folder / "good.safetensors");
  for (std::size_t size = 0; size < good.size(); size += 41) {
    EXPECT_NE(problem(folder, good.substr(0, size)), "") << "cut to " << size;
  }
  std::mt19937 random(1);
  const std::string digits = "0123456789[]{}\",:-e";
  const std::size_t header_end = 8 + *reinterpret_cast<const uint64_t*>(good.data());
  for (int round = 0; round < 500; ++round) {
    std::string bytes = good;
    for (int change = 0; change < 1 + round % 3; ++change) {
      const std::size_t at = round % 5 == 0 ? random() % 8 : 8 + random() % (header_end - 8);
      bytes[at] = round % 2 ? static_cast<char>(random()) : digits[random() % digits.size()];
    }
    problem(folder, bytes);  // throws nothing but Error, which it catches
  }
}

TEST(Safetensors, WriterRejectsWhatTheFormatCannotHold) {
  const test::TempDir folder;
  const at::Tensor one = at::randn({1});
  const auto path = folder / "f.safetensors";
  EXPECT_THROW(write_safetensors(path, std::vector<NamedTensor>{{"a", one}, {"a", one}}), Error);
  EXPECT_THROW(write_safetensors(path, std::vector<NamedTensor>{{"__metadata__", one}}), Error);
  EXPECT_THROW(write_safetensors(path, std::vector<NamedTensor>{{"c", one.to(at::kComplexFloat)}}),
               Error);
  EXPECT_FALSE(std::filesystem::exists(path));
}

// Any failed write takes this path; a limit on file size stands in for a full disk.
TEST(Safetensors, FailedWriteLeavesTheOldFile) {
  const test::TempDir folder;
  const auto path = folder / "f.safetensors";
  write_safetensors(path, std::vector<NamedTensor>{{"a", at::arange(4)}});
  const std::string before = test::read_file(path);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 4096, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(write_safetensors(path, std::vector<NamedTensor>{{"a", at::arange(4096)}}), Error);
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(test::read_file(path), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(TensorFolder, ReadsOneFileOrShards) {
  const test::TempDir folder;
  const at::Tensor a = at::randn({2, 3}), b = at::randn({4});
  std::filesystem::create_directories(folder / "single");
  write_safetensors(folder / "single" / "model.safetensors",
                    std::vector<NamedTensor>{{"a", a}, {"b", b}});
  std::filesystem::create_directories(folder / "shards");
  const auto shards = folder / "shards";
  write_safetensors(shards / "model-1.safetensors", std::vector<NamedTensor>{{"a", a}});
  write_safetensors(shards / "model-2.safetensors", std::vector<NamedTensor>{{"b", b}});
  const auto index = shards / "model.safetensors.index.json";
  json map = {{"a", "model-1.safetensors"}, {"b", "model-2.safetensors"}};
  test::write_file(index, json{{"metadata", json::object()}, {"weight_map", map}}.dump());
  for (const auto& path : {folder / "single", shards}) {
    const TensorFolder tensors(path);
    EXPECT_EQ(tensors.names(), (std::vector<std::string>{"a", "b"}));
    EXPECT_BITWISE_EQUAL(tensors.read("a"), a);
    EXPECT_BITWISE_EQUAL(tensors.read("b"), b);
    EXPECT_EQ(tensors.find("c"), nullptr);
    EXPECT_THROW(tensors.read("c"), Error);
  }
  EXPECT_EQ(TensorFolder(shards).file_of("b").filename(), "model-2.safetensors");

  const auto rejects = [&](const json& weight_map) {
    test::write_file(index, json{{"weight_map", weight_map}}.dump());
    EXPECT_THROW(TensorFolder{shards}, Error) << weight_map;
  };
  rejects({{"a", "model-2.safetensors"}, {"b", "model-2.safetensors"}});  // not in that shard
  rejects({{"a", "../single/model.safetensors"}});                        // leads out of the folder
  rejects({{"a", 3}});
  rejects({{"a", "model-9.safetensors"}});  // no such file
  rejects(json::array());
  test::write_file(
      index,
      R"({"weight_map":{"a":"model-1.safetensors","b":"model-1.safetensors","b":"model-2.safetensors"}})");
  EXPECT_SAYS(test::error_of([&] { TensorFolder{shards}; }),
              "model.safetensors.index.json: names \"b\" twice");
  test::write_file(shards / "model-2.safetensors",
                   test::read_file(folder / "single/model.safetensors"));
  rejects(map);  // a tensor that the index does not list
  EXPECT_THROW(TensorFolder(folder / "nowhere"), Error);
}

// Nobody writes into it: who opened it to wait would wait for ever.
TEST(Safetensors, APipeIsNotWaitedFor) {
  const test::TempDir folder;
  ASSERT_EQ(::mkfifo((folder / "model.safetensors").c_str(), 0600), 0);
  EXPECT_SAYS(test::error_of([&] { SafetensorsFile(folder / "model.safetensors"); }),
              "is not a file");
}

}  // namespace
}  // namespace reynard::checkpoint

#include "bench/rows.h"

#include "reynard/tensor/check.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

namespace reynard::bench {

namespace {

double seconds_of(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size()) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string model = "CPU";
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    model = line.substr(line.find(':') + 2);
    break;
  }
  return fmt::format("{} x {} threads", model, at::get_num_threads());
}

Medians time_by_turns(int repeats,
                      const std::function<void()>& ours,
                      const std::function<void()>& peer) {
  ours();
  peer();
  std::vector<double> our_times, peer_times;
  for (int i = 0; i < repeats; ++i) {
    our_times.push_back(seconds_of(ours));
    peer_times.push_back(seconds_of(peer));
  }
  return {median(our_times), median(peer_times)};
}

void print_rows(const std::vector<Row>& rows) {
  fmt::print("{:<18} {:<24} {:<5} {:>10} {:>10}  {:<12} {:<10} {:>6}\n",
             "name",
             "shape",
             "dtype",
             "ours",
             "peer",
             "(which)",
             "unit",
             "ratio");
  for (const Row& row : rows) {
    fmt::print("{:<18} {:<24} {:<5} {:>10.2f} {:>10.2f}  {:<12} {:<10} {:>6.2f}\n",
               row.name,
               row.shape,
               row.dtype,
               row.ours,
               row.peer_value,
               row.peer,
               row.unit,
               row.ratio);
  }
  if (!rows.empty()) fmt::print("device: {}\n", rows.front().device);
}

void write_rows(const std::vector<Row>& rows, const std::string& path) {
  if (path.empty()) return;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    list.push_back({{"name", row.name},
                    {"shape", row.shape},
                    {"dtype", row.dtype},
                    {"device", row.device},
                    {"ours", row.ours},
                    {"peer", row.peer},
                    {"peer_value", row.peer_value},
                    {"unit", row.unit},
                    {"ratio", row.ratio}});
  }
  const std::string text = list.dump(1) + "\n", temporary = path + ".tmp";
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  const bool written = file && std::fwrite(text.data(), 1, text.size(), file) == text.size() &&
                       std::fflush(file) == 0 && fsync(fileno(file)) == 0;
  if (file) std::fclose(file);
  if (!written || std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    throw Error(
        fmt::format("bench: cannot write --json {}; choose a file in a writable folder", path));
  }
}

}  // namespace reynard::bench

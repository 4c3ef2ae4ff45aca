#include "bench/rows.h"

#include "bench/reference_figures.h"
#include "reynard/statistics/median.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/device.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>

namespace reynard::bench {

namespace {

// Milliseconds of a decode need more than two decimals.
std::string figure_text(double value) {
  return fmt::format("{:.{}f}", value, value < 1 ? 4 : 2);
}

}  // namespace

std::string device_name(at::Device device) {
  if (!device.is_cpu()) return tensor::gpu_name(device);
  return fmt::format("{} x {} threads", tensor::cpu_name(), at::get_num_threads());
}

bool is_named(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

Rows& operator+=(Rows& rows, Rows more) {
  rows.insert(
      rows.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return rows;
}

double seconds_of(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Medians time_by_turns(int repeats,
                      const std::function<void()>& ours,
                      const std::function<void()>& peer) {
  ours();
  peer();
  std::vector<double> our_times, peer_times, ratios;
  for (int i = 0; i < repeats; ++i) {
    our_times.push_back(seconds_of(ours));
    peer_times.push_back(seconds_of(peer));
    ratios.push_back(peer_times.back() / our_times.back());
  }
  return {.ours = statistics::median(our_times),
          .peer = statistics::median(peer_times),
          .ratio = statistics::median(ratios),
          .ours_least = std::ranges::min(our_times),
          .peer_least = std::ranges::min(peer_times)};
}

Row with_rates(Row row, double amount, const Medians& seconds) {
  row.ours = amount / seconds.ours, row.peer_value = amount / seconds.peer;
  row.ours_best = amount / seconds.ours_least, row.peer_best = amount / seconds.peer_least;
  row.ratio = seconds.ratio;
  return row;
}

at::ScalarType scalar_type(const std::string& dtype) {
  if (dtype == "f32") return at::kFloat;
  if (dtype == "bf16") return at::kBFloat16;
  throw Error(fmt::format("bench: --dtype {}; expected f32 or bf16", dtype));
}

void print_rows(const Rows& rows) {
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
    fmt::print("{:<18} {:<24} {:<5} {:>10} {:>10}  {:<12} {:<10} {:>6.2f}\n",
               row.name,
               row.shape,
               row.dtype,
               figure_text(row.ours),
               figure_text(row.peer_value),
               row.peer,
               row.unit,
               row.ratio);
  }
  if (!rows.empty()) fmt::print("device: {}\n", rows.front().device);
  for (const Row& row : rows) {
    const std::string note = slow_peer_note(row, machine_kind());
    if (!note.empty()) fmt::print("note: {}\n", note);
  }
}

}  // namespace reynard::bench

#pragma once
// What every benchmark reports: rows that compare ours with a peer measured in the same run, and
// a table of them for people. As JSON: row_file.h.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::bench {

struct Row {
  std::string name;   // dense_forward, pruned_backward, train_step ...
  std::string shape;  // "B1 H8 T4096 D64"
  std::string dtype;  // f32, bf16
  std::string device;
  double ours = 0;
  std::string peer;  // torch_sdpa, own_dense, torch_eager ...
  double peer_value = 0;
  std::string unit;
  double ratio = 0;  // above 1: ours is better
  // Of the fastest of several runs, where `ours` and `peer_value` are medians; 0: was measured
  // once.
  double ours_best = 0, peer_best = 0;
};
using Rows = std::vector<Row>;

// What a bench of minutes calls as it goes on: all rows so far, and how many parts of how many are
// done.
using Measured = std::function<void(const Rows& rows, int64_t done, int64_t all)>;

// Whether `--only names` asks for a row.
bool is_named(const std::vector<std::string>& names, std::string_view name);

Rows& operator+=(Rows& rows, Rows more);

// The machine as a row names it: processor model and number of threads, "Xeon ... x 2 threads", or
// the GPU's name.
std::string device_name(at::Device device);

double seconds_of(const std::function<void()>& run);
// Medians of two functions run by turns, after one unmeasured run of each: machine noise then hits
// both.
struct Medians {
  double ours = 0, peer = 0;  // seconds
  // The peer's by ours of the same turn: a machine that changes its speed between turns moves the
  // medians, which may come from different turns, further than these.
  double ratio = 0;
  double ours_least = 0, peer_least = 0;  // seconds of the fastest runs
};
Medians time_by_turns(int repeats,
                      const std::function<void()>& ours,
                      const std::function<void()>& peer);

// The row with what both do in a second, of an amount (tokens, GB ...) that took these times.
Row with_rates(Row row, double amount, const Medians& seconds);

// f32 or bf16; another name is a reynard::Error.
at::ScalarType scalar_type(const std::string& dtype);

// With a line for each peer that was too slow (reference_figures.h).
void print_rows(const Rows& rows);

}  // namespace reynard::bench

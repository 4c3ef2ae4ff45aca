#include "bench/reference_figures.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <array>
#include <fstream>
#include <string_view>

namespace reynard::bench {

namespace {

constexpr double kLeastShare = 0.85;
constexpr std::string_view kTwoZen5 = "Zen 5 x 2 threads";

// Medians on an idle machine: GFLOP/s of attention, tokens/s of training steps.
struct Figure {
  std::string_view machine, name, shape, dtype;
  double value;
};
constexpr std::array kFigures = {
    Figure{kTwoZen5, "dense_forward", "B1 H8 T4096 D64", "f32", 156},
    Figure{kTwoZen5, "dense_forward", "B1 H8 T4096 D64", "bf16", 151},
    Figure{kTwoZen5, "dense_backward", "B1 H8 T4096 D64", "f32", 153},
    Figure{kTwoZen5, "dense_backward", "B1 H8 T4096 D64", "bf16", 262},
    Figure{kTwoZen5, "dense_forward", "B1 H4 T16384 D64", "f32", 170},
    Figure{kTwoZen5, "dense_forward", "B1 H4 T16384 D64", "bf16", 165},
    Figure{kTwoZen5, "dense_backward", "B1 H4 T16384 D64", "f32", 169},
    Figure{kTwoZen5, "dense_backward", "B1 H4 T16384 D64", "bf16", 288},
    Figure{kTwoZen5, "train_step", "10M B4 T1024", "bf16", 3399},
    Figure{kTwoZen5, "train_step", "10M B1 T8192", "bf16", 1109},
    Figure{kTwoZen5, "train_step", "125M B1 T1024", "bf16", 273},
};

}  // namespace

std::string machine_kind() {
  std::ifstream info("/proc/cpuinfo");
  bool amd = false, family_26 = false;
  for (std::string line; std::getline(info, line) && !line.empty();) {
    amd |= line.rfind("vendor_id", 0) == 0 && line.find("AuthenticAMD") != std::string::npos;
    family_26 |= line.rfind("cpu family", 0) == 0 && line.ends_with(": 26");
  }
  if (!amd || !family_26) return "";
  return fmt::format("Zen 5 x {} threads", at::get_num_threads());
}

std::string slow_peer_note(const Row& row, const std::string& machine_kind) {
  for (const Figure& figure : kFigures) {
    if (figure.machine != machine_kind || figure.name != row.name || figure.shape != row.shape ||
        figure.dtype != row.dtype || row.peer_value >= kLeastShare * figure.value) {
      continue;
    }
    return fmt::format(
        "{} {} {}: the peer {} ran at {:.0f} {}, {:.0f} % of the {:.0f} that it reaches on an idle "
        "{}; the ratio is not to be trusted, measure again",
        row.name,
        row.shape,
        row.dtype,
        row.peer,
        row.peer_value,
        row.unit,
        100 * row.peer_value / figure.value,
        figure.value,
        machine_kind);
  }
  return "";
}

}  // namespace reynard::bench

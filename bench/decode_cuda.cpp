#include "bench/decode_cuda.h"

#include "reynard/attention/attention.h"
#include "reynard/attention/cache.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/device.h"
#include "reynard/tensor/installation.h"

#include <fmt/format.h>

#include <string>

namespace reynard::bench {

namespace {

constexpr double kLargestDecodeError = 6e-3;  // of bf16 outputs, relative to the norm of a head's

std::string text_of(const AttentionShape& s) {
  return fmt::format("H{} G{} T{} D{}", s.H, s.G, s.T, s.D);
}

std::string decode_question(const char* what, const AttentionShape& s) {
  return fmt::format("{} {} {} {} {}", what, s.H, s.G, s.T, s.D);
}

void check_decode_shape(const AttentionShape& s) {
  tensor::check_value(s.T >= 1 && s.T % attention::kPageTokens == 0,
                      "bench decode",
                      "T of --shape",
                      s.T,
                      fmt::format("a multiple of {} on a GPU", attention::kPageTokens));
  tensor::check_value(s.D <= attention::kLargestHeadDim,
                      "bench decode",
                      "D of --shape",
                      s.D,
                      fmt::format("at most {}", attention::kLargestHeadDim));
}

void check_decode_parity(PeerProcess& peer, const AttentionShape& shape) {
  const std::vector<double> answer = peer.ask_numbers(decode_question("parity", shape), 2);
  const double error = answer[0], other_runs = answer[1];
  if (!(error < kLargestDecodeError)) {  // nan is not
    throw Error(
        fmt::format("bench decode: outputs of {} differ from f64 by {:.2g} of their norm; expected "
                    "at most {}",
                    text_of(shape),
                    error,
                    kLargestDecodeError));
  }
  if (other_runs == 0) return;
  throw Error(fmt::format("bench decode: {} runs of {} gave other bits than the first; expected 0",
                          other_runs,
                          text_of(shape)));
}

// Keys and values in bf16, sums of gates in f64.
double decode_bytes(const AttentionShape& s) {
  return static_cast<double>(s.T) * static_cast<double>(2 * s.G * s.D * 2 + s.H * 8);
}

Rows decode_shape_rows(PeerProcess& peer,
                       const AttentionShape& shape,
                       const std::string& device,
                       double copy) {
  check_decode_parity(peer, shape);
  const std::vector<double> times = peer.ask_numbers(decode_question("times", shape), 4);
  const double dense_ms = times[0], least_dense_ms = times[1], pruned_ms = times[2];
  const double speed = decode_bytes(shape) / dense_ms * 1e-6;
  const Row decode{.name = "decode",
                   .shape = text_of(shape),
                   .dtype = "bf16",
                   .device = device,
                   .ours = speed,
                   .peer = "copy",
                   .peer_value = copy,
                   .unit = "GB/s",
                   .ratio = speed / copy,
                   .ours_best = decode_bytes(shape) / least_dense_ms * 1e-6};
  Row pruned = decode;
  pruned.name = "pruned_decode";
  pruned.ours = pruned_ms, pruned.ours_best = times[3];
  pruned.peer = "own_dense";
  pruned.peer_value = dense_ms, pruned.peer_best = least_dense_ms;
  pruned.unit = "ms";
  pruned.ratio = dense_ms / pruned_ms;
  return {decode, pruned};
}

}  // namespace

Rows decode_cuda_rows(PeerProcess& peer, const DecodeCudaBench& options) {
  const std::string device = peer.ask("device");
  const double copy = peer.ask_number("copy");
  Rows rows;
  int64_t done = 0;
  for (const AttentionShape& shape : options.shapes) {
    rows += decode_shape_rows(peer, shape, device, copy);
    options.measured(rows, ++done, static_cast<int64_t>(options.shapes.size()));
  }
  return rows;
}

Rows bench_decode_cuda(const DecodeCudaBench& options) {
  for (const AttentionShape& shape : options.shapes) check_decode_shape(shape);
  tensor::choose_device("cuda");  // says what is missing
  PeerProcess peer("decode_cuda_peer.py",
                   {tensor::library_folder() + "/libreynard.so", std::to_string(options.repeats)});
  return decode_cuda_rows(peer, options);
}

}  // namespace reynard::bench

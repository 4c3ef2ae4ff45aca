#include "bench/attention_cuda.h"

#include "bench/peer_process.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/device.h"
#include "reynard/tensor/installation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <sstream>
#include <string>

namespace reynard::bench {

namespace {

constexpr double kLargestError = 6e-3;  // of bf16 outputs, relative to the norm of the rows
constexpr double kLargestGradientError = 1.2e-2;
constexpr int64_t kTokens = 32768;  // of a batch, or one row where rows are longer
constexpr int64_t kGroup = 4, kDocuments = 4;
constexpr std::array kDirections = {"forward", "backward"};
constexpr std::array kPeers = {"cudnn", "flash_attention_2", "fla"};

struct Shape {
  int64_t B, H, G, T, D, documents = 1;

  std::string text() const {
    return fmt::format("B{} H{} G{} T{} D{}{}", B, H, G, T, D, documents > 1 ? " packed" : "");
  }
};

Shape plain_shape(int64_t T, int64_t D) {
  const int64_t most = D <= 64 ? 24 : D <= 128 ? 12 : 8;
  const int64_t heads = T <= kTokens ? most : D <= 64 ? 8 : 4;
  return {std::max<int64_t>(kTokens / T, 1), heads, heads, T, D};
}

struct Milliseconds {
  double median = 0, least = 0;
};
using Times = std::map<std::string, Milliseconds>;  // by name

struct Timed {
  const Times& times;
  const char* what;

  bool is_known() const { return times.contains(what); }
  const Milliseconds& ms() const { return times.at(what); }
};

class Session {
 public:
  explicit Session(const AttentionCudaBench& options)
      : with_peers_(options.peers),
        peer_("attention_cuda_peer.py",
              {tensor::library_folder() + "/libreynard.so", std::to_string(options.repeats)}),
        device_(peer_.ask("device")) {}

  Times times(const Shape& shape, const char* direction) {
    return times(shape, direction, with_peers_);
  }
  Times own_times(const Shape& shape, const char* direction) {
    return times(shape, direction, false);
  }
  void check_parity(const Shape& shape) {
    std::istringstream errors(peer_.ask(question(shape, "parity")));
    check_error(errors, "outputs", shape, kLargestError);
    check_error(errors, "gradients", shape, kLargestGradientError);
  }

  // Nothing where either time is missing.
  void add(const std::string& name,
           const Shape& shape,
           const Timed& ours,
           const Timed& theirs,
           const std::string& peer_name) {
    if (!ours.is_known() || !theirs.is_known()) return;
    const Milliseconds own = ours.ms(), peer = theirs.ms();
    rows_.push_back({.name = name,
                     .shape = shape.text(),
                     .dtype = "bf16",
                     .device = device_,
                     .ours = own.median,
                     .peer = peer_name,
                     .peer_value = peer.median,
                     .unit = "ms",
                     .ratio = peer.median / own.median,
                     .ours_best = own.least,
                     .peer_best = peer.least});
  }

  Rows sorted_rows() const {
    Rows rows = rows_;
    std::stable_sort(
        rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.ratio < b.ratio; });
    return rows;
  }

 private:
  static void check_error(std::istream& errors, const char* of, const Shape& shape, double most) {
    double error = 0;
    if (errors >> error && error < most) return;  // what is no number, as nan, is none
    throw Error(
        fmt::format("bench: {} of {} differ from f64 by {:.2g} of their norm; expected at most {}",
                    of,
                    shape.text(),
                    errors ? error : std::nan(""),
                    most));
  }

  Times times(const Shape& shape, const char* direction, bool with_peers) {
    std::istringstream answer(peer_.ask(question(shape, direction, with_peers)));
    Times times;
    std::string name;
    for (Milliseconds ms; answer >> name >> ms.median >> ms.least;) times[name] = ms;
    return times;
  }
  static std::string question(const Shape& s, const char* what, bool with_peers = false) {
    return fmt::format(
        "{} {} {} {} {} {} {} {}", what, s.B, s.H, s.G, s.T, s.D, s.documents, with_peers ? 1 : 0);
  }

  bool with_peers_;
  PeerProcess peer_;
  std::string device_;
  Rows rows_;
};

// Gated, and pruned by both rules, against peers (fla has gates, the others none); pruned against
// own dense. Grouped heads against as many key heads, documents against as many short rows: the
// same FLOPs.
void bench_shape(Session& session, const Shape& shape, const char* direction) {
  const auto times = session.times(shape, direction);
  const std::string suffix = std::string("_") + direction;
  session.add("dense" + suffix, shape, {times, "dense"}, {times, "softmax"}, "own_ungated");
  for (const char* peer : kPeers) {
    session.add("dense" + suffix, shape, {times, "dense"}, {times, peer}, peer);
    session.add("tight" + suffix, shape, {times, "tight"}, {times, peer}, peer);
    session.add("published" + suffix, shape, {times, "published"}, {times, peer}, peer);
  }
  session.add("tight" + suffix, shape, {times, "tight"}, {times, "dense"}, "own_dense");
  session.add("published" + suffix, shape, {times, "published"}, {times, "dense"}, "own_dense");

  Shape grouped = shape;
  grouped.G = shape.H / kGroup;
  const auto grouped_times = session.times(grouped, direction);
  session.add("gqa" + suffix, grouped, {grouped_times, "dense"}, {times, "dense"}, "own_plain");
  for (const char* peer : kPeers) {
    session.add("gqa" + suffix, grouped, {grouped_times, "dense"}, {grouped_times, peer}, peer);
  }

  Shape packed = shape, apart = shape;
  packed.documents = kDocuments;
  apart.B *= kDocuments, apart.T /= kDocuments;
  const auto packed_times = session.own_times(packed, direction);
  const auto apart_times = session.own_times(apart, direction);
  session.add(
      "packed" + suffix, packed, {packed_times, "dense"}, {apart_times, "dense"}, "own_apart");
}

}  // namespace

Rows bench_attention_cuda(const AttentionCudaBench& options) {
  tensor::choose_device("cuda");  // says what is missing
  Session session(options);
  const auto all = static_cast<int64_t>(options.lengths.size() * options.head_dims.size());
  int64_t done = 0;
  for (const int64_t T : options.lengths) {
    for (const int64_t D : options.head_dims) {
      const Shape shape = plain_shape(T, D);
      Shape grouped = shape, packed = shape;
      grouped.G /= kGroup, packed.documents = kDocuments;
      for (const Shape& each : {grouped, packed, shape}) session.check_parity(each);
      for (const char* direction : kDirections) bench_shape(session, shape, direction);
      options.measured(session.sorted_rows(), ++done, all);
    }
  }
  return session.sorted_rows();
}

}  // namespace reynard::bench

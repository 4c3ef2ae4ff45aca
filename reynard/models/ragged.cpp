#include "reynard/models/ragged.h"

#include "reynard/models/state.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"
#include "reynard/tensor/to_device.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace reynard::models {

namespace {

void check(const at::Tensor& tokens,
           const at::Tensor& offsets,
           std::span<SequenceState* const> states,
           const DecoderConfig& config) {
  tensor::check_shape("hidden", "tokens", tokens, {{"N"}});
  tensor::check_shape("hidden", "offsets", offsets, {{"S"}});
  tensor::check_dtype("hidden", "tokens", tokens, {at::kLong});
  tensor::check_dtype("hidden", "offsets", offsets, {at::kLong});
  const int64_t N = tokens.size(0), S = offsets.size(0);
  constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();  // first_key is i32
  tensor::check_value(N > 0 && N <= kMaxTokens, "hidden", "number of tokens", N, "1 to 2^31 - 1");
  tensor::check_value(S > 0, "hidden", "number of offsets", S, "at least 1");
  tensor::check_value(states.empty() || static_cast<int64_t>(states.size()) == S,
                      "hidden",
                      "number of states",
                      states.size(),
                      fmt::format("none or one per sequence ({})", S));
  const std::set<const SequenceState*> distinct(states.begin(), states.end());
  tensor::check_value(distinct.size() == states.size(),
                      "hidden",
                      "number of different states",
                      distinct.size(),
                      "one per sequence, none used twice");
  for (const SequenceState* state : states) {
    tensor::check_value(
        state != nullptr && state->num_layers() == config.num_layers,
        "hidden",
        "state",
        state == nullptr ? "null" : counted(state->num_layers(), "layer"),
        fmt::format("a state of this decoder ({})", counted(config.num_layers, "layer")));
  }
  const auto* offset = offsets.const_data_ptr<int64_t>();
  tensor::check_value(offset[0] == 0, "hidden", "offsets[0]", offset[0], "0");
  for (int64_t s = 0; s < S; ++s) {
    const int64_t end = s + 1 < S ? offset[s + 1] : N;
    tensor::check_value(offset[s] < end,
                        "hidden",
                        fmt::format("offsets[{}]", s),
                        offset[s],
                        fmt::format("less than {}, where the sequence ends", end));
  }
  const auto* token = tokens.const_data_ptr<int64_t>();
  const auto* outside =
      std::find_if(token, token + N, [&](int64_t id) { return id < 0 || id >= config.vocab_size; });
  if (outside != token + N) {
    tensor::fail("hidden",
                 "token id",
                 std::to_string(*outside),
                 fmt::format("0 to {} (vocab_size - 1)", config.vocab_size - 1));
  }
}

// Contexts of a crossbatch are sequences, or documents that begin inside one.
void check_crossbatch(const Crossbatch& crossbatch,
                      int64_t N,
                      const at::Tensor& offsets,
                      const DecoderConfig& config) {
  const int64_t rows = crossbatch.rows, contexts = crossbatch.contexts;
  const bool recurrent = config.mixer == "transformer_xl" && contexts == 1;
  tensor::check_value(config.has_memory() || recurrent,
                      "hidden",
                      "crossbatch",
                      "set",
                      "none: the decoder's mixer is neither memory_attention nor, with single "
                      "contexts, transformer_xl");
  tensor::check_value(rows >= 1 && contexts >= 1 && N % (rows * contexts) == 0,
                      "hidden",
                      "crossbatch",
                      fmt::format("{} rows of {} contexts", rows, contexts),
                      fmt::format("a division of the {} tokens", N));
  tensor::check_value(crossbatch.documents >= 1 && crossbatch.documents <= rows,
                      "hidden",
                      "crossbatch.documents",
                      crossbatch.documents,
                      fmt::format("1 to the number of rows, {}", rows));
  if (crossbatch.padding.defined()) {
    tensor::check_value(crossbatch.padding.sizes() == at::IntArrayRef{rows} &&
                            crossbatch.rule == CrossbatchRule::kRows && crossbatch.documents == 1,
                        "hidden",
                        "crossbatch.padding",
                        fmt::format("[{}]", fmt::join(crossbatch.padding.sizes(), ", ")),
                        fmt::format("[{}], with rule = rows and one document", rows));
  }
  const int64_t L = N / (rows * contexts);
  const auto* offset = offsets.const_data_ptr<int64_t>();
  for (int64_t begin = 0; begin < N; begin += L) {
    tensor::check_value(std::binary_search(offset, offset + offsets.size(0), begin),
                        "hidden",
                        "offsets",
                        fmt::format("without {}", begin),
                        fmt::format("a sequence at each context of {} tokens", L));
  }
}

// Ends of the local contexts of one sequence, relative to its first token here. length: tokens in
// this call; in_window: earlier tokens of the current window, in its state.
std::vector<int64_t> window_ends(const DecoderConfig& config,
                                 bool has_state,
                                 int64_t length,
                                 int64_t in_window) {
  if (!config.has_memory()) return {length};
  const int64_t W = config.memory.window;
  // The last context of a text that is read in one go; with states the caller begins it.
  const int64_t last = has_state ? 0 : config.last_context_begin(length);
  std::vector<int64_t> ends;
  for (int64_t at = 0; at < length;) {
    const int64_t room = ends.empty() && in_window < W ? W - in_window : W;
    at = std::min(at + room, at < last ? last : length);
    ends.push_back(at);
  }
  return ends;
}

}  // namespace

Ragged make_ragged(const at::Tensor& tokens,
                   const at::Tensor& offsets,
                   std::span<SequenceState* const> states,
                   const DecoderConfig& config,
                   at::Device device,
                   const std::optional<Crossbatch>& crossbatch) {
  const at::Tensor flat_tokens = tokens.cpu().contiguous();
  const at::Tensor flat_offsets = offsets.cpu().contiguous();
  check(flat_tokens, flat_offsets, states, config);
  const int64_t N = tokens.size(0), S = offsets.size(0);
  if (crossbatch) check_crossbatch(*crossbatch, N, flat_offsets, config);
  const at::Tensor positions = at::empty({N}, at::kLong), first_keys = at::empty({N}, at::kInt);
  const auto* offset = flat_offsets.const_data_ptr<int64_t>();
  auto* position = positions.data_ptr<int64_t>();
  auto* first_key = first_keys.data_ptr<int32_t>();
  std::vector<Window> windows;
  for (int64_t s = 0; s < S; ++s) {
    const int64_t sequence = offset[s], end = s + 1 < S ? offset[s + 1] : N;
    int64_t earlier = states.empty() ? 0 : states[s]->window_length();
    if (config.has_memory() && earlier == config.memory.window) earlier = 0;  // the next one begins
    const std::vector<int64_t> ends =
        crossbatch ? std::vector<int64_t>{end - sequence}
                   : window_ends(config, !states.empty(), end - sequence, earlier);
    int64_t begin = sequence;
    for (const int64_t window_end : ends) {
      windows.push_back({begin, sequence + window_end, s});
      for (int64_t n = begin; n < sequence + window_end; ++n) {
        position[n] = earlier + n - begin;
        const int64_t window = config.attention.window;
        first_key[n] = static_cast<int32_t>(window > 0 ? std::max(begin, n - window + 1) : begin);
      }
      begin = sequence + window_end;
      earlier = 0;
    }
  }
  std::vector<int64_t> bounds(offset, offset + S);
  bounds.push_back(N);
  const auto moved = [&](const at::Tensor& t) { return tensor::to_device(t, device); };
  std::optional<Crossbatch> contexts = crossbatch;
  if (contexts && contexts->padding.defined()) {
    contexts->padding = moved(contexts->padding.to(at::kInt));
  }
  return {.tokens = moved(flat_tokens),
          .offsets = moved(flat_offsets),
          .positions = moved(positions),
          .first_key = moved(first_keys),
          .bounds = std::move(bounds),
          .states = states,
          .carried = states,
          .windows = std::move(windows),
          .crossbatch = std::move(contexts)};
}

}  // namespace reynard::models

#include "reynard/models/stepper.h"

#include "reynard/models/decoder.h"
#include "reynard/models/score.h"
#include "reynard/models/step.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/recorded_work.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

namespace reynard::models {

namespace {

// Recordings that are kept: each has memory of its own.
constexpr std::size_t kMostRecordings = 16;

// Steps of as many texts as make one kind: while texts come and go there are few kinds to record,
// and rows without a text take little time.
constexpr int64_t kMostDoubled = 16;

int64_t padded_texts(int64_t texts) {
  int64_t rows = 1;
  while (rows < texts) rows += std::min(rows, kMostDoubled);
  return rows;
}

// Widths of tables are multiples of 16 pages, from 256 on of an eighth to a sixteenth of the width:
// a text seldom outgrows its recording, and few absent pages are looked at.
constexpr int64_t kLeastPages = 16, kPagesPart = 8;

int64_t table_pages(int64_t pages) {
  int64_t step = kLeastPages;
  while (step * kPagesPart * 2 <= pages) step *= 2;
  return (pages + step - 1) / step * step;
}

// Room for a token in each cache; unless it is kept, all are as before in the end.
class ReservedTokens {
 public:
  explicit ReservedTokens(std::span<SequenceState* const> states) {
    caches_.reserve(states.size() * states[0]->num_layers());
    try {
      for (SequenceState* const state : states) {
        for (int64_t layer = 0; layer < state->num_layers(); ++layer) {
          state->cache(layer).extend(1);
          caches_.push_back(&state->cache(layer));
        }
      }
    } catch (...) {
      take_back();
      throw;
    }
  }
  ~ReservedTokens() { take_back(); }
  ReservedTokens(const ReservedTokens&) = delete;
  ReservedTokens& operator=(const ReservedTokens&) = delete;
  void keep() { caches_.clear(); }

 private:
  void take_back() {
    for (attention::LayerCache* const cache : caches_) cache->truncate(cache->length() - 1);
    caches_.clear();
  }
  std::vector<attention::LayerCache*> caches_;
};

}  // namespace

Carry Step::carry(int64_t layer) const {
  if (!carries.defined()) return {};
  const at::Tensor own = carries.select(0, layer);
  return {.k = own.select(0, 0), .v = own.select(0, 1)};
}

struct Stepper::StepKind {
  attention::StepShape shape;
  int64_t num_growths = 0;  // of the pool, whose tensors have moved with each
  double log_tolerance = 0;

  bool operator==(const StepKind&) const = default;
};

struct Stepper::Recording {
  StepKind kind;
  Step step;
  std::function<void()> work = {};  // empty: not recorded
  bool has_run = false, is_worth_trying = true;
  at::Tensor logits = {};        // (S, V) f32
  at::Tensor new_carries = {};   // as Step::carries, of the step's tokens
  at::Tensor last_carries = {};  // a copy, whose rows states keep: the next step writes over it
};

Stepper::Stepper(Decoder& decoder, std::shared_ptr<attention::PagePool> pool)
    : decoder_(decoder), pool_(std::move(pool)) {}

Stepper::~Stepper() = default;

int64_t Stepper::num_recorded() const {
  return std::ranges::count_if(
      recordings_, [](const Recording& recording) { return recording.work != nullptr; });
}

void Stepper::check(std::span<const int64_t> tokens, std::span<SequenceState* const> states) const {
  constexpr std::string_view kOp = "step";
  using tensor::check_value;
  check_value(!states.empty(), kOp, "number of states", states.size(), "at least 1");
  check_value(tokens.size() == states.size(),
              kOp,
              "number of tokens",
              tokens.size(),
              fmt::format("one per state ({})", states.size()));
  const std::set<const SequenceState*> distinct(states.begin(), states.end());
  check_value(distinct.size() == states.size(),
              kOp,
              "number of different states",
              distinct.size(),
              "one per sequence, none used twice");
  const DecoderConfig& config = decoder_.config();
  for (std::size_t s = 0; s < states.size(); ++s) {
    const bool is_ours = states[s] != nullptr && states[s]->num_layers() == config.num_layers &&
                         states[s]->cache(0).pool() == pool_;
    check_value(is_ours, kOp, "state", s, "a state of this decoder whose pages are of this pool");
    check_value(tokens[s] >= 0 && tokens[s] < config.vocab_size,
                kOp,
                "token id",
                tokens[s],
                fmt::format("0 to {} (vocab_size - 1)", config.vocab_size - 1));
  }
}

at::Tensor Stepper::logits(std::span<const int64_t> tokens,
                           std::span<SequenceState* const> states) {
  check(tokens, states);
  const at::NoGradGuard no_grad;
  ReservedTokens reserved(states);
  int64_t pages = 0;
  for (SequenceState* const state : states) {
    pages = std::max(pages, std::ssize(state->cache(0).pages(0)));
  }
  const DecoderConfig& config = decoder_.config();
  Recording& recording = recording_of({.shape = {.num_layers = config.num_layers,
                                                 .num_sequences = padded_texts(std::ssize(states)),
                                                 .num_kv_heads = config.num_kv_heads(),
                                                 .num_pages = table_pages(pages)},
                                       .num_growths = pool_->num_growths(),
                                       .log_tolerance = config.attention.log_pruning_tolerance});
  set_inputs(recording, tokens, states);
  run(recording);
  keep_carries(recording);
  reserved.keep();
  leave_carries(recording, states);
  return recording.logits.narrow(0, 0, std::ssize(states));
}

Stepper::Recording& Stepper::recording_of(const StepKind& kind) {
  const auto known = std::ranges::find(recordings_, kind, &Recording::kind);
  if (known != recordings_.end()) {
    recordings_.splice(recordings_.begin(), recordings_, known);
    return recordings_.front();
  }
  // Those of a pool that has moved are of no use.
  std::erase_if(recordings_,
                [&](const Recording& old) { return old.kind.num_growths != kind.num_growths; });
  if (recordings_.size() == kMostRecordings) {
    // One that was never recorded, if any, or that used longest ago.
    const auto oldest = std::find_if(recordings_.rbegin(), recordings_.rend(), [](const auto& old) {
      return old.work == nullptr;
    });
    recordings_.erase(oldest == recordings_.rend() ? std::prev(recordings_.end())
                                                   : std::prev(oldest.base()));
  }
  const DecoderConfig& config = decoder_.config();
  const int64_t S = kind.shape.num_sequences, L = kind.shape.num_layers;
  const at::TensorOptions ids = at::TensorOptions(decoder_.device()).dtype(at::kLong);
  Step step(attention::StepTables(pool_, kind.shape));
  step.tokens = at::zeros({S}, ids);
  step.positions = at::zeros({S}, ids);
  step.offsets = at::arange(S, ids);
  if (config.attention.key_shift || config.attention.value_shift) {
    step.carries = at::zeros({L, 2, S, config.num_kv_heads() * config.head_dim()},
                             ids.dtype(decoder_.compute_dtype()));
  }
  recordings_.push_front({.kind = kind, .step = std::move(step)});
  return recordings_.front();
}

void Stepper::set_inputs(Recording& to,
                         std::span<const int64_t> tokens,
                         std::span<SequenceState* const> states) {
  const int64_t S = to.kind.shape.num_sequences, L = to.kind.shape.num_layers;
  const at::Tensor inputs = at::zeros({2, S}, at::kLong);
  auto* const input = inputs.mutable_data_ptr<int64_t>();
  std::vector<const attention::LayerCache*> caches(L * S);  // null behind the last text
  for (int64_t s = 0; s < std::ssize(states); ++s) {
    input[s] = tokens[s];
    input[S + s] = states[s]->window_length() - 1;
    for (int64_t layer = 0; layer < L; ++layer) {
      caches[layer * S + s] = &states[s]->cache(layer);
    }
  }
  to.step.tokens.copy_(inputs.select(0, 0), /*non_blocking=*/true);
  to.step.positions.copy_(inputs.select(0, 1), /*non_blocking=*/true);
  to.step.tables.update(caches, decoder_.config().attention.window);
  if (to.step.carries.defined()) set_carries(to, states);
}

void Stepper::set_carries(Recording& to, std::span<SequenceState* const> states) {
  at::Tensor& carries = to.step.carries;
  const int64_t S = std::ssize(states);
  // Mostly the step before was one of the same sequences.
  const auto is_row_of_last = [&](int64_t s) {
    const Carries& kept = states[s]->carries(0);
    if (kept.empty() || kept.back().row != s) return false;
    const Carry& rows = kept.back().rows;
    return (rows.k.defined() ? rows.k : rows.v).is_alias_of(to.last_carries);
  };
  bool together = to.last_carries.defined();
  for (int64_t s = 0; together && s < S; ++s) together = is_row_of_last(s);
  if (together) {
    carries.copy_(to.last_carries);
    return;
  }
  const int64_t absent = carries.size(2) - S;
  const at::Tensor none = at::zeros({1, carries.size(3)}, carries.options());
  std::vector<at::Tensor> rows;
  for (int64_t layer = 0; layer < carries.size(0); ++layer) {
    for (at::Tensor Carry::*member : {&Carry::k, &Carry::v}) {
      for (SequenceState* const state : states) {
        const at::Tensor row = state->carry(layer).*member;
        rows.push_back(row.defined() ? row.to(carries.options()) : none);
      }
      if (absent > 0) rows.push_back(none.expand({absent, -1}));
    }
  }
  carries.copy_(at::cat(rows).view_as(carries));
}

void Stepper::run(Recording& recording) {
  const auto work = [&] {
    recording.logits = models::logits(decoder_, decoder_.hidden(recording.step));
    if (!recording.step.carries.defined()) return;
    std::vector<at::Tensor> rows;
    for (const auto& [k, v] : recording.step.new_carries) {
      rows.push_back(k.defined() ? k : v);
      rows.push_back(v.defined() ? v : k);
    }
    recording.new_carries = at::stack(rows).view_as(recording.step.carries);
  };
  // The first time loads kernels, and many a batch is there for one step only.
  if (recording.has_run && recording.is_worth_trying && decoder_.device().is_cuda()) {
    recording.is_worth_trying = false;
    try {
      recording.work = tensor::record(decoder_.device(), work);
    } catch (
        const c10::OutOfMemoryError&) {  // a recording needs memory of its own, a step does not
    }
  }
  if (recording.work) {
    recording.work();
  } else {
    work();
    recording.has_run = true;
  }
}

void Stepper::keep_carries(Recording& recording) {
  if (recording.new_carries.defined()) recording.last_carries = recording.new_carries.clone();
}

void Stepper::leave_carries(const Recording& recording,
                            std::span<SequenceState* const> states) const {
  if (!recording.last_carries.defined()) return;
  const AttentionMixerConfig& attention = decoder_.config().attention;
  for (int64_t layer = 0; layer < recording.last_carries.size(0); ++layer) {
    const at::Tensor rows = recording.last_carries.select(0, layer);
    const Carry carry = {.k = attention.key_shift ? rows.select(0, 0) : at::Tensor(),
                         .v = attention.value_shift ? rows.select(0, 1) : at::Tensor()};
    for (std::size_t s = 0; s < states.size(); ++s) {
      states[s]->remember_row(layer, carry, static_cast<int64_t>(s));
    }
  }
}

}  // namespace reynard::models

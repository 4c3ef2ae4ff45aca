#include "reynard/models/stepper.h"

#include "reynard/models/decoder.h"
#include "reynard/models/score.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace reynard::models {

namespace {

// Recordings that are kept: each has memory of its own. A server has one for each number of texts.
constexpr std::size_t kMostRecordings = 16;

// Tables have room for a part more than is needed, so that a text seldom outgrows its recording,
// and for no more: absent pages are looked at too.
constexpr int64_t kLeastPages = 16, kPagesPart = 8;

int64_t table_pages(int64_t pages) {
  int64_t step = kLeastPages;
  while (step * kPagesPart * 2 <= pages) step *= 2;
  return (pages + step - 1) / step * step;
}

// Makes room for a token in each cache; whatever fails, all are as before unless it is kept.
class Extended {
 public:
  explicit Extended(std::span<SequenceState* const> states) {
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
  ~Extended() { take_back(); }
  Extended(const Extended&) = delete;
  Extended& operator=(const Extended&) = delete;
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

struct Stepper::Kind {
  attention::StepShape shape;
  const void* pages = nullptr;  // where the pool has its keys
  double log_tolerance = 0;

  bool operator==(const Kind&) const = default;
};

struct Stepper::Recording {
  Kind kind;
  Step step;
  std::unique_ptr<tensor::RecordedWork> work = {};
  bool has_run = false;
  at::Tensor logits = {};  // (S, V) f32
  at::Tensor left = {};    // as Step::carries: Step::left
  at::Tensor kept = {};    // a copy of it, whose rows are the states'
};

Stepper::Stepper(Decoder& decoder, std::shared_ptr<attention::PagePool> pool)
    : decoder_(decoder), pool_(std::move(pool)) {}

Stepper::~Stepper() = default;

bool Stepper::can_serve(const Decoder& decoder) {
  return decoder.takes_steps() && !decoder.head().value.requires_grad();
}

at::Tensor Stepper::logits(std::span<const int64_t> tokens,
                           std::span<SequenceState* const> states) {
  TORCH_INTERNAL_ASSERT(!states.empty() && tokens.size() == states.size());
  const at::NoGradGuard no_grad;
  Extended extended(states);
  int64_t pages = 0;
  for (SequenceState* const state : states) {
    pages = std::max(pages, std::ssize(state->cache(0).pages(0)));
  }
  const DecoderConfig& config = decoder_.config();
  Recording& recording = recording_of({.shape = {.num_layers = config.num_layers,
                                                 .num_sequences = std::ssize(states),
                                                 .num_kv_heads = config.num_kv_heads(),
                                                 .num_pages = table_pages(pages)},
                                       .pages = pool_->keys().const_data_ptr(),
                                       .log_tolerance = config.attention.log_pruning_tolerance});
  set_inputs(recording, tokens, states);
  run(recording);
  extended.keep();
  keep_carries(recording, states);
  return recording.logits;
}

Stepper::Recording& Stepper::recording_of(const Kind& kind) {
  const auto known = std::ranges::find(recordings_, kind, &Recording::kind);
  if (known != recordings_.end()) {
    recordings_.splice(recordings_.begin(), recordings_, known);
    return recordings_.front();
  }
  // Those of a pool that has moved are of no use.
  std::erase_if(recordings_, [&](const Recording& old) { return old.kind.pages != kind.pages; });
  if (recordings_.size() == kMostRecordings) recordings_.pop_back();
  const DecoderConfig& config = decoder_.config();
  const int64_t S = kind.shape.num_sequences, L = kind.shape.num_layers;
  const at::TensorOptions ids = at::TensorOptions(decoder_.device()).dtype(at::kLong);
  at::Tensor carries;
  if (config.attention.key_shift || config.attention.value_shift) {
    carries = at::zeros({L, 2, S, config.num_kv_heads() * config.head_dim()},
                        ids.dtype(decoder_.compute_dtype()));
  }
  recordings_.push_front({.kind = kind,
                          .step = {.tables = attention::StepTables(pool_, kind.shape),
                                   .tokens = at::zeros({S}, ids),
                                   .positions = at::zeros({S}, ids),
                                   .offsets = at::arange(S, ids),
                                   .carries = carries,
                                   .left = std::vector<Carry>(L)}});
  return recordings_.front();
}

void Stepper::set_inputs(Recording& to,
                         std::span<const int64_t> tokens,
                         std::span<SequenceState* const> states) {
  const int64_t S = std::ssize(states), L = to.kind.shape.num_layers;
  const at::Tensor inputs = at::empty({2, S}, at::kLong);
  auto* const input = inputs.mutable_data_ptr<int64_t>();
  std::vector<const attention::LayerCache*> caches(L * S);
  for (int64_t s = 0; s < S; ++s) {
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
    const KeptCarry* const kept = states[s]->kept_carry(0);
    if (kept == nullptr || kept->row != s) return false;
    return (kept->rows.k.defined() ? kept->rows.k : kept->rows.v).is_alias_of(to.kept);
  };
  bool together = to.kept.defined();
  for (int64_t s = 0; together && s < S; ++s) together = is_row_of_last(s);
  if (together) {
    carries.copy_(to.kept);
    return;
  }
  const at::Tensor none = at::zeros({1, carries.size(3)}, carries.options());
  std::vector<at::Tensor> rows;
  for (int64_t layer = 0; layer < carries.size(0); ++layer) {
    for (at::Tensor Carry::*member : {&Carry::k, &Carry::v}) {
      for (SequenceState* const state : states) {
        const at::Tensor row = state->carry(layer).*member;
        rows.push_back(row.defined() ? row.to(carries.options()) : none);
      }
    }
  }
  carries.copy_(at::cat(rows).view_as(carries));
}

void Stepper::run(Recording& recording) {
  const auto work = [&] {
    recording.logits = models::logits(decoder_, decoder_.hidden(recording.step));
    if (!recording.step.carries.defined()) return;
    std::vector<at::Tensor> left;
    for (const auto& [k, v] : recording.step.left) {
      left.push_back(k.defined() ? k : v);
      left.push_back(v.defined() ? v : k);
    }
    recording.left = at::stack(left).view_as(recording.step.carries);
  };
  // The first time loads kernels, and many a batch is there for one step only.
  if (recording.has_run && !recording.work && decoder_.device().is_cuda()) {
    recording.work = tensor::record(decoder_.device(), work);
  }
  if (recording.work) {
    recording.work->replay();
  } else {
    work();
    recording.has_run = true;
  }
}

void Stepper::keep_carries(Recording& recording, std::span<SequenceState* const> states) {
  if (!recording.left.defined()) return;
  const AttentionMixerConfig& attention = decoder_.config().attention;
  recording.kept = recording.left.clone();
  for (int64_t layer = 0; layer < recording.kept.size(0); ++layer) {
    const at::Tensor rows = recording.kept.select(0, layer);
    const Carry carry = {.k = attention.key_shift ? rows.select(0, 0) : at::Tensor(),
                         .v = attention.value_shift ? rows.select(0, 1) : at::Tensor()};
    for (std::size_t s = 0; s < states.size(); ++s) {
      states[s]->remember_row(layer, carry, static_cast<int64_t>(s));
    }
  }
}

}  // namespace reynard::models

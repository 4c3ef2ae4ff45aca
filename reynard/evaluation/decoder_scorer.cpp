#include "reynard/evaluation/scorer.h"
#include "reynard/generation/generator.h"
#include "reynard/models/decoder.h"
#include "reynard/models/score.h"
#include "reynard/models/state.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace reynard::evaluation {

namespace {

// Rows whose logits exist at the same time, fewer of a large vocabulary (64 MB).
constexpr int64_t kHeadRows = 1024, kLogits = int64_t{16} << 20;

// A sequence longer than a pass goes in pieces of half a pass at most: beside a piece's activations
// there is the sequence's cache. Smaller ones would copy the cache more often.
constexpr int64_t kPiecesOfAPass = 2;

// The same weights under another pruning tolerance: tensors are shared, not copied.
models::Decoder with_pruning(models::Decoder& decoder, double log_tolerance) {
  models::DecoderConfig config = decoder.config();
  config.attention.log_pruning_tolerance = log_tolerance;
  std::map<std::string, models::Parameter> weights;
  decoder.parameters([&](const std::string& name, models::Parameter& parameter) {
    weights.emplace(name, parameter);
  });
  const int64_t capacity = std::exchange(config.memory.capacity, 0);
  models::Decoder other(config, 0, at::kMeta);
  other.set_memory_limits(capacity, config.memory.top_k);
  other.set_compute_dtype(decoder.compute_dtype());
  other.parameters(
      [&](const std::string& name, models::Parameter& parameter) { parameter = weights.at(name); });
  const models::MemoryStore& store = decoder.memory_store();
  other.set_memory_place(store.place, store.coded);
  return other;
}

struct Recorder final : models::Observer {
  Probed probed;
  bool wants(int64_t /*layer*/) override { return true; }
  void attention(int64_t layer, const models::AttentionView& view) override {
    probed.layers.resize(std::max<size_t>(probed.layers.size(), layer + 1));
    probed.layers[layer] = models::copied_to_cpu(view);
  }
};

// The sequences of one forward pass and which of its rows predict scored tokens.
struct Batch {
  std::vector<int64_t> tokens, offsets, rows, targets;

  void add(const Score& score) {
    const auto begin = static_cast<int64_t>(tokens.size());
    offsets.push_back(begin);
    tokens.insert(tokens.end(), score.context.begin(), score.context.end());
    // The last token predicts nothing that is asked for.
    tokens.insert(tokens.end(), score.continuation.begin(), score.continuation.end() - 1);
    const auto context = static_cast<int64_t>(score.context.size());
    const auto size = static_cast<int64_t>(score.continuation.size());
    for (int64_t i = context == 0 ? 1 : 0; i < size; ++i) {
      rows.push_back(begin + context + i - 1);
      targets.push_back(score.continuation[i]);
    }
  }
};

// Requests of one kind, and where they stand among all.
template <class Query>
struct Asked {
  std::vector<const Query*> queries;
  std::vector<size_t> places;

  void add(const Query& query, size_t place) {
    queries.push_back(&query);
    places.push_back(place);
  }
};

class DecoderScorer final : public Scorer {
 public:
  DecoderScorer(models::Decoder& decoder,
                int64_t batch_tokens,
                std::shared_ptr<const models::StateSnapshot> memories)
      : decoder_(decoder), batch_tokens_(batch_tokens), memories_(std::move(memories)) {
    tensor::check_value(batch_tokens >= 1, "eval", "batch_tokens", batch_tokens, ">= 1");
  }

  std::vector<Response> answer(std::span<const Request> requests) override {
    const at::NoGradGuard no_grad;
    std::vector<Response> responses(requests.size());
    std::map<double, Asked<Score>> scores;  // by pruning tolerance
    Asked<Generate> texts;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (const auto* score = std::get_if<Score>(&requests[i].query)) {
        scores[score->log_pruning_tolerance.value_or(own_tolerance())].add(*score, i);
      } else if (const auto* text = std::get_if<Generate>(&requests[i].query)) {
        texts.add(*text, i);
      } else {
        responses[i] = look_inside(std::get<Probe>(requests[i].query));
      }
    }
    const auto put = [&](const std::vector<size_t>& places, auto answers) {
      for (size_t i = 0; i < places.size(); ++i) responses[places[i]] = std::move(answers[i]);
    };
    for (const auto& [tolerance, asked] : scores) {
      put(asked.places, score_all(decoder_with(tolerance), asked.queries));
    }
    put(texts.places, write_texts(texts.queries));
    return responses;
  }

  std::string cannot_answer(const Request& request) const override {
    const bool looks_inside = std::holds_alternative<Probe>(request.query);
    return memories_ && looks_inside ? "what attention reads of a saved memory" : "";
  }

 private:
  double own_tolerance() const { return decoder_.config().attention.log_pruning_tolerance; }

  models::Decoder& decoder_with(double log_tolerance) {
    if (log_tolerance == own_tolerance()) return decoder_;
    const auto found = others_.find(log_tolerance);
    if (found != others_.end()) return found->second;
    return others_.emplace(log_tolerance, with_pruning(decoder_, log_tolerance)).first->second;
  }

  std::vector<Scored> score_all(models::Decoder& decoder,
                                std::span<const Score* const> queries) const {
    std::vector<Scored> scored;
    while (!queries.empty()) {
      Batch batch;
      size_t count = 0;
      for (; count < queries.size(); ++count) {
        const Score& score = *queries[count];
        tensor::check_value(!score.continuation.empty(), "eval", "continuation", "", "not empty");
        const size_t size = score.context.size() + score.continuation.size();
        const bool is_full = static_cast<int64_t>(batch.tokens.size() + size) > batch_tokens_;
        if (count > 0 && (is_full || memories_)) break;
        batch.add(score);
      }
      for (Scored& one : run(decoder, batch, queries.first(count))) {
        scored.push_back(std::move(one));
      }
      queries = queries.subspan(count);
    }
    return scored;
  }

  // (R, C): the rows that predict scored tokens.
  at::Tensor scored_hidden(models::Decoder& decoder, const Batch& batch) const {
    const at::Tensor tokens = at::tensor(batch.tokens, at::kLong);
    const at::Tensor rows = at::tensor(batch.rows, at::kLong);
    if (tokens.size(0) > batch_tokens_ || memories_) {
      TORCH_INTERNAL_ASSERT(batch.offsets.size() == 1);
      return hidden_in_pieces(decoder, tokens, rows);
    }
    const at::Tensor hidden = decoder.hidden(tokens, at::tensor(batch.offsets, at::kLong));
    return hidden.index_select(0, rows.to(hidden.device()));
  }

  // The same of one sequence that goes in pieces: each reads the keys and values of those before it
  // from a cache, so that no more than a piece's activations exist. With a memory a piece begins
  // where the last local context does.
  at::Tensor hidden_in_pieces(models::Decoder& decoder,
                              const at::Tensor& tokens,
                              const at::Tensor& rows) const {
    const models::DecoderConfig& config = decoder.config();
    const int64_t length = tokens.size(0);
    const bool has_memory = config.has_memory();
    // Taken at once: a pool that grows holds its pages twice while it copies them.
    const int64_t pages = (length + attention::kPageTokens - 1) / attention::kPageTokens *
                          config.num_layers * config.num_kv_heads();
    const auto pool = models::make_page_pool(decoder, has_memory ? 0 : pages);
    pool->reserve();
    models::SequenceState state = memories_ ? models::SequenceState::restore(pool, *memories_)
                                            : models::SequenceState(decoder, pool);
    const std::array<models::SequenceState*, 1> states = {&state};
    const at::Tensor offsets = at::zeros({1}, at::kLong);
    const int64_t last = has_memory ? config.last_context_begin(length) : length;
    std::vector<at::Tensor> kept;
    int64_t begin = 0;
    if (has_memory) {
      begin = remember(decoder, tokens, last, rows.min().item<int64_t>(), state);
    }
    // Of one size: a rest of few tokens would read the whole cache once more.
    const int64_t most = std::max<int64_t>(batch_tokens_ / kPiecesOfAPass, 1);
    const int64_t num_pieces = (length - begin + most - 1) / most;
    const int64_t piece = (length - begin + num_pieces - 1) / num_pieces;
    for (int64_t first = begin; first < length;) {
      if (has_memory && first == last) decoder.start_window(state);
      const int64_t end = std::min(first + piece, first < last ? last : length);
      const at::Tensor hidden =
          decoder.hidden(tokens.narrow(0, first, end - first), offsets, states);
      state.check_memories();
      const at::Tensor here = rows.ge(first).logical_and(rows.lt(end));
      const at::Tensor piece_rows = rows.masked_select(here) - first;
      kept.push_back(hidden.index_select(0, piece_rows.to(hidden.device())));
      first = end;
    }
    return at::cat(kept);
  }

  // Whole local contexts before the first row that is asked for are only remembered. Returns their
  // tokens. last: where the last context begins, or 0.
  int64_t remember(models::Decoder& decoder,
                   const at::Tensor& tokens,
                   int64_t last,
                   int64_t first_row,
                   models::SequenceState& state) const {
    const int64_t window = decoder.config().memory.window;
    const int64_t end = last > 0 && first_row >= last ? last : first_row / window * window;
    const int64_t piece = std::max<int64_t>(batch_tokens_ / window, 1) * window;
    state.expect(tokens.size(0));
    for (int64_t first = 0; first < end; first += piece) {
      decoder.remember(tokens.narrow(0, first, std::min(piece, end - first)), state);
    }
    return end;
  }

  // queries: those that the batch holds.
  std::vector<Scored> run(models::Decoder& decoder,
                          const Batch& batch,
                          std::span<const Score* const> queries) const {
    const Scored rows =
        batch.rows.empty() ? Scored{} : score_rows(decoder, scored_hidden(decoder, batch), batch);
    std::vector<Scored> scored;
    size_t next = 0;
    for (const Score* score : queries) {
      Scored& one = scored.emplace_back();
      for (size_t t = 0; t < score->continuation.size(); ++t) {
        const bool unscored = t == 0 && score->context.empty();
        one.logprobs.push_back(unscored ? std::nanf("") : rows.logprobs[next]);
        one.hits.push_back(unscored ? 0 : rows.hits[next]);
        next += unscored ? 0 : 1;
      }
    }
    return scored;
  }

  // hidden (R, C): as scored_hidden. Returns all R rows, one behind the other.
  static Scored score_rows(models::Decoder& decoder, const at::Tensor& hidden, const Batch& batch) {
    Scored rows;
    const at::Tensor targets = at::tensor(batch.targets, at::kLong);
    const int64_t most = std::clamp<int64_t>(kLogits / decoder.config().vocab_size, 1, kHeadRows);
    for (int64_t first = 0; first < hidden.size(0); first += most) {
      const int64_t count = std::min(most, hidden.size(0) - first);
      const at::Tensor logits = models::logits(decoder, hidden.narrow(0, first, count));
      const at::Tensor target = targets.narrow(0, first, count).to(logits.device());
      const at::Tensor chosen =
          at::log_softmax(logits, -1).gather(-1, target.unsqueeze(-1)).squeeze(-1).cpu();
      const at::Tensor hit = logits.argmax(-1).eq(target).cpu();
      const float* p = chosen.const_data_ptr<float>();
      const bool* h = hit.const_data_ptr<bool>();
      rows.logprobs.insert(rows.logprobs.end(), p, p + count);
      rows.hits.insert(rows.hits.end(), h, h + count);
    }
    return rows;
  }

  // Texts are written together as long as their prompts and what may follow them are no more than
  // batch_tokens: that bounds their caches. A longer one is written alone.
  std::vector<Generated> write_texts(std::span<const Generate* const> queries) const {
    std::vector<Generated> written;
    while (!queries.empty()) {
      std::vector<generation::Prompt> prompts;
      int64_t tokens = 0;
      for (const Generate* query : queries) {
        tokens += static_cast<int64_t>(query->prompt.size()) + query->max_tokens;
        if (!prompts.empty() && tokens > batch_tokens_) break;
        generation::Prompt& prompt = prompts.emplace_back();
        prompt.tokens = query->prompt;
        prompt.options.max_tokens = query->max_tokens;
        prompt.options.sampler.temperature = query->temperature;
        prompt.options.sampler.seed = query->seed;
        prompt.options.stop = query->stop;
        prompt.options.stop_after_text = query->stop_after_text;
      }
      for (std::vector<int64_t>& text : generation::generate(decoder_, prompts, memories_)) {
        written.push_back({std::move(text)});
      }
      queries = queries.subspan(prompts.size());
    }
    return written;
  }

  Probed look_inside(const Probe& query) {
    Recorder recorder;
    decoder_with(query.log_pruning_tolerance.value_or(own_tolerance()))
        .hidden(at::tensor(query.tokens, at::kLong),
                at::zeros({1}, at::kLong),
                {},
                {.observer = &recorder});
    return std::move(recorder.probed);
  }

  models::Decoder& decoder_;
  int64_t batch_tokens_;
  std::shared_ptr<const models::StateSnapshot> memories_;
  std::map<double, models::Decoder> others_;
};

}  // namespace

std::unique_ptr<Scorer> make_decoder_scorer(models::Decoder& decoder,
                                            int64_t batch_tokens,
                                            std::shared_ptr<const models::StateSnapshot> memories) {
  return std::make_unique<DecoderScorer>(decoder, batch_tokens, std::move(memories));
}

}  // namespace reynard::evaluation

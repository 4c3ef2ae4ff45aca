// Requests answered by a small random decoder, against its plain forward pass.

#include "reynard/evaluation/attention_maps.h"
#include "reynard/evaluation/attention_rows.h"
#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/registry.h"
#include "reynard/evaluation/scorer.h"
#include "reynard/knn/memory.h"
#include "reynard/models/decoder.h"
#include "reynard/models/saved_memory.h"
#include "reynard/models/score.h"
#include "reynard/tensor/check.h"
#include "tests/evaluation/small_decoder.h"
#include "tests/support/compare.h"
#include "tests/support/corpus.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/tensor_memory.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace reynard::evaluation {
namespace {

std::vector<int64_t> tokens_from(int64_t seed, int64_t count) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back((seed * 31 + i * i * 7 + i) % 50);
  return tokens;
}

// Log-probabilities and hits of tokens[1..] from one forward pass over the whole sequence.
struct Plain {
  at::Tensor logprobs, hits;
};
Plain plain_scores(models::Decoder& decoder, const std::vector<int64_t>& tokens) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = at::tensor(tokens, at::kLong);
  // The last token predicts nothing; where it counts, a memory's last context would begin later.
  const at::Tensor logits = models::logits(
      decoder, decoder.hidden(ids.narrow(0, 0, ids.size(0) - 1), at::zeros({1}, at::kLong)));
  const at::Tensor next = ids.narrow(0, 1, ids.size(0) - 1);
  return {at::log_softmax(logits, -1).gather(-1, next.unsqueeze(-1)).squeeze(-1),
          logits.argmax(-1).eq(next)};
}

// With a memory long texts are read in chunks of batch_tokens, whatever its contexts are.
models::DecoderConfig memory_config(int64_t last_context) {
  models::DecoderConfig config = small_decoder();
  config.mixer = "memory_attention";
  config.memory.window = 8;
  config.memory.last_context = last_context;
  config.memory.layers = {0};
  return config;
}

class DecoderScorerOf : public testing::TestWithParam<models::DecoderConfig> {};

TEST_P(DecoderScorerOf, ScoresEqualAPlainForwardPassHoweverTheyAreBatched) {
  models::Decoder decoder(GetParam(), 1);
  std::vector<Request> requests;
  for (int64_t i = 0; i < 5; ++i) {
    Score score;
    score.context = tokens_from(i, 7 * i);  // the first one has none
    score.continuation = tokens_from(i + 10, 20 + i);
    requests.push_back({std::to_string(i), {}, score});
  }
  for (const int64_t batch_tokens : {1, 64, 100000}) {
    const auto responses = make_decoder_scorer(decoder, batch_tokens)->answer(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto& score = std::get<Score>(requests[i].query);
      const auto& scored = std::get<Scored>(responses[i]);
      std::vector<int64_t> tokens = score.context;
      tokens.insert(tokens.end(), score.continuation.begin(), score.continuation.end());
      const Plain plain = plain_scores(decoder, tokens);
      ASSERT_EQ(scored.logprobs.size(), score.continuation.size());
      for (size_t t = 0; t < score.continuation.size(); ++t) {
        const auto row = static_cast<int64_t>(score.context.size() + t) - 1;
        if (row < 0) {
          EXPECT_TRUE(std::isnan(scored.logprobs[t]));
          continue;
        }
        // Matrix products of another shape may round differently.
        EXPECT_NEAR(scored.logprobs[t], plain.logprobs[row].item<float>(), 2e-5);
        EXPECT_EQ(scored.hits[t] != 0, plain.hits[row].item<bool>());
      }
    }
  }
}

// Of the shape of a model whose cache is half of what a pass takes.
TEST(DecoderScorer, PiecesOfALongTextTakeNoMoreThanItsWholePass) {
  models::DecoderConfig config = small_decoder();
  config.hidden_size = 192;
  config.num_layers = 6;
  config.attention.num_heads = 3;
  config.attention.qk_norm = models::QKNorm::kPerHead;
  config.attention.output_gate = models::OutputGate::kSigmoid;
  config.attention.key_shift = config.attention.value_shift = true;
  models::Decoder decoder(config, 1);
  decoder.set_compute_dtype(at::kBFloat16);
  const std::vector<Request> requests{
      {"long", {}, Score{tokens_from(1, 3000), tokens_from(2, 1000)}}};
  const auto peak = [&](int64_t batch_tokens) {
    const auto scorer = make_decoder_scorer(decoder, batch_tokens);
    return test::peak_tensor_bytes([&] { scorer->answer(requests); });
  };
  const int64_t whole = peak(4000);
  EXPECT_LE(peak(2000), whole);
  EXPECT_LE(peak(1000), whole);
}

// Logits of a large vocabulary are many times the activations of their rows.
TEST(DecoderScorer, LogitsOfALargeVocabularyAreFewAtATime) {
  models::DecoderConfig config = small_decoder();
  config.vocab_size = 100000;
  models::Decoder decoder(config, 1);
  const std::vector<Request> requests{{"text", {}, Score{{1}, tokens_from(2, 1500)}}};
  const auto scorer = make_decoder_scorer(decoder, 2000);
  EXPECT_LE(test::peak_tensor_bytes([&] { scorer->answer(requests); }), int64_t{200} << 20);
}

TEST_P(DecoderScorerOf, TextsAreTheSameHoweverManyAreWrittenTogether) {
  models::Decoder decoder(GetParam(), 1);
  std::vector<Request> requests;
  for (int64_t i = 0; i < 6; ++i) {
    Generate query;
    query.prompt = tokens_from(i, 1 + 13 * i);
    query.max_tokens = 3 + i % 3;
    query.stop = {i};  // some end early
    query.temperature = i == 4 ? 0.7 : 0;
    query.seed = 5;
    requests.push_back({std::to_string(i), {}, query});
  }
  std::vector<std::vector<int64_t>> alone;
  for (const Request& request : requests) {
    const auto response = make_decoder_scorer(decoder, 1)->answer(std::span(&request, 1));
    alone.push_back(std::get<Generated>(response[0]).tokens);
    EXPECT_LE(alone.back().size(), 5U);
  }
  for (const int64_t batch_tokens : {1, 60, 100000}) {
    const auto together = make_decoder_scorer(decoder, batch_tokens)->answer(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(std::get<Generated>(together[i]).tokens, alone[i]) << i << " of " << batch_tokens;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         DecoderScorerOf,
                         testing::Values(small_decoder(), memory_config(0), memory_config(6)));

TEST(DecoderScorer, PruningOfARequestChangesOnlyThatRequest) {
  models::DecoderConfig config = small_decoder();
  config.attention.forget_gate = models::ForgetGate::kFixed;
  config.attention.decay_time_min = 2;  // forgets within a few tokens: nearly all can be pruned
  config.attention.decay_time_max = 4;
  models::Decoder decoder(config, 1);
  Score own;
  own.context = {1};
  own.continuation = tokens_from(3, 600);
  Score loose = own;
  loose.log_pruning_tolerance = -1;  // drops up to e^-1 of the mass: the loss must move
  Score tight = own;
  tight.log_pruning_tolerance = -14;
  const auto scorer = make_decoder_scorer(decoder, 4096);
  const std::vector<Request> requests{{"own", {}, own}, {"loose", {}, loose}, {"tight", {}, tight}};
  const auto responses = scorer->answer(requests);
  const auto& unpruned = std::get<Scored>(responses[0]).logprobs;
  const auto& loosely = std::get<Scored>(responses[1]).logprobs;
  const auto& tightly = std::get<Scored>(responses[2]).logprobs;
  EXPECT_EQ(unpruned.size(), 600);
  double loose_change = 0;
  double tight_change = 0;
  for (size_t i = 0; i < unpruned.size(); ++i) {
    loose_change = std::max(loose_change, std::abs(double{loosely[i]} - unpruned[i]));
    tight_change = std::max(tight_change, std::abs(double{tightly[i]} - unpruned[i]));
  }
  EXPECT_LT(tight_change, 1e-3);
  EXPECT_EQ(decoder.config().attention.log_pruning_tolerance, 0);
  Probe probe{tokens_from(3, 600), -10.0};
  const std::vector<Request> look{{"probe", {}, probe}};
  const std::vector<Response> looked = scorer->answer(look);
  const auto& layers = std::get<Probed>(looked[0]).layers;
  ASSERT_EQ(layers.size(), 2);
  // Of 2 + 4 + 6 + 8 + 10 tiles of 128 x 64 each of the five query blocks keeps its two diagonal
  // ones and, but for the first, at most the two before (the pass of a decay time of 4 tokens is
  // exp(-16) after one): at most 18 of 30.
  for (const double share : models::pruned_tiles(layers[0])) EXPECT_GE(share, 12.0 / 30);
}

TEST(DecoderScorer, GeneratesWithTheModel) {
  models::Decoder decoder(small_decoder(), 1);
  Generate query;
  query.prompt = tokens_from(1, 9);
  query.max_tokens = 5;
  const std::vector<Request> requests{{"text", {}, query}};
  const auto responses = make_decoder_scorer(decoder, 64)->answer(requests);
  const auto& text = std::get<Generated>(responses[0]).tokens;
  ASSERT_EQ(text.size(), 5);
  // Greedy: every token is a hit when scored.
  Score check{query.prompt, text, {}};
  const std::vector<Request> checks{{"check", {}, check}};
  const auto checked = make_decoder_scorer(decoder, 64)->answer(checks);
  for (const uint8_t hit : std::get<Scored>(checked[0]).hits) EXPECT_EQ(hit, 1);
  // At the beginning such an id is text.
  const auto other = std::find_if(text.begin(), text.end(), [&](auto id) { return id != text[0]; });
  query.stop_after_text = {text[0]};
  const std::vector<Request> stops{{"stops", {}, query}};
  const auto stopped = make_decoder_scorer(decoder, 64)->answer(stops);
  EXPECT_EQ(std::get<Generated>(stopped[0]).tokens,
            std::vector<int64_t>(text.begin(), std::find(other, text.end(), text[0])));
}

// Every text begins with the memories that are given, whatever is asked beside it.
TEST(DecoderScorer, TextsBeginWithASavedMemory) {
  const at::NoGradGuard no_grad;
  models::Decoder decoder(memory_config(0), 2);
  const std::vector<int64_t> before = tokens_from(5, 32), text = tokens_from(6, 40);
  models::SequenceState state(decoder, models::make_page_pool(decoder));
  decoder.remember(at::tensor(before, at::kLong), state);
  const test::TempDir folder;
  models::save_memories(decoder, state, {"model", "text"}, folder.path());
  const auto memories = std::make_shared<models::StateSnapshot>(
      models::load_memories(decoder, "model", folder.path()));

  const Score after{.context = {text.begin(), text.begin() + 10},
                    .continuation = {text.begin() + 10, text.end()}};
  Score whole = after;
  whole.context.insert(whole.context.begin(), before.begin(), before.end());
  Generate more{.prompt = text, .max_tokens = 20, .stop = {}};
  Generate whole_more = more;
  whole_more.prompt.insert(whole_more.prompt.begin(), before.begin(), before.end());
  const auto requests = [](const auto&... queries) {
    std::vector<Request> all(sizeof...(queries));
    size_t i = 0;
    ((all[i++].query = queries), ...);
    return all;
  };
  const std::vector<Request> asked = requests(after, after, more);
  const auto expected = make_decoder_scorer(decoder, 1000)->answer(requests(whole, whole_more));
  for (const int64_t batch_tokens : {16, 1000}) {
    const auto answers = make_decoder_scorer(decoder, batch_tokens, memories)->answer(asked);
    for (const size_t i : {0, 1}) {
      const auto& logprobs = std::get<Scored>(answers[i]).logprobs;
      for (size_t t = 0; t < logprobs.size(); ++t) {
        EXPECT_NEAR(logprobs[t], std::get<Scored>(expected[0]).logprobs[t], 1e-4) << t;
      }
    }
    EXPECT_EQ(std::get<Generated>(answers[2]).tokens, std::get<Generated>(expected[1]).tokens);
  }
  const auto scorer = make_decoder_scorer(decoder, 1000, memories);
  EXPECT_EQ(scorer->cannot_answer(asked[0]), "");
  EXPECT_NE(scorer->cannot_answer(requests(Probe{.tokens = text})[0]), "");
}

// Such numbers would be left out of means, as tokens that are not scored are.
TEST(DecoderScorer, LossesThatAreNotFiniteAreAnError) {
  Corpus corpus = test::corpus_of(tokens_from(5, 200), {200});
  EvaluationConfig config;
  config.perplexity = {.window = 40, .stride = 40, .tokens = 100};
  const test::TempDir folder;
  const auto error = [&](models::Decoder& decoder,
                         const std::shared_ptr<const models::StateSnapshot>& memories) {
    const test::TempDir results;
    const auto scorer = make_decoder_scorer(decoder, 1000, memories);
    const auto task = task_named("perplexity").make(corpus, config, {});
    return test::error_of([&] { evaluate(*scorer, *task, {.folder = results.path()}); });
  };
  models::Decoder decoder(memory_config(0), 2);
  EXPECT_EQ(error(decoder, {}), "no error");

  knn::Memory memory({.of = {.model = "model",
                             .layer = 0,
                             .num_heads = decoder.config().num_kv_heads(),
                             .head_dim = decoder.config().head_dim(),
                             .dtype = at::kFloat}});
  const at::Tensor keys = at::full({1, 3, memory.options().of.num_heads, 16}, 3e38);
  memory.add(keys, keys);
  memory.save(models::memory_file(folder.path(), 0));
  const auto memories = std::make_shared<models::StateSnapshot>(
      models::load_memories(decoder, "model", folder.path()));
  EXPECT_SAYS(
      error(decoder, memories),
      "perplexity: the log-probability of token 1 of sample \"windowed 0\" is nan; expected a "
      "finite number: weights or a memory that hold NaN or numbers that are too large");
  {
    const at::NoGradGuard no_grad;
    decoder.parameters([](const std::string& /*name*/, models::Parameter& parameter) {
      parameter.value.fill_(std::nan(""));
    });
  }
  EXPECT_SAYS(error(decoder, {}),
              "perplexity: the log-probability of token 1 of sample \"windowed 0\" is nan");
  const test::TempDir results;
  config.inside = {.length = 64};
  const auto inside = task_named("inside").make(corpus, config, {});
  EXPECT_SAYS(test::error_of([&] {
                evaluate(*make_decoder_scorer(decoder, 1000), *inside, {.folder = results.path()});
              }),
              "inside: queries, keys or gates of layer 1 are not finite");
}

// What a look inside shows of gates that stop where a local context begins.
TEST(DecoderScorer, AMemoryThatDoesNotDecayIsShownWithItsContext) {
  models::DecoderConfig config = memory_config(0);
  config.attention.forget_gate = models::ForgetGate::kFull;
  models::Decoder decoder(config, 1);
  const std::vector<Request> requests{{"probe", {}, Probe{.tokens = tokens_from(3, 20)}}};
  const auto answers = make_decoder_scorer(decoder, 1000)->answer(requests);
  const auto& layers = std::get<Probed>(answers[0]).layers;
  ASSERT_EQ(layers.size(), 2);
  const at::Tensor sums = layers[0].log_gate.to(at::kDouble).cumsum(0).transpose(0, 1);
  int heads = 0;
  // Contexts of 8 tokens: the last query's begins at 16.
  for_attention_rows(layers[0], at::tensor({19}, at::kLong), [&](const AttentionRows& rows) {
    const at::Tensor decay = rows.log_decay[0];
    EXPECT_BITWISE_EQUAL(decay.narrow(0, 0, 16), at::zeros({16}));
    const at::Tensor c = sums[rows.head];
    EXPECT_TENSORS_NEAR(
        decay.narrow(0, 16, 4), (c[19] - c.narrow(0, 16, 4)).to(at::kFloat), 1e-6, 1e-6);
    EXPECT_LT(decay[16].item<float>(), 0);
    EXPECT_TRUE(at::isfinite(rows.logits).all().item<bool>());
    ++heads;
  });
  EXPECT_EQ(heads, 2);
  // Without a memory a layer shows its context alone.
  EXPECT_EQ(layers[1].first_key[19].item<int32_t>(), 16);
  EXPECT_FALSE(layers[1].first_decayed.defined());
}

// A run that was killed between batches, or in the middle of a line, goes on to the same samples.
TEST(DecoderScorer, WrittenSamplesAreTheSameAfterAKill) {
  models::DecoderConfig model = small_decoder();
  model.vocab_size = 258;
  models::Decoder decoder(model, 2);
  Corpus corpus = test::corpus_of(tokens_from(5, 3000), {3000});
  corpus.bos = 1;
  EvaluationConfig config;
  config.passkey = {.lengths = {400, 500}, .trials = 3, .max_tokens = 6};
  const auto task = task_named("passkey").make(corpus, config, {});
  const test::TempDir folder;
  const auto lines_of = [&](const std::string& name, int64_t batch_tokens) {
    const auto scorer = make_decoder_scorer(decoder, batch_tokens);
    const auto summary =
        evaluate(*scorer, *task, {.folder = folder / name, .batch_tokens = batch_tokens});
    EXPECT_EQ(summary.at("metrics").at("samples"), 6);
    return test::read_file(folder / (name + "/passkey.jsonl"));
  };
  const std::string one_by_one = lines_of("one", 1);
  EXPECT_EQ(lines_of("together", 100000), one_by_one);
  std::filesystem::create_directories(folder / "killed");
  for (const size_t left : {one_by_one.size() / 2, one_by_one.size() - 3}) {
    test::write_file(folder / "killed/passkey.jsonl", one_by_one.substr(0, left));
    EXPECT_EQ(lines_of("killed", 1000), one_by_one);
  }
  // --resume: what other settings have measured is not replaced.
  config.passkey.trials = 2;
  const auto fewer = task_named("passkey").make(corpus, config, {});
  const auto scorer = make_decoder_scorer(decoder, 1000);
  EXPECT_THROW(evaluate(*scorer, *fewer, {.folder = folder / "one", .only_resume = true}), Error);
  EXPECT_EQ(test::read_file(folder / "one/passkey.jsonl"), one_by_one);
  EXPECT_EQ(evaluate(*scorer, *task, {.folder = folder / "one", .only_resume = true})
                .at("effort")
                .at("reused_samples"),
            6);
}

TEST(CellMaps, EqualTheDenseMatrices) {
  const int64_t N = 96;
  const int64_t H = 4;
  models::AttentionView view;
  view.q = at::randn({N, H, 8});
  view.k = at::randn({N, 2, 8});
  view.log_gate = -at::randn({N, H}).abs() * 0.1;
  const CellMaps maps = cell_maps(view, {.cells = 8});

  const at::Tensor k = view.k.repeat_interleave(2, 1);
  const at::Tensor sums = view.log_gate.to(at::kDouble).cumsum(0).transpose(0, 1);
  const at::Tensor bias = sums.unsqueeze(2) - sums.unsqueeze(1);
  const at::Tensor index = at::arange(N, at::kLong);
  const at::Tensor visible = index.unsqueeze(0) <= index.unsqueeze(1);
  const at::Tensor logits =
      at::einsum("ihd,jhd->hij", {view.q, k}).to(at::kDouble) / std::sqrt(8.0) + bias;
  const at::Tensor weights =
      at::softmax(at::where(visible, logits, -std::numeric_limits<double>::infinity()), -1);
  const at::Tensor cells = weights.reshape({H, 8, 12, 8, 12}).sum(4).mean(2);
  EXPECT_TENSORS_NEAR(maps.attention.to(at::kDouble), cells, 1e-6, 1e-5);
  const at::Tensor decay = at::where(visible, bias.exp(), 0.0).reshape({H, 8, 12, 8, 12});
  const at::Tensor pairs = visible.to(at::kDouble).reshape({8, 12, 8, 12}).sum(3).sum(1);
  const at::Tensor mean = at::where(pairs > 0, decay.sum(4).sum(2) / pairs, 0.0);
  EXPECT_TENSORS_NEAR(at::tril(maps.decay.to(at::kDouble)), mean, 1e-6, 1e-5);
  // Every query's attention sums to one.
  EXPECT_TENSORS_NEAR(maps.attention.sum(-1), at::zeros({H, 8}) + 1, 1e-5, 0);
}

// Every task of the registry runs on a model and gives a summary.
TEST(Tasks, AllRunOnADecoder) {
  models::DecoderConfig model = small_decoder();
  model.vocab_size = 258;  // prompts of bytes
  model.attention.qk_norm = models::QKNorm::kPerHead;
  models::Decoder decoder(model, 2);
  Corpus corpus = test::corpus_of(tokens_from(5, 1500), {700, 1500});
  corpus.bos = 1;
  EvaluationConfig config;
  config.per_position_loss = {.length = 128, .rows = 3};
  config.forgetting_curve = {.length = 32, .points = 4, .repeats = 3};
  config.pruning = {.length = 256, .rows = 2};
  config.inside = {.length = 256, .gate_tokens = 40, .cells = 16};
  config.attention_mass = {.contexts = {1, 2}, .length = 16, .samples = 2};
  config.text_sample = {.prompt = 20, .tokens = 8};
  config.needle = {.longest = 600, .lengths = 2, .depths = 2, .max_tokens = 2};
  config.passkey = {.lengths = {400}, .trials = 2, .max_tokens = 2};
  config.dictionary.lengths = {100};
  config.dictionary.query_tokens = 50;
  config.dictionary.repeats = 2;
  config.perplexity.tokens = 500;
  config.perplexity.streams = 2;
  const test::TempDir words;
  std::string list;
  for (int i = 0; i < 40; ++i) list += "w" + std::to_string(i) + "\n";
  test::write_file(words / "words.txt", list);
  test::write_file(words / "questions.jsonl",
                   "{\"question\": \"a?\", \"answer\": \"b\"}\n{\"question\": \"c?\", \"answer\": "
                   "\"d\"}\n");
  config.few_shot.train = (words / "questions.jsonl").string();
  config.few_shot.test = config.few_shot.train;
  config.few_shot.lengths = {100};
  config.few_shot.draws = 2;
  test::write_file(words / "triviaqa.jsonl", R"({"input": "a", "context": "b", "answers": ["c"]})");
  config.longbench.data = words.path().string();
  config.ruler.words = (words / "words.txt").string();
  config.ruler.essays = config.ruler.words;
  config.ruler.tasks = {"niah_multikey_3", "vt"};
  config.ruler.lengths = {2000};
  config.ruler.samples = 1;
  config.babilong = {.tasks = {"qa4"}, .lengths = {1800}, .samples = 2, .max_tokens = 2};
  const test::TempDir folder;
  const auto scorer = make_decoder_scorer(decoder, 512);
  for (const TaskEntry& entry : tasks()) {
    SCOPED_TRACE(entry.name);
    const auto task = entry.make(corpus, config, {.train_length = 128, .forgets = true});
    EXPECT_EQ(task->name(), entry.name);
    const auto summary = evaluate(*scorer, *task, {.folder = folder.path()});
    EXPECT_EQ(summary.at("task"), entry.name);
    EXPECT_FALSE(summary.at("series").empty());
    EXPECT_TRUE(std::filesystem::exists(folder / (std::string(entry.name) + ".json")));
  }
  const auto pruning = nlohmann::json::parse(test::read_file(folder / "pruning.json"));
  EXPECT_NEAR(pruning.at("metrics").at("loss_difference").get<double>(), 0, 1e-3);
  EXPECT_EQ(pruning.at("settings").at("log_tolerance"), -10);
  EXPECT_EQ(pruning.at("series").at("pruned_share").size(), 2);
  const auto inside = nlohmann::json::parse(test::read_file(folder / "inside.json"));
  const auto& layers = inside.at("series").at("layers");
  ASSERT_EQ(layers.size(), 2);
  EXPECT_EQ(layers[0].at("attention").at(0).size(), 16 * 17 / 2);
  EXPECT_EQ(layers[0].at("gates").at(0).size(), 40);
}

}  // namespace
}  // namespace reynard::evaluation

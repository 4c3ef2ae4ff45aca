#include "reynard/evaluation/evaluate.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/config/json_file.h"
#include "reynard/evaluation/attention_rows.h"
#include "reynard/evaluation/context_limit.h"
#include "reynard/evaluation/sample_log.h"
#include "reynard/process/resident_memory.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"
#include "reynard/tensor/out_of_memory.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace reynard::evaluation {

namespace {

struct TokenCount {
  int64_t operator()(const Score& q) const {
    return static_cast<int64_t>(q.context.size() + q.continuation.size());
  }
  int64_t operator()(const Generate& q) const {
    return static_cast<int64_t>(q.prompt.size()) + q.max_tokens;
  }
  int64_t operator()(const Probe& q) const { return static_cast<int64_t>(q.tokens.size()); }
};

int64_t tokens_of(const Request& request) {
  return std::visit(TokenCount{}, request.query);
}

// Time and tokens spent in this run; earlier runs' samples are not counted. How fast a model is
// remains known from the run that asked it last.
struct Effort {
  double seconds = 0;
  int64_t tokens = 0;
};

// NaN would go on to sums that leave it out, as what is not scored, and to maps that JSON cannot
// hold.
void check_finite(const Task& task, const Request& request, const Response& response) {
  if (const auto* probed = std::get_if<Probed>(&response)) {
    for (size_t layer = 0; layer < probed->layers.size(); ++layer) {
      check_view_is_finite(probed->layers[layer], static_cast<int64_t>(layer), task.name());
    }
    return;
  }
  const auto* scored = std::get_if<Scored>(&response);
  if (scored == nullptr) return;
  // Nothing comes before the first token of all.
  const size_t first = std::get<Score>(request.query).context.empty() ? 1 : 0;
  for (size_t i = first; i < scored->logprobs.size(); ++i) {
    if (std::isfinite(scored->logprobs[i])) continue;
    throw Error(fmt::format(
        "{}: the log-probability of token {} of sample \"{}\" is {}; expected a finite number: "
        "weights or a memory that hold NaN or numbers that are too large give such",
        task.name(),
        i,
        request.id,
        scored->logprobs[i]));
  }
}

Effort answer_batch(Scorer& scorer, Task& task, const std::vector<Request>& batch, SampleLog& log) {
  Effort effort;
  const auto begin = std::chrono::steady_clock::now();
  const auto record = [&](size_t i, const Response& response) {
    effort.tokens += tokens_of(batch[i]);
    check_finite(task, batch[i], response);
    nlohmann::json line = task.sample(batch[i], response);
    line["id"] = batch[i].id;
    log.append(line);
    log.flush();  // a process that is killed loses nothing that was answered
  };
  scorer.answer_each(batch, record);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  effort.seconds = taken.count();
  return effort;
}

std::set<std::string> ids_of(const Requests& requests) {
  std::set<std::string> ids;
  for (int64_t i = 0; i < requests.size; ++i) ids.insert(requests.at(i).id);
  return ids;
}

Request first_unanswered(const Requests& requests, const SampleLog& log) {
  for (int64_t i = 0; i + 1 < requests.size; ++i) {
    Request request = requests.at(i);
    if (!log.contains(request.id)) return request;
  }
  return requests.at(requests.size - 1);
}

// Why the request does not fit; empty where the error is another.
std::string misfit_at(const Request& request, const Task& task, const std::exception& error) {
  if (dynamic_cast<const ContextLimitError*>(&error) != nullptr) {
    return fmt::format("{}: sample \"{}\" of {}: {}",
                       task.name(),
                       request.id,
                       counted(tokens_of(request), "token"),
                       error.what());
  }
  if (!tensor::is_out_of_memory(error)) return "";
  return fmt::format(
      "{}: out of memory at sample \"{}\" of {}; give a smaller --length or --batch-tokens",
      task.name(),
      request.id,
      counted(tokens_of(request), "token"));
}

struct Answered {
  Effort effort;        // of whole batches
  std::string stopped;  // why not all requests were answered; empty: they were
};

// Answers what the log does not hold yet, in batches.
Answered answer_all(Scorer& scorer,
                    Task& task,
                    const Requests& requests,
                    const EvaluateOptions& options,
                    SampleLog& log) {
  Answered answered;
  std::vector<Request> batch;
  int64_t batch_tokens = 0;
  const auto finish_batch = [&] {
    if (batch.empty()) return;
    const Effort effort = answer_batch(scorer, task, batch, log);
    answered.effort.seconds += effort.seconds;
    answered.effort.tokens += effort.tokens;
    batch.clear();
    batch_tokens = 0;
    if (options.progress) options.progress(log.size(), requests.size);
  };
  try {
    for (int64_t i = 0; i < requests.size; ++i) {
      Request request = requests.at(i);
      if (log.contains(request.id)) continue;
      const int64_t tokens = tokens_of(request);
      if (batch_tokens + tokens > options.batch_tokens) finish_batch();
      batch_tokens += tokens;
      batch.push_back(std::move(request));
    }
    finish_batch();
  } catch (const std::exception& error) {
    answered.stopped = misfit_at(first_unanswered(requests, log), task, error);
    if (answered.stopped.empty()) throw;
    if (!task.measures_part() || log.size() == 0) throw Error(answered.stopped);
  }
  return answered;
}

// effort: of this run. Where it asked for nothing, that of the earlier run that measured the same.
nlohmann::json effort_json(const Effort& effort,
                           const nlohmann::json& header,
                           const nlohmann::json& earlier) {
  bool is_known = effort.tokens == 0 && earlier.contains("effort");
  for (const auto& [key, value] : header.items()) {
    is_known = is_known && earlier.contains(key) && earlier.at(key) == value;
  }
  if (is_known && earlier.at("effort").is_object()) return earlier.at("effort");
  return {{"tokens", effort.tokens},
          {"seconds", effort.seconds},
          {"peak_memory_bytes", process::peak_resident_bytes()}};
}

void write_summary(const std::filesystem::path& path, const nlohmann::json& summary) {
  checkpoint::write_atomically(path, config::json_text(summary, 1) + "\n");
}

}  // namespace

nlohmann::json earlier_summary(const std::filesystem::path& path) {
  constexpr uintmax_t kMostBytes = uintmax_t{1} << 30;
  std::error_code absent;
  if (!std::filesystem::exists(path) || std::filesystem::file_size(path, absent) == 0) {
    return nullptr;
  }
  nlohmann::json old = config::json_object_or_null(path, kMostBytes);
  if (old.contains("task") && old.contains("metrics")) return old;
  throw Error(fmt::format(
      "eval: {} exists and is not a summary of eval; remove it or give another folder with -o",
      path.string()));
}

nlohmann::json evaluate(Scorer& scorer, Task& task, const EvaluateOptions& options) {
  std::error_code failed;
  std::filesystem::create_directories(options.folder, failed);
  if (failed) {
    throw Error(fmt::format("eval: cannot create {}: {}; give another folder with -o",
                            options.folder.string(),
                            failed.message()));
  }
  const nlohmann::json settings = task.settings();
  const nlohmann::json header{
      {"task", task.name()}, {"settings", settings}, {"identity", options.identity}};
  const std::filesystem::path file = options.folder / (task.name() + ".json");
  const std::filesystem::path samples = options.folder / (task.name() + ".jsonl");
  const nlohmann::json earlier = earlier_summary(file);
  SampleLog log(samples,
                header,
                options.only_resume ? SampleLog::Others::kKeep : SampleLog::Others::kReplace);
  if (log.replaces() && options.say) {
    options.say(
        fmt::format("{}: samples of other settings, another model or text are replaced "
                    "as soon as there is a new one",
                    samples.string()));
  }
  if (log.num_dropped() > 0 && options.say) {
    options.say(
        fmt::format("{}: {} that {} damaged or there twice {} left out; what is missing is "
                    "measured again",
                    samples.string(),
                    counted(log.num_dropped(), "line"),
                    log.num_dropped() == 1 ? "is" : "are",
                    log.num_dropped() == 1 ? "is" : "are"));
  }
  const Requests requests = task.requests();
  // Making all requests for their ids takes a while, so only where there are samples to go on from.
  if (log.size() > 0) log.keep_only(ids_of(requests));
  const int64_t reused = log.size();

  const auto [effort, stopped] = answer_all(scorer, task, requests, options, log);
  Measured measured = task.measure(log.samples());
  nlohmann::json summary = options.about;
  summary["task"] = task.name();
  summary["settings"] = settings;
  summary["identity"] = options.identity;
  summary["metrics"] = std::move(measured.metrics);
  summary["series"] = std::move(measured.series);
  summary["effort"] = effort_json(effort, header, earlier);
  summary["effort"]["samples"] = log.size();
  summary["effort"]["reused_samples"] = reused;
  if (!stopped.empty()) summary["stopped"] = stopped;
  write_summary(file, summary);
  if (!stopped.empty()) {
    throw Error(fmt::format("{}; what was measured before is in {}", stopped, file.string()));
  }
  return summary;
}

}  // namespace reynard::evaluation

#include "reynard/evaluation/registry.h"

#include "reynard/evaluation/named.h"
#include "reynard/evaluation/tasks/tasks.h"

#include <array>

namespace reynard::evaluation {

namespace {

constexpr bool kByDefault = true;
constexpr bool kOnRequest = false;

constexpr std::array kEntries = {
    TaskEntry{
        "per_position_loss", "loss by position in the text", kByDefault, make_per_position_loss},
    TaskEntry{"forgetting_curve", "copy accuracy by distance", kByDefault, make_forgetting_curve},
    TaskEntry{"pruning", "loss with and without pruning, pruned share", kByDefault, make_pruning},
    TaskEntry{"inside", "forget gates and attention maps", kByDefault, make_inside},
    TaskEntry{"text_sample", "text that the model writes", kByDefault, make_text_sample},
    TaskEntry{"attention_mass",
              "attention on the right one of many documents",
              kOnRequest,
              make_attention_mass},
    TaskEntry{"needle", "a sentence hidden in a long text", kOnRequest, make_needle},
    TaskEntry{"passkey", "a number hidden in a long text", kOnRequest, make_passkey},
    TaskEntry{
        "ruler", "13 tasks of retrieval, tracing, counting, questions", kOnRequest, make_ruler},
    TaskEntry{"babilong", "reasoning over facts hidden in a long text", kOnRequest, make_babilong},
    TaskEntry{"dictionary", "values looked up in a dictionary", kOnRequest, make_dictionary_task},
    TaskEntry{"perplexity", "documents in windows and after others", kOnRequest, make_perplexity},
    TaskEntry{"few_shot", "questions after solved examples", kOnRequest, make_few_shot},
    TaskEntry{"longbench", "questions and summaries of long texts", kOnRequest, make_longbench},
};

}  // namespace

std::span<const TaskEntry> tasks() {
  return kEntries;
}

const TaskEntry& task_named(std::string_view name) {
  return find_named("eval", kEntries, name);
}

}  // namespace reynard::evaluation

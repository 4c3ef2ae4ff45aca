#pragma once
// Constructors of the tasks in this folder; registry.cpp lists them by name.

#include "reynard/evaluation/registry.h"

namespace reynard::evaluation {

std::unique_ptr<Task> make_per_position_loss(const Corpus&,
                                             const EvaluationConfig&,
                                             const ModelFacts&);
std::unique_ptr<Task> make_forgetting_curve(const Corpus&,
                                            const EvaluationConfig&,
                                            const ModelFacts&);
std::unique_ptr<Task> make_pruning(const Corpus&, const EvaluationConfig&, const ModelFacts&);
std::unique_ptr<Task> make_inside(const Corpus&, const EvaluationConfig&, const ModelFacts&);
std::unique_ptr<Task> make_attention_mass(const Corpus&,
                                          const EvaluationConfig&,
                                          const ModelFacts&);
std::unique_ptr<Task> make_text_sample(const Corpus&, const EvaluationConfig&, const ModelFacts&);
std::unique_ptr<Task> make_needle(const Corpus&, const EvaluationConfig&, const ModelFacts&);
std::unique_ptr<Task> make_passkey(const Corpus&, const EvaluationConfig&, const ModelFacts&);
std::unique_ptr<Task> make_ruler(const Corpus&, const EvaluationConfig&, const ModelFacts&);
std::unique_ptr<Task> make_babilong(const Corpus&, const EvaluationConfig&, const ModelFacts&);
std::unique_ptr<Task> make_dictionary_task(const Corpus&,
                                           const EvaluationConfig&,
                                           const ModelFacts&);
std::unique_ptr<Task> make_perplexity(const Corpus&, const EvaluationConfig&, const ModelFacts&);
std::unique_ptr<Task> make_few_shot(const Corpus&, const EvaluationConfig&, const ModelFacts&);
std::unique_ptr<Task> make_longbench(const Corpus&, const EvaluationConfig&, const ModelFacts&);

}  // namespace reynard::evaluation

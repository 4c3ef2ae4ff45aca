#pragma once
// Constructors of the tasks in this folder; registry.cpp lists them by name.

#include "reynard/evaluation/registry.h"

#include <memory>

namespace reynard::evaluation {

MakeTask make_per_position_loss;
MakeTask make_forgetting_curve;
MakeTask make_pruning;
MakeTask make_inside;
MakeTask make_attention_mass;
MakeTask make_text_sample;
MakeTask make_needle;
MakeTask make_passkey;
MakeTask make_ruler;
MakeTask make_babilong;
MakeTask make_dictionary_task;
MakeTask make_perplexity;
MakeTask make_few_shot;
MakeTask make_longbench;

}  // namespace reynard::evaluation

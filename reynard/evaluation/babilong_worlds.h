#pragma once
// Generators of the stories of qa1 to qa5, in this order (babilong.h lists them as tasks).

#include "reynard/evaluation/babilong.h"

#include <cstdint>

namespace reynard::evaluation {

BabiStory one_fact_story(PythonRandom& random, int64_t most_facts);
BabiStory two_facts_story(PythonRandom& random, int64_t most_facts);
BabiStory three_facts_story(PythonRandom& random, int64_t most_facts);
BabiStory relation_story(PythonRandom& random, int64_t most_facts);
BabiStory giving_story(PythonRandom& random, int64_t most_facts);

}  // namespace reynard::evaluation

#define REYNARD_EXP2_LANES exp2_portable
#include "tests/attention/cpu/exp2_lanes.inl"

#define REYNARD_EXP2_LANES exp2_avx512
#include "tests/attention/cpu/exp2_lanes.inl"

#define REYNARD_EXP2_LANES exp2_avx2
#include "tests/attention/cpu/exp2_lanes.inl"

#pragma once
// Numbers of softmax in powers of two.

namespace reynard::attention::cuda {

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.69314718055994531;
// A maximum of nothing: finite, so that differences of maxima are.
constexpr float kLowest = -1e30F;
// What a row's reference is raised for: a score that exceeds it by this power of two, or a lane's
// sum of weights, so that no score of the row exceeds it by more.
constexpr float kLargestExcess = 8, kLargestSum = 256;

}  // namespace reynard::attention::cuda

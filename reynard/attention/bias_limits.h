#pragma once
// The smallest log gate; apart from bias.h because kernels include no torch header.

namespace reynard::attention {

// Log gates below this are raised to it: f = 0 then weighs earlier keys exactly zero in f32 while
// their logits differ by less than 850, and the sums stay finite.
constexpr double kSmallestLogGate = -1e3;

}  // namespace reynard::attention

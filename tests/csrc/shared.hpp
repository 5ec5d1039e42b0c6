// What the parts of the stress test share.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "learned_waits.hpp"
#include "recompute_cost.hpp"
#include "reuse_frequency.hpp"

namespace agentcache {

inline void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what.c_str());
  std::exit(1);
}

inline const ReuseFrequency kFrequency(14.4, 0.36, 9.75);
inline const RecomputeCost kCost(1e-9, 2e-5, 1e-7);
// So few that what was learnt is often halved.
inline const Learning kLearning{20, 0.5, 1.0};

}  // namespace agentcache

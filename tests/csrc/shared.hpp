// What the parts of the stress test share.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "evictors/recompute_cost.hpp"
#include "evictors/return_waits.hpp"
#include "evictors/reuse_frequency.hpp"

namespace agentcache {

inline void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what.c_str());
  std::exit(1);
}

/// Defined in damage.cpp.
void check_that_damage_is_found();

inline const ReuseFrequency kFrequency(14.4, 0.36, 9.75);
inline const RecomputeCost kCost(1e-9, 2e-5, 1e-7);
inline ReturnWaits waits(1.0);

}  // namespace agentcache

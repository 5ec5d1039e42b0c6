// What the loss of a block costs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/errors.hpp"

namespace agentcache {

/// Seconds of prefill that a lost block adds: linear in its position, and never less than a small positive value.
class RecomputeCost {
 public:
  /// Seconds per token of position, seconds, and the least cost in seconds.
  /// \throws std::invalid_argument unless all are finite and `floor_s` is above 0.
  RecomputeCost(double slope_s, double base_s, double floor_s) : slope_s_(slope_s), base_s_(base_s), floor_s_(floor_s) {
    require_argument(std::isfinite(slope_s) && std::isfinite(base_s), "slope_s and base_s must be finite");
    require_argument(floor_s > 0 && std::isfinite(floor_s), "floor_s must be finite and above 0");
  }

  /// Returns the seconds that the loss of the block at `position` costs. Above 0.
  double at(std::int64_t position) const {
    return std::max(floor_s_, slope_s_ * static_cast<double>(position) + base_s_);
  }

 private:
  double slope_s_;
  double base_s_;
  double floor_s_;
};

}  // namespace agentcache

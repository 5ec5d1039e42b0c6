// What a group is worth by its age: the expected inverse of the wait for its return.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "evictors/age_bins.hpp"
#include "evictors/survival_table.hpp"

namespace agentcache {

/// E[1 / (least wait + X − age) | X > age] for the time X of return: cost over time occupied, as the clairvoyant policy
/// has it, with the wait drawn from what was seen instead of known.
class InverseWait {
 public:
  /// Computes the value at the beginning of each bin. O(bins²). `least_wait_s` > 0 keeps a return just ahead from being
  /// worth infinitely much.
  InverseWait(const Hazard& hazard, double least_wait_s) {
    Hazard staying;
    for (std::size_t bin = 0; bin < AgeBins::kCount; ++bin) {
      staying[bin] = std::exp(-hazard[bin] * AgeBins::width_s(bin));
    }
    for (std::size_t bin = 0; bin < AgeBins::kCount; ++bin) lines_[bin].value = expect(bin, staying, least_wait_s);
    for (std::size_t bin = 0; bin + 1 < AgeBins::kCount; ++bin) {
      lines_[bin].slope = (lines_[bin + 1].value - lines_[bin].value) / AgeBins::width_s(bin);
    }
  }

  /// Returns the value at an age, interpolated. O(1).
  double at(double age_s) const {
    const double known_s = AgeBins::clamp(age_s);
    const std::size_t bin = AgeBins::bin_of(known_s);
    return lines_[bin].value + lines_[bin].slope * (known_s - AgeBins::edge_s(bin));
  }

 private:
  static constexpr double kNegligible = 1e-9;

  // At the age where `from` begins; returns are taken to come in the middle of a bin.
  static double expect(std::size_t from, const Hazard& staying, double least_wait_s) {
    double value = 0.0;
    double still_away = 1.0;
    for (std::size_t bin = from; bin < AgeBins::kCount && still_away > kNegligible; ++bin) {
      const double wait_s = AgeBins::edge_s(bin) - AgeBins::edge_s(from) + AgeBins::width_s(bin) / 2;
      value += still_away * (1 - staying[bin]) / (least_wait_s + wait_s);
      still_away *= staying[bin];
    }
    return value;
  }

  struct Line {
    double value = 0.0;  // where the bin begins
    double slope = 0.0;
  };

  std::array<Line, AgeBins::kCount> lines_;  // of each bin
};

}  // namespace agentcache

// What a group is worth by its age: the expected inverse of the wait for its return.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "evictors/age_bins.hpp"

namespace agentcache {

/// E[1 / (least wait + X − age) | X > age] for the time X of return: cost over time occupied, as the clairvoyant policy
/// has it, with the wait drawn from what was seen instead of known.
///
/// Each bin of ages is computed when it is first asked for, O(bins): groups are of few ages, and what is learnt changes
/// often.
class InverseWait {
 public:
  /// `away` is P(X > age) at each edge of the bins; `least_wait_s` > 0 keeps a return just ahead from being worth
  /// infinitely much.
  InverseWait(const std::vector<double>& away, double least_wait_s) : least_wait_s_(least_wait_s) {
    lines_.fill({kUnknown, kUnknown});
    for (std::size_t bin = 0; bin < AgeBins::kCount; ++bin) {
      staying_[bin] = away[bin] > 0 ? away[bin + 1] / away[bin] : 1.0;
    }
  }

  /// Returns the value at an age, interpolated. O(1), at first O(bins).
  double at(double age_s) {
    const double known_s = AgeBins::clamp(age_s);
    const std::size_t bin = AgeBins::bin_of(known_s);
    Line& line = lines_[bin];
    if (std::isnan(line.slope)) [[unlikely]] {
      line.slope = bin + 1 == AgeBins::kCount ? 0.0 : (value(bin + 1) - value(bin)) / AgeBins::width_s(bin);
      line.value = value(bin);
    }
    return line.value + line.slope * (known_s - AgeBins::edge_s(bin));
  }

  /// Returns no more than the value at any age between two.
  double least_between(double from_s, double to_s) {
    double least = at(from_s);
    double greatest = least;
    const auto include = [&](double value) {
      least = std::min(least, value);
      greatest = std::max(greatest, value);
    };
    include(at(to_s));
    // Straight within each bin.
    const std::size_t last = AgeBins::bin_of(AgeBins::clamp(to_s));
    for (std::size_t bin = AgeBins::bin_of(AgeBins::clamp(from_s)) + 1; bin <= last; ++bin) include(value(bin));
    return least - kRounding * greatest;
  }

 private:
  struct Line {
    double value;  // where the bin begins
    double slope;
  };

  static constexpr double kNegligible = 1e-9;
  static constexpr double kRounding = 1e-9;  // Much more than interpolation can be off.
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  double value(std::size_t bin) {
    if (std::isnan(lines_[bin].value)) lines_[bin].value = expect(bin);
    return lines_[bin].value;
  }

  // At the age where `from` begins; returns are taken to come in the middle of a bin.
  double expect(std::size_t from) {
    double value = 0.0;
    double still_away = 1.0;
    for (std::size_t bin = from; bin < AgeBins::kCount && still_away > kNegligible; ++bin) {
      const double wait_s = AgeBins::edge_s(bin) - AgeBins::edge_s(from) + AgeBins::width_s(bin) / 2;
      value += still_away * (1 - staying_[bin]) / (least_wait_s_ + wait_s);
      still_away *= staying_[bin];
    }
    return value;
  }

  double least_wait_s_;
  std::array<double, AgeBins::kCount> staying_;  // The chance to stay through each bin.
  std::array<Line, AgeBins::kCount> lines_;      // of each bin; kUnknown until asked for
};

}  // namespace agentcache

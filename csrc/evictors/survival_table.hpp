// How long freed blocks waited for their return, and how long others waited in vain.
#pragma once

#include <array>
#include <cstddef>

#include "evictors/age_bins.hpp"

namespace agentcache {

/// The chance of return per second of waiting, by age.
using Hazard = std::array<double, AgeBins::kCount>;

/// Counts of one class. What was evicted counts as long as it waited: it had not returned until then.
class SurvivalTable {
 public:
  /// Counts a share `weight` of a group that left at `age_s`: it returned, or was evicted. O(1).
  void observe(double age_s, double weight, bool returned) {
    const std::size_t bin = AgeBins::bin_of(age_s);
    Bin& left = bins_[bin];
    left.left += weight;
    left.waited_s += weight * (AgeBins::clamp(age_s) - AgeBins::edge_s(bin));
    if (returned) left.returned += weight;
    total_ += weight;
  }

  /// Returns how many groups have left.
  double total() const { return total_; }

  /// Adds what another table has counted.
  void add(const SurvivalTable& other) {
    for (std::size_t bin = 0; bin < AgeBins::kCount; ++bin) {
      bins_[bin].returned += other.bins_[bin].returned;
      bins_[bin].left += other.bins_[bin].left;
      bins_[bin].waited_s += other.bins_[bin].waited_s;
    }
    total_ += other.total_;
  }

  /// Makes all that was counted until now count for half.
  void halve() {
    for (Bin& bin : bins_) bin = {bin.returned / 2, bin.left / 2, bin.waited_s / 2};
    total_ /= 2;
  }

  /// Computes the returns per second waited. `prior` counts as `prior_returns` returns in each bin.
  Hazard hazard(const Hazard& prior, double prior_returns) const {
    Hazard hazard;
    double beyond = 0.0;  // What left in later bins waited through this one.
    for (std::size_t bin = AgeBins::kCount; bin-- > 0;) {
      const double waited_s = bins_[bin].waited_s + beyond * AgeBins::width_s(bin);
      hazard[bin] = (bins_[bin].returned + prior_returns) / (waited_s + prior_returns / prior[bin]);
      beyond += bins_[bin].left;
    }
    return hazard;
  }

 private:
  struct Bin {
    double returned = 0.0;
    double left = 0.0;
    double waited_s = 0.0;  // Within the bin, by what left in it.
  };

  std::array<Bin, AgeBins::kCount> bins_;
  double total_ = 0.0;
};

}  // namespace agentcache

// What groups of each class are worth by their age, as far as their waits are known.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/block.hpp"
#include "core/errors.hpp"
#include "core/free_context.hpp"
#include "evictors/inverse_wait.hpp"

namespace agentcache {

/// The evictors of all caches ask the same table. Of a class that is not told yet half returns within kPriorWaitS: the
/// longer the wait, the less likely its end.
class ReturnWaits {
 public:
  /// \throws std::invalid_argument unless `least_wait_s` is finite and above 0.
  explicit ReturnWaits(double least_wait_s) : least_wait_s_(least_wait_s) {
    require_argument(least_wait_s > 0 && std::isfinite(least_wait_s), "least_wait_s must be finite and above 0");
    know(kSharedClass);
  }

  /// The worth of a group by its age, of each class. The revision tells when one changes.
  /// \note To ask for a worth computes it at first. What must change nothing asks a copy.
  std::vector<InverseWait>& waits() { return waits_; }
  const std::vector<InverseWait>& waits() const { return waits_; }
  std::uint64_t revision() const { return revision_; }

  /// Makes a class known.
  void know(FinishClass finish_class) {
    if (index(finish_class) < waits_.size()) return;
    waits_.resize(index(finish_class) + 1, InverseWait(prior(), least_wait_s_));
    ++revision_;
  }

  /// Sets the share of a class that is still away at each edge of the bins.
  /// \throws std::invalid_argument for a class out of range, and unless the shares fall from 1, one for each edge.
  void expect(FinishClass finish_class, const std::vector<double>& away) {
    require_argument(finish_class >= 0 && finish_class < kMaxFinishClasses, "finish_class is out of range");
    require_argument(away.size() == AgeBins::kCount + 1, "there must be a share for each edge");
    for (std::size_t bin = 0; bin < AgeBins::kCount; ++bin) {
      require_argument(away[bin] <= 1 && away[bin + 1] >= 0 && away[bin + 1] <= away[bin], "shares must fall from 1");
    }
    know(finish_class);
    waits_[index(finish_class)] = InverseWait(away, least_wait_s_);
    ++revision_;
  }

 private:
  static constexpr double kPriorWaitS = 30.0;

  static std::vector<double> prior() {
    std::vector<double> away;
    for (std::size_t bin = 0; bin <= AgeBins::kCount; ++bin) {
      away.push_back(kPriorWaitS / (kPriorWaitS + AgeBins::edge_s(bin)));
    }
    return away;
  }

  double least_wait_s_;
  std::uint64_t revision_ = 0;
  std::vector<InverseWait> waits_;  // of each class
};

}  // namespace agentcache

// What groups of each class are worth by their age, learnt from the groups that left the cache.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/block.hpp"
#include "core/errors.hpp"
#include "evictors/inverse_wait.hpp"
#include "evictors/survival_table.hpp"

namespace agentcache {

/// Settings of the learning; agentcache/policy/inputs.py tells what they mean.
struct Learning {
  double window;         ///< Groups.
  double prior_returns;  ///< In each bin of ages.
  double least_wait_s;
};

/// A class that has seen little is taken to be like all classes together, and those at first like `prior_hazard`.
class LearnedWaits {
 public:
  /// Knows class 0 alone.
  /// \throws std::invalid_argument unless every knob is finite and in range.
  explicit LearnedWaits(const Learning& learning) : learning_(learning) {
    require_argument(learning.window >= 1 && std::isfinite(learning.window), "window must be finite and at least 1");
    require_argument(learning.prior_returns > 0 && std::isfinite(learning.prior_returns),
                     "prior_returns must be finite and above 0");
    require_argument(learning.least_wait_s > 0 && std::isfinite(learning.least_wait_s),
                     "least_wait_s must be finite and above 0");
    tables_.resize(1);
    refit();
  }

  /// The worth of a group by its age, of each class. It changes with `know` alone: the revision tells.
  /// \note To ask for a worth computes it at first. What must change nothing asks a copy.
  std::vector<InverseWait>& waits() { return waits_; }
  const std::vector<InverseWait>& waits() const { return waits_; }
  std::uint64_t revision() const { return revision_; }

  /// Learns that a share `weight` of a group left at `age_s`: it returned, or was evicted. O(1), now and then
  /// O(classes).
  /// \pre The class is known.
  void observe(FinishClass finish_class, double age_s, double weight, bool returned) {
    tables_[index(finish_class)].observe(age_s, weight, returned);
    total_ += weight;
    if (total_ > learning_.window) halve();
  }

  /// Tells whether `know` was called with a class at least as high.
  bool knows(FinishClass finish_class) const { return finish_class >= 0 && index(finish_class) < tables_.size(); }

  /// Makes a class known, and what was observed count, once it is enough to matter. O(1), now and then O(classes).
  void know(FinishClass finish_class) {
    const bool is_new = index(finish_class) >= tables_.size();
    if (is_new) {
      tables_.resize(index(finish_class) + 1);
    } else if (total_ <= refit_at_) {
      return;
    }
    refit();
  }

 private:
  // Observations of this share of all before them are too few to fit anew.
  static constexpr double kRefitShare = 0.01;
  static constexpr double kPriorWaitS = 30.0;

  // The longer the wait, the less likely its end: half have returned after kPriorWaitS.
  static Hazard prior_hazard() {
    Hazard hazard;
    for (std::size_t bin = 0; bin < AgeBins::kCount; ++bin) hazard[bin] = 1 / (kPriorWaitS + AgeBins::edge_s(bin));
    return hazard;
  }

  void refit() {
    SurvivalTable all;
    for (const SurvivalTable& table : tables_) all.add(table);
    const Hazard of_all = all.hazard(prior_hazard(), learning_.prior_returns);
    waits_.assign(tables_.size(), InverseWait(of_all, learning_.least_wait_s));
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      if (tables_[i].total() == 0) continue;
      waits_[i] = InverseWait(tables_[i].hazard(of_all, learning_.prior_returns), learning_.least_wait_s);
    }
    refit_at_ = total_ * (1 + kRefitShare);
    ++revision_;
  }

  void halve() {
    total_ /= 2;
    for (SurvivalTable& table : tables_) table.halve();
    refit_at_ = 0.0;
  }

  Learning learning_;
  double total_ = 0.0;  // Groups observed.
  double refit_at_ = 0.0;
  std::uint64_t revision_ = 0;
  std::vector<SurvivalTable> tables_;  // of each class
  std::vector<InverseWait> waits_;     // of each class
};

}  // namespace agentcache

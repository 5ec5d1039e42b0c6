// How likely a block is to be used again, by the time since its last use: min(exp(-idle/α), exp(-(idle-τ₀)/β)).
#pragma once

#include <algorithm>
#include <cmath>

#include "core/errors.hpp"

namespace agentcache {

/// ln(value · frequency) without the part that is the same for all blocks at one moment, for either exponential.
///
/// Blocks keep their order by either key however long they wait. The clock adds up in the keys: after a year and with
/// β = 0.36 s they are 1e8, where doubles are 1.5e-8 apart: 5 ns of age, or a relative difference of cost of 1.5e-8.
struct Keys {
  double early;  ///< First exponential: within the lifespan.
  double late;   ///< Second exponential: beyond it.

  /// Returns the keys of a block with ln(value) `log_value`, where these are what it shares with others.
  Keys plus(double log_value) const { return {log_value + early, log_value + late}; }
};

/// The two exponentials.
class ReuseFrequency {
 public:
  /// α and β, the seconds in which each falls to 1/e, and τ₀, by which the second one begins later.
  /// \throws std::invalid_argument unless all are finite and α and β above 0.
  ReuseFrequency(double alpha_s, double beta_s, double tau0_s) : alpha_s_(alpha_s), beta_s_(beta_s), tau0_s_(tau0_s) {
    require_argument(alpha_s > 0 && std::isfinite(alpha_s), "alpha_s must be finite and above 0");
    require_argument(beta_s > 0 && std::isfinite(beta_s), "beta_s must be finite and above 0");
    require_argument(std::isfinite(tau0_s), "tau0_s must be finite");
  }

  /// Returns the logarithm of the frequency, because that itself soon rounds to zero.
  double log_at(double idle_s) const { return std::min(-idle_s / alpha_s_, -(idle_s - tau0_s_) / beta_s_); }

  /// Returns the part of the keys that blocks with the same last use share; ln(value) is to be added.
  Keys shared_keys(double last_s) const { return {last_s / alpha_s_, (last_s + tau0_s_) / beta_s_}; }

  /// Tells whether the block that is first by its early key goes before the one that is first by its late key.
  bool early_goes_first(double least_early, double least_late, double log_lambda, double now_s) const {
    return least_early - now_s / alpha_s_ <= log_lambda + least_late - now_s / beta_s_;
  }

 private:
  double alpha_s_;
  double beta_s_;
  double tau0_s_;
};

}  // namespace agentcache

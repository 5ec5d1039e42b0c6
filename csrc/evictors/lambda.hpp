// λ, the weight of the reuse frequency's second exponential, by which its turning point moves.
#pragma once

#include <cmath>
#include <functional>
#include <utility>

#include "core/errors.hpp"

namespace agentcache {

/// 1 at first. Follows a controller if there is one.
class Lambda {
 public:
  /// Returns λ from now on, after a reuse of blocks that had been free for so many seconds.
  using Controller = std::function<double(double idle_s)>;

  /// Without a controller λ stays as it is set.
  explicit Lambda(Controller controller = {}) : controller_(std::move(controller)) {}

  double value() const { return value_; }
  double log() const { return log_; }
  bool is_controlled() const { return controller_ != nullptr; }

  /// Sets λ, from the next eviction on. O(1).
  /// \throws std::invalid_argument unless it is finite and above 0.
  void set(double value) {
    require_argument(value > 0 && std::isfinite(value), "lambda must be finite and above 0");
    value_ = value;
    log_ = std::log(value);
  }

  /// Has the controller set λ anew.
  void observe_reuse(double idle_s) {
    if (is_controlled()) set(controller_(idle_s));
  }

 private:
  Controller controller_;
  double value_ = 1.0;
  double log_ = 0.0;
};

}  // namespace agentcache

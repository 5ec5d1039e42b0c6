// The paper's evictor: least expected recomputation cost first, in O(log n) per block.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "evictor.hpp"
#include "indexed_heap.hpp"
#include "recompute_cost.hpp"
#include "reuse_frequency.hpp"
#include "two_orders.hpp"

namespace agentcache {

/// Two heaps over the same blocks, one for each exponential of the reuse frequency.
class AsymCache : public Evictor {
 public:
  AsymCache(std::int64_t num_blocks, ReuseFrequency frequency, RecomputeCost cost)
      : Evictor(num_blocks),
        early_(Evictor::num_blocks()),
        late_(Evictor::num_blocks()),
        frequency_(frequency),
        cost_(cost) {}

  /// λ, which multiplies the second exponential and so moves the turning point. Above 0.
  void set_lambda(double lambda) {
    require_argument(lambda > 0 && std::isfinite(lambda), "lambda must be finite and above 0");
    log_lambda_ = std::log(lambda);
  }

 protected:
  std::size_t num_with_kv() const override { return early_.size(); }
  bool has_kv(BlockId id) const override { return early_.contains(id); }

  void insert(const Use& use) override {
    const Keys keys = frequency_.keys(cost_.at(use.position) * use.factor, use.last_s);
    early_.push({keys.early, use.sequence, use.id});
    late_.push({keys.late, use.sequence, use.id});
  }

  void erase(BlockId id) override {
    early_.erase(id);
    late_.erase(id);
  }

  void take(std::size_t count, double now_s, std::vector<BlockId>& victims) override {
    for (; count > 0; --count) {
      const Ranked early = early_.top(), late = late_.top();
      const bool by_early = frequency_.early_goes_first(early.key, late.key, log_lambda_, now_s);
      victims.push_back(by_early ? early.id : late.id);
      erase(victims.back());
    }
  }

  std::vector<BlockId> order_with_kv(double now_s) const override {
    return merge_orders(early_.items(), late_.items(), frequency_, log_lambda_, now_s, num_blocks());
  }

  void check_with_kv() const override {
    early_.check_integrity();
    late_.check_integrity();
    require_integrity(early_.size() == late_.size(), "the two heaps differ in size");
    for (const Ranked& block : early_.items()) {
      require_integrity(late_.contains(block.id), "a block is in one of the two heaps only");
    }
  }

  IndexedHeap early_;
  IndexedHeap late_;

 private:
  ReuseFrequency frequency_;
  RecomputeCost cost_;
  double log_lambda_ = 0.0;
};

}  // namespace agentcache

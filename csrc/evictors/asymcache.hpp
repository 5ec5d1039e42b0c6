// The paper's evictor: least expected recomputation cost first, in O(log n) per block.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/checked_evictor.hpp"
#include "core/rank_freed.hpp"
#include "evictors/indexed_heap.hpp"
#include "evictors/lambda.hpp"
#include "evictors/merge_orders.hpp"
#include "evictors/recompute_cost.hpp"
#include "evictors/reuse_frequency.hpp"
#include "evictors/runs.hpp"

namespace agentcache {

/// Two heaps over the same runs, one for each exponential of the reuse frequency. Every call takes O(log runs) a block.
class AsymCacheEvictor final : public CheckedEvictor {
 public:
  /// Knows the blocks from 0 to `num_blocks` - 1. λ follows `controller`.
  AsymCacheEvictor(std::int64_t num_blocks, ReuseFrequency frequency, RecomputeCost cost,
                   Lambda::Controller controller = {})
      : CheckedEvictor(num_blocks),
        runs_(CheckedEvictor::num_blocks()),
        early_(CheckedEvictor::num_blocks()),
        late_(CheckedEvictor::num_blocks()),
        frequency_(frequency),
        cost_(cost),
        lambda_(std::move(controller)) {}

  /// Returns λ, to read or to set.
  Lambda& lambda() { return lambda_; }

  void observe_reuse(double idle_s) override { lambda_.observe_reuse(idle_s); }
  bool learns_reuse() const override { return lambda_.is_controlled(); }

 protected:
  void insert(const Freed& freed) override {
    const Keys shared = frequency_.shared_keys(freed.last_s);
    const auto out_of_order = [shared](const Ranked& left, const Ranked& right) {
      return !keep_order(left, right, shared);
    };
    const auto log_value = [this, &freed](std::int64_t position) {
      return std::log(cost_.at(position) * freed.context.factor);
    };
    rank_freed(freed, log_value, ranked_);
    for (auto begin = ranked_.begin(); begin != ranked_.end();) {
      const auto last = std::adjacent_find(begin, ranked_.end(), out_of_order);
      const auto end = last == ranked_.end() ? last : last + 1;
      const RunId run = runs_.begin({begin, end}, shared);
      const Ranked early = runs_.first_early(run), late = runs_.first_late(run);
      early_.push(run, early.key, early.sequence);
      late_.push(run, late.key, late.sequence);
      begin = end;
    }
  }

  void erase(BlockId id) override {
    const RunId run = runs_.run_of(id);
    if (!runs_.erase(id)) return;
    if (runs_.has_ended(run)) {
      early_.erase(run);
      late_.erase(run);
    } else {
      const Ranked early = runs_.first_early(run), late = runs_.first_late(run);
      early_.move_back(run, early.key, early.sequence);
      late_.move_back(run, late.key, late.sequence);
    }
  }

  void take(std::size_t count, double now_s, std::vector<BlockId>& victims) override {
    for (; count > 0; --count) {
      const bool by_early = frequency_.early_goes_first(early_.least_key(), late_.least_key(), lambda_.log(), now_s);
      victims.push_back(runs_.first(by_early ? early_.first() : late_.first()));
      erase(victims.back());
    }
  }

  std::vector<BlockId> order_with_kv(double now_s) const override {
    return merge_orders(runs_.all_early(), runs_.all_late(), frequency_, lambda_.log(), now_s, num_blocks());
  }

  void check_with_kv() const override {
    runs_.check_integrity();
    early_.check_integrity();
    late_.check_integrity();
    require_integrity(early_.size() == runs_.size() && late_.size() == runs_.size(),
                      "the heaps do not hold as many runs as there are");
    runs_.for_each_first([this](RunId run, const Ranked& early, const Ranked& late) {
      require_integrity(early_.holds(run, early.key, early.sequence) && late_.holds(run, late.key, late.sequence),
                        "a heap has a run under another key than its first block's");
    });
  }

 private:
  friend struct Damage;

  // Keys are rounded: two blocks that differ in value may have the same key, and then the one added earlier goes first.
  static bool keep_order(const Ranked& left, const Ranked& right, Keys shared) {
    if (left.sequence < right.sequence) return true;
    const Keys before = shared.plus(left.key), after = shared.plus(right.key);
    return before.early < after.early && before.late < after.late;
  }

  Runs runs_;
  IndexedHeap early_;
  IndexedHeap late_;
  ReuseFrequency frequency_;
  RecomputeCost cost_;
  Lambda lambda_;
  std::vector<Ranked> ranked_;  // Kept for its memory.
};

}  // namespace agentcache

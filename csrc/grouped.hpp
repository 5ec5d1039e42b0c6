// agentcache's own evictor: blocks freed together share their chance of return and differ in what they cost.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "block_jobs.hpp"
#include "checked_evictor.hpp"
#include "groups.hpp"
#include "learned_waits.hpp"
#include "least_few.hpp"
#include "recompute_cost.hpp"
#include "returns.hpp"

namespace agentcache {

/// The least cost × expected inverse wait goes first. To evict n blocks takes O(groups + n log n).
///
/// It learns from what leaves: removed blocks have returned, evicted ones had not returned until then. Each block
/// counts as its share of its group, so that a few blocks of a system prompt, which others use, hardly count as a
/// return.
///
/// A block that several jobs have used belongs to the group with the best chance: when one of them frees it, it goes
/// back to a group that another has left if that is worth more by now.
class Grouped : public CheckedEvictor {
 public:
  Grouped(std::int64_t num_blocks, RecomputeCost cost, const Learning& learning)
      : CheckedEvictor(num_blocks),
        groups_(CheckedEvictor::num_blocks()),
        jobs_(CheckedEvictor::num_blocks()),
        cost_(cost),
        waits_(learning) {}

  void observe_departure(EndClass end_class, double age_s, double share, bool returned) override {
    waits_.observe(end_class, age_s, share, returned);
  }

  void forget(BlockId id) override { jobs_.forget(id); }

 protected:
  void insert(const Freed& freed) override {
    learn_returns(freed.last_s);
    // Here alone: neither what is removed nor what is evicted may change the order of the rest.
    waits_.know(freed.ending.end_class);
    if (freed.size() == 0) return;
    for (std::size_t i = 0; i < freed.size(); ++i) {
      if (freed.positions[i] == 0) forget(freed.ids[i]);
    }
    sort_by_cost(freed);
    lend_shared(freed.last_s, freed.ending);
    if (!sorted_.empty()) jobs_.begin_group(freed.ending.job, groups_.add(sorted_, freed.last_s, freed.ending));
  }

  void insert_empty(std::span<const BlockId> ids) override {
    for (const BlockId id : ids) forget(id);
  }

  // What was removed is learnt from with the next call that tells the time: the allocation for the same request.
  void erase(BlockId id) override {
    const Group& group = groups_.of(id);
    returns_.note(group);
    jobs_.note_use(id, group.ending.job);
    leave_group(id);
  }

  void take(std::size_t count, double now_s, std::vector<BlockId>& victims) override {
    learn_returns(now_s);
    if (count == 0) return;  // Empty blocks were enough.
    rank_groups(now_s, count);
    for (; count > 0; --count) {
      const BlockId id = pop_first();
      victims.push_back(id);
      const Group& group = groups_.of(id);
      waits_.observe(group.ending.end_class, now_s - group.freed_s, group.share(), false);
      forget(id);
      leave_group(id);
    }
  }

  std::vector<BlockId> order_with_kv(double now_s) const override {
    rank_groups(now_s, size());
    std::vector<BlockId> order;
    while (!candidates_.empty()) order.push_back(pop_first());
    return order;
  }

  void check_with_kv() const override {
    groups_.check_integrity();
    jobs_.check_integrity(groups_);
  }

  Groups groups_;
  BlockJobs jobs_;

 private:
  /// A group's first block that is left.
  struct Candidate {
    double score;
    double worth;  // What a second of cost is worth in this group.
    std::uint64_t sequence;
    BlockId id;

    bool operator<(const Candidate& other) const {
      return score < other.score || (score == other.score && sequence < other.sequence);
    }
    bool operator>(const Candidate& other) const { return other < *this; }
  };

  double worth_of(double freed_s, const Ending& ending, double now_s) const {
    return waits_.at(ending.end_class, now_s - freed_s) * ending.factor;
  }

  // Blocks of sorted_ that are worth more to another job that waits for them go to its group.
  void lend_shared(double now_s, const Ending& ending) {
    std::map<GroupId, std::vector<Ranked>> lent;
    const double own = worth_of(now_s, ending, now_s);
    std::erase_if(sorted_, [&](const Ranked& block) {
      double best = own;
      const auto is_better = [&](GroupId group) {
        const double worth = worth_of(groups_.at(group).freed_s, groups_.at(group).ending, now_s);
        if (worth <= best) return false;
        best = worth;
        return true;
      };
      const std::optional<GroupId> home = jobs_.find_home(block.id, ending.job, is_better);
      if (home) lent[*home].push_back(block);
      return home.has_value();
    });
    for (const auto& [group, blocks] : lent) groups_.join(group, blocks);
  }

  void leave_group(BlockId id) {
    const Group& group = groups_.of(id);
    if (group.first.id == id && groups_.is_last(id)) jobs_.end_group(group.ending.job, group.id);
    groups_.erase(id);
  }

  // The first `count` blocks are of as many groups at most: of those whose first blocks go before other groups'.
  void rank_groups(double now_s, std::size_t count) const {
    candidates_.clear();
    for (const Group& group : groups_) {
      const double worth = worth_of(group.freed_s, group.ending, now_s);
      candidates_.push_back({worth * group.first.key, worth, group.first.sequence, group.first.id});
    }
    if (count < candidates_.size()) keep_least(candidates_, count, spare_);
    std::make_heap(candidates_.begin(), candidates_.end(), std::greater<>());
  }

  // The next block of its group takes its place among the candidates.
  BlockId pop_first() const {
    const Candidate first = candidates_.front();
    if (groups_.is_last(first.id)) {
      std::pop_heap(candidates_.begin(), candidates_.end(), std::greater<>());
      candidates_.pop_back();
    } else {
      const Ranked next = groups_.next(first.id);
      sift_down({first.worth * next.key, first.worth, next.sequence, next.id});
    }
    return first.id;
  }

  // From the top, where a group's next block mostly stays: the standard library would take it down and up again.
  void sift_down(const Candidate& candidate) const {
    std::size_t hole = 0;
    for (std::size_t child = 1; child < candidates_.size(); child = 2 * hole + 1) {
      if (child + 1 < candidates_.size() && candidates_[child + 1] < candidates_[child]) ++child;
      if (!(candidates_[child] < candidate)) break;
      candidates_[hole] = candidates_[child];
      hole = child;
    }
    candidates_[hole] = candidate;
  }

  void learn_returns(double now_s) {
    returns_.settle(now_s, [this](EndClass end_class, double age_s, double share) {
      waits_.observe(end_class, age_s, share, true);
    });
  }

  void sort_by_cost(const Freed& freed) {
    sorted_.clear();
    for (std::size_t i = 0; i < freed.size(); ++i) {
      sorted_.push_back({cost_.at(freed.positions[i]), freed.first_sequence + i, freed.ids[i]});
    }
    // A request's blocks come from its end to its start, as a rule.
    if (std::is_sorted(sorted_.rbegin(), sorted_.rend())) std::reverse(sorted_.begin(), sorted_.end());
    if (!std::is_sorted(sorted_.begin(), sorted_.end())) std::sort(sorted_.begin(), sorted_.end());
  }

  RecomputeCost cost_;
  LearnedWaits waits_;
  Returns returns_;
  // Kept for their memory.
  std::vector<Ranked> sorted_;
  mutable std::vector<Candidate> candidates_;
  mutable std::vector<Candidate> spare_;
};

}  // namespace agentcache

// agentcache's own evictor: blocks freed together share their chance of return and differ in what they cost.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "core/checked_evictor.hpp"
#include "core/groups.hpp"
#include "core/rank_freed.hpp"
#include "core/returns.hpp"
#include "evictors/candidate_heap.hpp"
#include "evictors/learned_waits.hpp"
#include "evictors/recompute_cost.hpp"
#include "evictors/shared_block_owners.hpp"

namespace agentcache {

/// The least cost × expected inverse wait goes first. To evict n blocks takes O(groups + n log n).
///
/// It learns from what leaves: removed blocks have returned, evicted ones had not returned until then. Each block
/// counts as its share of its group, so that a few blocks of a system prompt, which others use, hardly count as a
/// return.
///
/// A block that several jobs have used belongs to the group with the best chance: when one of them frees it, it goes
/// back to a group that another has left if that is worth more by now.
class ReturnTimeEvictor final : public CheckedEvictor {
 public:
  /// Knows the blocks from 0 to `num_blocks` - 1.
  /// \throws std::invalid_argument for a knob out of range.
  ReturnTimeEvictor(std::int64_t num_blocks, RecomputeCost cost, const Learning& learning)
      : CheckedEvictor(num_blocks),
        groups_(CheckedEvictor::num_blocks()),
        owners_(CheckedEvictor::num_blocks()),
        cost_(cost),
        waits_(learning) {}

  void settle(double now_s) override { learn_returns(now_s); }

  /// As in the contract.
  /// \throws std::invalid_argument for a class that `add` was not told of, and for an age or share out of range.
  void observe_return(FinishClass finish_class, double age_s, double share) override {
    require_observation(finish_class, age_s, share);
    waits_.observe(finish_class, age_s, share, true);
  }

  void observe_eviction(FinishClass finish_class, double age_s, double share) override {
    require_observation(finish_class, age_s, share);
    waits_.observe(finish_class, age_s, share, false);
  }

  /// As in the contract.
  /// \throws std::invalid_argument for a block that there is not.
  void forget(BlockId id) override {
    require_argument(id >= 0 && index(id) < num_blocks(), "there is no such block");
    owners_.forget(id);
  }

 protected:
  void insert(const Freed& freed) override {
    learn_returns(freed.last_s);
    // Here alone: neither what is removed nor what is evicted may change the order of the rest.
    waits_.know(freed.context.finish_class);
    if (freed.size() == 0) return;
    for (std::size_t i = 0; i < freed.size(); ++i) {
      if (freed.positions[i] == 0) owners_.forget(freed.ids[i]);
    }
    rank_freed(freed, [this](std::int64_t position) { return cost_.at(position); }, ranked_);
    hand_over_shared(freed.last_s, freed.context);
    if (!ranked_.empty()) owners_.begin_group(freed.context.job, groups_.add(ranked_, freed.last_s, freed.context));
  }

  void insert_empty(std::span<const BlockId> ids) override {
    for (const BlockId id : ids) owners_.forget(id);
  }

  // What was removed is learnt from with the next call that tells the time: the allocation for the same request.
  void erase(BlockId id) override {
    const Group& group = groups_.of(id);
    returns_.note(group);
    owners_.note_use(id, group.context.job);
    leave_group(id);
  }

  void take(std::size_t count, double now_s, std::vector<BlockId>& victims) override {
    learn_returns(now_s);
    if (count == 0) return;  // Empty blocks were enough.
    rank_groups(now_s, count, candidates_);
    for (; count > 0; --count) {
      const BlockId id = pop_first(candidates_);
      victims.push_back(id);
      const Group& group = groups_.of(id);
      waits_.observe(group.context.finish_class, now_s - group.freed_s, group.share(), false);
      owners_.forget(id);
      groups_.note_loss(group.id);
      leave_group(id);
    }
  }

  std::vector<BlockId> order_with_kv(double now_s) const override { return first_with_kv(size(), now_s); }

  std::vector<BlockId> first_with_kv(std::size_t count, double now_s) const override {
    CandidateHeap candidates;
    std::vector<BlockId> first;
    if (count == 0) return first;
    rank_groups(now_s, count, candidates);
    while (!candidates.empty() && first.size() < count) first.push_back(pop_first(candidates));
    return first;
  }

  // Nothing is learnt: the blocks go on waiting for the same return, in a group of their own.
  void change_cost(std::span<const BlockId> ids, double cost_s) override {
    std::map<GroupId, std::vector<Ranked>> moved;
    for (const BlockId id : ids) {
      Ranked block = groups_.ranked(id);
      block.key = cost_s;
      moved[groups_.of(id).id].push_back(block);
    }
    for (auto& [id, blocks] : moved) {
      const Group group = groups_.at(id);
      std::sort(blocks.begin(), blocks.end());
      bool is_over = false;
      for (const Ranked& block : blocks) {
        is_over = groups_.at(id).first.id == block.id && groups_.is_last(block.id);
        groups_.erase(block.id);
      }
      const GroupId target = groups_.split(blocks, group);
      if (is_over) owners_.move_group(group.context.job, id, target);
    }
  }

  void check_with_kv() const override {
    groups_.check_integrity();
    owners_.check_integrity(groups_);
  }

 private:
  friend struct Damage;

  void require_observation(FinishClass finish_class, double age_s, double share) const {
    require_argument(waits_.knows(finish_class), "no blocks were added under this finish_class");
    require_argument(std::isfinite(age_s), "age_s must be finite");
    require_argument(share >= 0 && std::isfinite(share), "share must be finite and at least 0");
  }

  double worth_of(double freed_s, const FreeContext& context, double now_s) const {
    return waits_.at(context.finish_class, now_s - freed_s) * context.factor;
  }

  // Blocks of ranked_ that are worth more to another job that waits for them go to its group.
  void hand_over_shared(double now_s, const FreeContext& context) {
    std::map<GroupId, std::vector<Ranked>> handed_over;
    const double own = worth_of(now_s, context, now_s);
    std::erase_if(ranked_, [&](const Ranked& block) {
      double best = own;
      const auto is_better = [&](GroupId group) {
        const double worth = worth_of(groups_.at(group).freed_s, groups_.at(group).context, now_s);
        if (worth <= best) return false;
        best = worth;
        return true;
      };
      const std::optional<GroupId> group = owners_.find_better_group(block.id, context.job, is_better);
      if (group) handed_over[*group].push_back(block);
      return group.has_value();
    });
    for (const auto& [group, blocks] : handed_over) groups_.join(group, blocks);
  }

  void leave_group(BlockId id) {
    const Group& group = groups_.of(id);
    if (group.first.id == id && groups_.is_last(id)) owners_.end_group(group.context.job, group.id);
    groups_.erase(id);
  }

  // The first `count` blocks are of as many groups at most: of those whose first blocks go before other groups'.
  void rank_groups(double now_s, std::size_t count, CandidateHeap& candidates) const {
    candidates.clear();
    for (const Group& group : groups_) {
      const double worth = worth_of(group.freed_s, group.context, now_s);
      candidates.add({worth * group.first.key, worth, group.first.sequence, group.first.id});
    }
    candidates.order_first(count);
  }

  // The next block of its group takes its place among the candidates.
  BlockId pop_first(CandidateHeap& candidates) const {
    const Candidate first = candidates.first();
    if (groups_.is_last(first.id)) {
      candidates.pop();
    } else {
      const Ranked next = groups_.next(first.id);
      const Group& group = groups_.of(first.id);
      // The first loss is the one that counts.
      const double worth = first.worth * (group.first.id == first.id ? Groups::value_after_loss(group) : 1.0);
      candidates.replace_first({worth * next.key, worth, next.sequence, next.id});
    }
    return first.id;
  }

  void learn_returns(double now_s) {
    returns_.settle(now_s, [this](FinishClass finish_class, double age_s, double share) {
      waits_.observe(finish_class, age_s, share, true);
    });
  }

  Groups groups_;
  SharedBlockOwners owners_;
  RecomputeCost cost_;
  LearnedWaits waits_;
  Returns returns_;
  // Kept for their memory.
  std::vector<Ranked> ranked_;
  CandidateHeap candidates_;
};

}  // namespace agentcache

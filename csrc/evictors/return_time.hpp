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
#include "evictors/group_ranking.hpp"
#include "evictors/learned_waits.hpp"
#include "evictors/recompute_cost.hpp"
#include "evictors/shared_block_owners.hpp"

namespace agentcache {

/// The least cost × expected inverse wait goes first. To evict n blocks takes O(groups + n log n), and mostly O(n log
/// groups) if n is small and the call before was not long ago.
///
/// It learns from what leaves: removed blocks have returned, evicted ones had not returned until then. Each block
/// counts as its share of its group, so that a few blocks of a system prompt, which others use, hardly count as a
/// return. Copies of what another cache has count for nothing: their job comes back for the other ones.
///
/// A block that several jobs have used belongs to the group with the best chance: when one of them frees it, it goes
/// back to a group that another has left if that is worth more by now. Blocks that three jobs wait for, at the least,
/// are in groups of no job, and of a class of their own: the first of many returns sooner than any one of them.
class ReturnTimeEvictor final : public CheckedEvictor {
 public:
  /// Knows the blocks from 0 to `num_blocks` - 1.
  /// \throws std::invalid_argument for a knob out of range.
  ReturnTimeEvictor(std::int64_t num_blocks, RecomputeCost cost, const Learning& learning)
      : CheckedEvictor(num_blocks),
        groups_(CheckedEvictor::num_blocks()),
        owners_(CheckedEvictor::num_blocks()),
        cost_(cost),
        waits_(learning) {
    waits_.know(kSharedClass);
  }

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
    add_shared(freed.last_s, freed.context);
    hand_over_shared(freed.last_s, freed.context);
    if (ranked_.empty()) return;
    owners_.begin_group(freed.context.job, add_group(ranked_, freed.last_s, freed.context));
  }

  void insert_empty(std::span<const BlockId> ids) override {
    for (const BlockId id : ids) owners_.forget(id);
  }

  // What was removed is learnt from with the next call that tells the time: the allocation for the same request.
  void erase(BlockId id) override {
    const Group& group = groups_.of(id);
    if (!group.context.copy) returns_.note(group);
    owners_.note_use(id, group.context.job);
    leave_group(id);
  }

  void take(std::size_t count, double now_s, std::vector<BlockId>& victims) override {
    learn_returns(now_s);
    if (count == 0) return;  // Empty blocks were enough.
    const std::vector<BlockId>& first = ranking_.find(groups_, waits_.waits(), waits_.revision(), now_s, count);
    for (const BlockId id : first) lose(id, now_s);
    victims.insert(victims.end(), first.begin(), first.end());
  }

  std::vector<BlockId> order_with_kv(double now_s) const override { return first_with_kv(size(), now_s); }

  std::vector<BlockId> first_with_kv(std::size_t count, double now_s) const override {
    CandidateHeap candidates;
    std::vector<BlockId> first;
    if (count == 0) return first;
    std::vector<InverseWait> waits = waits_.waits();
    GroupRanking::rank_all(groups_, waits, now_s, count, candidates, first);
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
      // A list's id is given again as soon as it is over.
      if (is_over) ranking_.note_end(id);
      const GroupId target = groups_.split(blocks, group);
      note_change(target);
      if (is_over) owners_.move_group(group.context.job, id, target);
    }
  }

  void check_with_kv() const override {
    groups_.check_integrity();
    owners_.check_integrity(groups_);
    ranking_.check_integrity(groups_, waits_.waits(), waits_.revision());
  }

 private:
  friend struct Damage;

  void require_observation(FinishClass finish_class, double age_s, double share) const {
    require_argument(waits_.knows(finish_class), "no blocks were added under this finish_class");
    require_argument(std::isfinite(age_s), "age_s must be finite");
    require_argument(share >= 0 && std::isfinite(share), "share must be finite and at least 0");
  }

  double worth_of(double freed_s, const GroupContext& context, double now_s) {
    return waits_.waits()[index(context.finish_class)].at(now_s - freed_s) * context.factor;
  }

  // Blocks of ranked_ that two other jobs wait for go to a group of no job.
  void add_shared(double now_s, GroupContext context) {
    const auto begin = std::stable_partition(ranked_.begin(), ranked_.end(), [&](const Ranked& block) {
      return !owners_.is_awaited_by_others(block.id, context.job);
    });
    shared_.assign(begin, ranked_.end());
    ranked_.erase(begin, ranked_.end());
    if (shared_.empty()) return;
    context.factor = 1.0;
    context.job = kNoJob;
    context.finish_class = kSharedClass;
    add_group(shared_, now_s, context);
  }

  // Blocks of ranked_ that are worth more to another job that waits for them go to its group.
  void hand_over_shared(double now_s, const GroupContext& context) {
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
    for (const auto& [group, blocks] : handed_over) {
      groups_.join(group, blocks);
      note_change(group);
    }
  }

  GroupId add_group(std::span<const Ranked> blocks, double freed_s, const GroupContext& context) {
    const GroupId group = groups_.add(blocks, freed_s, context);
    note_change(group);
    return group;
  }

  void lose(BlockId id, double now_s) {
    const Group& group = groups_.of(id);
    if (!group.context.copy) {
      waits_.observe(group.context.finish_class, now_s - group.freed_s, group.share(), false);
    }
    owners_.forget(id);
    groups_.note_loss(group.id);
    const GroupId lossy = group.id;
    if (!leave_group(id)) note_change(lossy);
  }

  // Returns whether it was the last of its group.
  bool leave_group(BlockId id) {
    const Group& group = groups_.of(id);
    const bool is_over = group.first.id == id && groups_.is_last(id);
    if (is_over) {
      owners_.end_group(group.context.job, group.id);
      ranking_.note_end(group.id);
    }
    groups_.erase(id);
    return is_over;
  }

  void note_change(GroupId group) { ranking_.note_change(groups_.at(group), waits_.waits()); }

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
  GroupRanking ranking_;
  std::vector<Ranked> ranked_;  // Kept for its memory.
  std::vector<Ranked> shared_;  // As ranked_.
};

}  // namespace agentcache

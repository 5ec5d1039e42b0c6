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
#include "evictors/candidate_heap.hpp"
#include "evictors/group_ranking.hpp"
#include "evictors/recompute_cost.hpp"
#include "evictors/return_waits.hpp"
#include "evictors/shared_block_owners.hpp"

namespace agentcache {

/// The least cost × expected inverse wait goes first. To evict n blocks takes O(groups + n log n), and mostly O(n log
/// groups) if n is small and the call before was not long ago.
///
/// A block that several jobs have used belongs to the group with the best chance: when one of them frees it, it goes
/// back to a group that another has left if that is worth more by now. Blocks that three jobs wait for, at the least,
/// are in groups of no job, and of a class of their own: the first of many returns sooner than any one of them.
class ReturnTimeEvictor final : public CheckedEvictor {
 public:
  /// Knows the blocks from 0 to `num_blocks` - 1. `waits` may change at any time, and outlives this evictor.
  ReturnTimeEvictor(std::int64_t num_blocks, RecomputeCost cost, ReturnWaits& waits)
      : CheckedEvictor(num_blocks),
        groups_(CheckedEvictor::num_blocks()),
        owners_(CheckedEvictor::num_blocks()),
        cost_(cost),
        waits_(waits) {}

  /// As in the contract.
  /// \throws std::invalid_argument for a block that there is not.
  void forget(BlockId id) override {
    require_argument(id >= 0 && index(id) < num_blocks(), "there is no such block");
    owners_.forget(id);
  }

 protected:
  void insert(const Freed& freed) override {
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

  void erase(BlockId id) override {
    owners_.note_use(id, groups_.of(id).context.job);
    leave_group(id);
  }

  void take(std::size_t count, double now_s, std::vector<BlockId>& victims) override {
    if (count == 0) return;  // Empty blocks were enough.
    const std::vector<BlockId>& first = ranking_.find(groups_, waits_.waits(), waits_.revision(), now_s, count);
    for (const BlockId id : first) lose(id);
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
      const GroupId target = groups_.add(blocks, group.freed_s, group.context);
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

  void lose(BlockId id) {
    const GroupId lossy = groups_.of(id).id;
    owners_.forget(id);
    groups_.note_loss(lossy);
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

  Groups groups_;
  SharedBlockOwners owners_;
  RecomputeCost cost_;
  ReturnWaits& waits_;
  GroupRanking ranking_;
  std::vector<Ranked> ranked_;  // Kept for its memory.
  std::vector<Ranked> shared_;  // As ranked_.
};

}  // namespace agentcache

// Blocks that were freed together differ only in what they cost: they keep their order, so only the first competes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/block.hpp"
#include "core/errors.hpp"
#include "core/ranked_lists.hpp"
#include "evictors/reuse_frequency.hpp"

namespace agentcache {

/// A run's id is that of its list.
using RunId = ListId;

/// A list of blocks for each run, which goes by the same order for both of the reuse frequency's exponentials.
class Runs {
 public:
  /// Makes room for blocks with the ids from 0 to `num_blocks` - 1.
  explicit Runs(std::size_t num_blocks) : lists_(num_blocks) {}

  /// Returns how many runs there are now.
  std::size_t size() const { return lists_.size(); }

  /// Makes a run of blocks, in order. Each block's key is ln(value); `shared` comes on top for all of them. O(blocks).
  /// \pre There is at least one block, and none is in a run.
  RunId begin(std::span<const Ranked> blocks, Keys shared) {
    const RunId run = lists_.begin(blocks);
    if (runs_.size() < lists_.num_ids()) runs_.resize(lists_.num_ids());
    runs_[index(run)] = {blocks.front().id, shared};
    return run;
  }

  /// Returns the run that a block is in.
  /// \pre `id` is in a run.
  RunId run_of(BlockId id) const { return lists_.list_of(id); }
  /// Tells whether a run has lost its last block, and no other run has its id yet.
  bool has_ended(RunId run) const { return first(run) == kNoBlock; }

  /// Returns the block that goes first; its early and its late rank.
  /// \pre The run has not ended.
  BlockId first(RunId run) const { return runs_[index(run)].first; }
  Ranked first_early(RunId run) const { return early(first(run)); }
  Ranked first_late(RunId run) const { return late(first(run)); }

  /// Takes a block out of its run, which ends with its last block. O(1).
  /// \pre `id` is in a run.
  /// \return Whether it was the first of its run.
  bool erase(BlockId id) {
    const RankedLists::Link link = lists_.erase(id);
    if (link.previous != kNoBlock) return false;
    runs_[index(link.list)].first = link.next;
    // Its turn comes soon, and many blocks from now: time enough to fetch what is read then.
    if (link.next != kNoBlock) lists_.prefetch_next(link.next);
    return true;
  }

  /// Returns every block with its early rank, or with its late one: run by run. O(blocks).
  std::vector<Ranked> all_early() const {
    std::vector<Ranked> all;
    for_each([&](BlockId id) { all.push_back(early(id)); });
    return all;
  }
  std::vector<Ranked> all_late() const {
    std::vector<Ranked> all;
    for_each([&](BlockId id) { all.push_back(late(id)); });
    return all;
  }

  /// Calls `visit(run, early, late)` with the ranks of each run's first block. O(runs).
  template <typename Visit>
  void for_each_first(const Visit& visit) const {
    for (RunId run = 0; run < static_cast<RunId>(runs_.size()); ++run) {
      if (!has_ended(run)) visit(run, first_early(run), first_late(run));
    }
  }

  /// Checks runs, lists and both orders against each other. O(blocks).
  /// \throws IntegrityError unless they agree.
  void check_integrity() const {
    const auto goes_before = [this](BlockId id, BlockId other) {
      return early(id) < early(other) && late(id) < late(other);
    };
    std::size_t live = 0;
    for (RunId run = 0; run < static_cast<RunId>(runs_.size()); ++run) {
      live += !has_ended(run);
      lists_.check_list(run, first(run), goes_before);
    }
    require_integrity(live == size(), "the number of runs is wrong");
  }

 private:
  friend struct Damage;

  struct Run {
    BlockId first;  // kNoBlock: it has ended.
    Keys shared;
  };

  Keys keys(BlockId id) const { return runs_[index(run_of(id))].shared.plus(lists_.key(id)); }
  Ranked early(BlockId id) const { return {keys(id).early, lists_.sequence(id), id}; }
  Ranked late(BlockId id) const { return {keys(id).late, lists_.sequence(id), id}; }

  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const Run& run : runs_) lists_.for_each_from(run.first, visit);
  }

  RankedLists lists_;
  std::vector<Run> runs_;  // by id, those that ended too
};

}  // namespace agentcache

// Blocks that were freed together differ only in what they cost: they keep their order, so only the first competes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "block.hpp"
#include "errors.hpp"
#include "reuse_frequency.hpp"

namespace agentcache {

/// A run's id: an integer from 0. Ids of runs that ended are given again.
using RunId = std::int32_t;

/// A doubly linked list of blocks for each run, in arrays.
class Runs {
 public:
  /// Blocks have the ids from 0 to `num_blocks` - 1.
  explicit Runs(std::size_t num_blocks) : links_(num_blocks), values_(num_blocks) {}

  /// How many there are now.
  std::size_t size() const { return runs_.size() - ended_.size(); }

  /// A new run of at least one block, in order. Each block's key is ln(value); `shared` comes on top for all of them.
  RunId begin(std::span<const Ranked> blocks, Keys shared) {
    const RunId run = unused_id();
    runs_[index(run)] = {blocks.front().id, shared};
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const BlockId previous = i == 0 ? kNone : blocks[i - 1].id;
      const BlockId next = i + 1 == blocks.size() ? kNone : blocks[i + 1].id;
      links_[index(blocks[i].id)] = {previous, next, run};
      values_[index(blocks[i].id)] = {blocks[i].key, blocks[i].sequence};
    }
    return run;
  }

  RunId run_of(BlockId id) const { return links_[index(id)].run; }
  bool has_ended(RunId run) const { return first(run) == kNone; }

  /// The block that goes first, with its keys. None of it for runs that have ended.
  BlockId first(RunId run) const { return runs_[index(run)].first; }
  Ranked first_early(RunId run) const { return early(first(run)); }
  Ranked first_late(RunId run) const { return late(first(run)); }

  /// Takes a block out of its run, which ends with its last block. Tells whether it was the first.
  bool erase(BlockId id) {
    const Link& link = links_[index(id)];
    if (link.next != kNone) links_[index(link.next)].previous = link.previous;
    if (link.previous != kNone) {
      links_[index(link.previous)].next = link.next;
      return false;
    }
    runs_[index(link.run)].first = link.next;
    if (link.next == kNone) {
      ended_.push_back(link.run);
    } else {
      prefetch_next(link.next);
    }
    return true;
  }

  /// Every block with its early keys, and with its late ones: run by run.
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

  /// Calls `visit(run, early, late)` with the keys of each run's first block.
  template <typename Function>
  void for_each_first(const Function& visit) const {
    for (RunId run = 0; run < static_cast<RunId>(runs_.size()); ++run) {
      if (!has_ended(run)) visit(run, first_early(run), first_late(run));
    }
  }

  /// Throws IntegrityError unless links, runs and both orders agree.
  void check_integrity() const {
    std::size_t live = 0;
    for (RunId run = 0; run < static_cast<RunId>(runs_.size()); ++run) {
      live += !has_ended(run);
      BlockId previous = kNone;
      for (BlockId id = first(run); id != kNone; previous = id, id = links_[index(id)].next) {
        const Link& link = links_[index(id)];
        require_integrity(link.run == run && link.previous == previous, "links of a run disagree");
        if (previous == kNone) continue;
        require_integrity(early(previous) < early(id) && late(previous) < late(id), "a run is out of order");
      }
    }
    require_integrity(live == size(), "the number of runs is wrong");
  }

 protected:
  struct Link {
    BlockId previous;
    BlockId next;
    RunId run;
  };

  // Apart from the links, because a removal mostly needs those alone.
  struct Value {
    double log_value;
    std::uint64_t sequence;
  };

  struct Run {
    BlockId first;  // kNone: it has ended.
    Keys shared;
  };

  std::vector<Link> links_;
  std::vector<Value> values_;
  std::vector<Run> runs_;
  std::vector<RunId> ended_;

 private:
  static constexpr BlockId kNone = -1;

  RunId unused_id() {
    if (ended_.empty()) {
      runs_.emplace_back();
      return static_cast<RunId>(runs_.size() - 1);
    }
    const RunId run = ended_.back();
    ended_.pop_back();
    return run;
  }

  // Its turn comes soon, and many blocks from now: time enough to fetch what is read then.
  void prefetch_next(BlockId id) const {
    const BlockId next = links_[index(id)].next;
    if (next == kNone) return;
    __builtin_prefetch(&links_[index(next)], 1);
    __builtin_prefetch(&values_[index(next)]);
  }

  Keys keys(BlockId id) const { return runs_[index(run_of(id))].shared.plus(values_[index(id)].log_value); }
  Ranked early(BlockId id) const { return {keys(id).early, values_[index(id)].sequence, id}; }
  Ranked late(BlockId id) const { return {keys(id).late, values_[index(id)].sequence, id}; }

  template <typename Function>
  void for_each(const Function& visit) const {
    for (const Run& run : runs_) {
      for (BlockId id = run.first; id != kNone; id = links_[index(id)].next) visit(id);
    }
  }
};

}  // namespace agentcache

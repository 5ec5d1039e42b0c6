// Which blocks of many groups go first: found by scoring every group, or few of them by what was kept of earlier calls.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/block.hpp"
#include "core/groups.hpp"
#include "evictors/bound_heap.hpp"
#include "evictors/candidate_heap.hpp"
#include "evictors/inverse_wait.hpp"

namespace agentcache {

/// Finds victims in the same order either way: kept are not scores, which change with time, but bounds below which no
/// score of a group can fall for a while. Groups are scored in the order of their bounds until the least score is below
/// the next bound, so few are where the bounds are tight.
class GroupRanking {
 public:
  /// The first `count` blocks by cost × worth at `now_s`, or all if there are fewer, with every group scored.
  /// Changes nothing but `waits`, `candidates` and `first`. O(groups + count log count).
  static void rank_all(const Groups& groups, std::vector<InverseWait>& waits, double now_s, std::size_t count,
                       CandidateHeap& candidates, std::vector<BlockId>& first) {
    candidates.clear();
    for (const Group& group : groups) candidates.add(score(group, waits, now_s));
    candidates.order_first(count);
    // Blocks lie all over the memory: all are asked for before the first is waited for.
    for (const Candidate& candidate : candidates) groups.prefetch(candidate.id);
    for (const Candidate& candidate : candidates) groups.prefetch_next(candidate.id);
    while (!candidates.empty() && first.size() < count) first.push_back(pop_first(groups, candidates));
  }

  /// Returns the first `count` blocks, as `rank_all`. `revision` tells `waits` from other ones.
  /// \pre There are at least so many, and `note_…` was called for every change of `groups`.
  const std::vector<BlockId>& find(const Groups& groups, std::vector<InverseWait>& waits, std::uint64_t revision,
                                   double now_s, std::size_t count) {
    first_.clear();
    if (is_worth_bounds(groups, revision, now_s, count)) {
      if (!is_kept_) keep(groups, waits);
      if (walk(groups, waits, now_s, count)) return first_;
      shorten(now_s);
    }
    rank_all(groups, waits, now_s, count, candidates_, first_);
    return first_;
  }

  /// Notes that a group is new, or that its first block or its worth is another one: that it may go earlier, or later.
  void note_change(const Group& group, std::vector<InverseWait>& waits) {
    if (!is_kept_) return;
    const double bound = bound_of(group, waits);
    if (bounds_.holds(group.id)) {
      bounds_.move(group.id, bound);
    } else {
      bounds_.push(group.id, bound);
    }
  }

  /// Notes that a group is over.
  void note_end(GroupId group) {
    if (is_kept_) bounds_.erase(group);
  }

  /// Checks what is kept. `waits` is a copy of the caller's.
  /// \throws IntegrityError unless every group is there, with a bound that is one.
  void check_integrity(const Groups& groups, std::vector<InverseWait> waits, std::uint64_t revision) const {
    bounds_.check_integrity();
    if (!is_kept_) return;
    require_integrity(bounds_.size() == groups.size(), "the bounds are not of as many groups as there are");
    for (const Group& group : groups) {
      require_integrity(bounds_.holds(group.id), "a group has no bound");
      if (revision != revision_) continue;
      for (const double now_s : {from_s_, from_s_ + kept_s_ / 3, from_s_ + kept_s_}) {
        require_integrity(bounds_.bound_of(group.id) <= score(group, waits, now_s).score, "a bound is above a score");
      }
    }
  }

 private:
  friend struct Damage;

  // Seconds for which bounds hold. Where groups are young their worth changes fast, and the bounds are too loose.
  static constexpr double kLongestS = 0.25;
  static constexpr double kShortestS = 1.0 / 1024;
  // To score a group in the order of the bounds takes about as long as to score so many in a row.
  static constexpr std::size_t kWalkCost = 64;
  // More blocks at once pay for scoring every group; bounds that hold for a few calls would not.
  static constexpr std::size_t kFew = 16;
  static constexpr std::size_t kMostSkipped = 255;

  static Candidate score(const Group& group, std::vector<InverseWait>& waits, double now_s) {
    const double worth = waits[index(group.context.finish_class)].at(now_s - group.freed_s) * group.context.factor;
    return {worth * group.first.key, worth, group.first.sequence, group.first.id};
  }

  // While bounds are kept. Products of positive numbers keep their order when they are rounded.
  double bound_of(const Group& group, std::vector<InverseWait>& waits) const {
    const double least = waits[index(group.context.finish_class)].least_between(from_s_ - group.freed_s,
                                                                                from_s_ + kept_s_ - group.freed_s);
    return least * group.context.factor * group.first.key;
  }

  // The next block of its group takes its place among the candidates.
  static BlockId pop_first(const Groups& groups, CandidateHeap& candidates) {
    const Candidate first = candidates.first();
    if (groups.is_last(first.id)) {
      candidates.pop();
    } else {
      const Ranked next = groups.next(first.id);
      const Group& group = groups.of(first.id);
      // The first loss is the one that counts.
      const double worth = first.worth * (group.first.id == first.id ? Groups::value_after_loss(group) : 1.0);
      candidates.replace_first({worth * next.key, worth, next.sequence, next.id});
    }
    return first.id;
  }

  // Bounds take longer to make than all scores: they are once a second call comes while they would have held.
  bool is_worth_bounds(const Groups& groups, std::uint64_t revision, double now_s, std::size_t count) {
    if (revision != revision_ || !(now_s >= from_s_ && now_s <= from_s_ + kept_s_)) {
      if (is_kept_ && revision == revision_) kept_s_ = std::min(2 * kept_s_, kLongestS);
      begin(now_s);
      revision_ = revision;
      return false;
    }
    if (count > kFew || count * kWalkCost >= groups.size()) return false;
    if (skip_ > 0) --skip_;
    return skip_ == 0;
  }

  void begin(double now_s) {
    is_kept_ = false;
    from_s_ = now_s;
  }

  // The bounds were of no use. The next ones are to hold for less long, and to be tried the later the more often.
  void shorten(double now_s) {
    kept_s_ = std::max(kept_s_ / 4, kShortestS);
    skipped_ = std::min(2 * skipped_ + 1, kMostSkipped);
    skip_ = skipped_;
    first_.clear();
    begin(now_s);
  }

  void keep(const Groups& groups, std::vector<InverseWait>& waits) {
    bounds_.clear();
    for (const Group& group : groups) bounds_.append(group.id, bound_of(group, waits));
    bounds_.put_in_order();
    is_kept_ = true;
  }

  // Puts the first `count` blocks into first_. Returns false if that takes longer than to score every group.
  bool walk(const Groups& groups, std::vector<InverseWait>& waits, double now_s, std::size_t count) {
    const std::size_t most = groups.size() / kWalkCost + count;
    std::size_t scored = 0;
    double greatest = 0.0;  // Of the first `count` scores: no victim has more.
    walk_.start(bounds_);
    candidates_.clear();
    while (first_.size() < count) {
      // A score that equals a bound may be a tie: all that could take part in it are scored.
      while (!walk_.at_end() && (candidates_.empty() || !(candidates_.first().score < walk_.bound()))) {
        if (scored == most) return false;
        const double limit = scored < count ? std::numeric_limits<double>::infinity() : greatest;
        const Candidate candidate = score(groups.at(walk_.next(limit)), waits, now_s);
        if (scored++ < count) greatest = std::max(greatest, candidate.score);
        candidates_.push(candidate);
      }
      first_.push_back(pop_first(groups, candidates_));
    }
    skipped_ = 0;
    return true;
  }

  BoundHeap bounds_;
  bool is_kept_ = false;  // Else what is in bounds_ is out of date.
  double from_s_ = 0.0;   // From when on bounds hold, and for how long.
  double kept_s_ = kLongestS;
  std::size_t skip_ = 0;  // Calls until bounds are tried again, and what it was set to last.
  std::size_t skipped_ = 0;
  std::uint64_t revision_ = 0;
  BoundHeap::Walk walk_;
  // Kept for their memory.
  CandidateHeap candidates_;
  std::vector<BlockId> first_;
};

}  // namespace agentcache

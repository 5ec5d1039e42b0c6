// The first blocks of many groups, as they compete for being the next victim.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/block.hpp"
#include "evictors/select_k.hpp"

namespace agentcache {

/// A group's first block that is left.
struct Candidate {
  double score;
  double worth;  ///< What a second of cost is worth in this group.
  std::uint64_t sequence;
  BlockId id;

  /// Less goes first; of equal scores, the block that was added earlier.
  bool operator<(const Candidate& other) const {
    return score < other.score || (score == other.score && sequence < other.sequence);
  }
  bool operator>(const Candidate& other) const { return other < *this; }
};

/// A binary min-heap that is built anew for each eviction.
class CandidateHeap {
 public:
  /// Tells whether no candidate is left.
  bool empty() const { return candidates_.empty(); }

  /// Iterates over the candidates, in the order of the heap. Valid until the next change.
  auto begin() const { return candidates_.begin(); }
  auto end() const { return candidates_.end(); }

  /// Takes every candidate out, and keeps the memory.
  void clear() { candidates_.clear(); }
  /// Adds a candidate, in no order yet.
  void add(const Candidate& candidate) { candidates_.push_back(candidate); }

  /// Leaves the `count` candidates that go first, and puts them in order. O(candidates).
  void order_first(std::size_t count) {
    if (count < candidates_.size()) select_least(candidates_, count, spare_);
    std::make_heap(candidates_.begin(), candidates_.end(), std::greater<>());
  }

  /// Adds a candidate to those that are in order. O(log candidates).
  void push(const Candidate& candidate) {
    candidates_.push_back(candidate);
    std::push_heap(candidates_.begin(), candidates_.end(), std::greater<>());
  }

  /// Returns the candidate that goes first.
  /// \pre It is in order, and not empty.
  const Candidate& first() const { return candidates_.front(); }

  /// Takes out the candidate that goes first. O(log candidates).
  /// \pre As for `first`.
  void pop() {
    std::pop_heap(candidates_.begin(), candidates_.end(), std::greater<>());
    candidates_.pop_back();
  }

  /// Puts the next block of the same group in place of the candidate that goes first. O(log candidates).
  /// \pre As for `first`.
  void replace_first(const Candidate& candidate) {
    // From the top, where a group's next block mostly stays: the standard library would take it down and up again.
    std::size_t hole = 0;
    for (std::size_t child = 1; child < candidates_.size(); child = 2 * hole + 1) {
      if (child + 1 < candidates_.size() && candidates_[child + 1] < candidates_[child]) ++child;
      if (!(candidates_[child] < candidate)) break;
      candidates_[hole] = candidates_[child];
      hole = child;
    }
    candidates_[hole] = candidate;
  }

 private:
  std::vector<Candidate> candidates_;
  std::vector<Candidate> spare_;
};

}  // namespace agentcache

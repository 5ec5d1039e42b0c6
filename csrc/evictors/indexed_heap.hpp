// A d-ary min-heap that finds every run's place, so that any run can change its key or be taken out in O(log n).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/errors.hpp"
#include "evictors/runs.hpp"

namespace agentcache {

/// Runs, ordered by the key and then by the sequence number of their first block.
class IndexedHeap {
 public:
  /// Makes room for runs with the ids from 0 to `num_runs` - 1.
  explicit IndexedHeap(std::size_t num_runs) : place_(num_runs, kAbsent), sequence_(num_runs) {}

  /// Returns how many runs are contained.
  std::size_t size() const { return entries_.size(); }
  /// Tells whether a run is contained, with this key and sequence number. O(1).
  bool holds(RunId run, double key, std::uint64_t sequence) const {
    const std::uint32_t place = place_[index(run)];
    return place != kAbsent && entries_[place].key == key && sequence_[index(run)] == sequence;
  }

  /// Returns the run that goes first, and its key. O(1).
  /// \pre The heap is not empty.
  RunId first() const { return entries_.front().run; }
  double least_key() const { return entries_.front().key; }

  /// Adds a run. O(log size).
  /// \pre It is not contained.
  void push(RunId run, double key, std::uint64_t sequence) {
    sequence_[index(run)] = sequence;
    entries_.push_back({key, run});
    sift_up(entries_.size() - 1, entries_.back());
  }

  /// Gives a run another key. O(log size).
  /// \pre It is contained, and does not move forward.
  void move_back(RunId run, double key, std::uint64_t sequence) {
    sequence_[index(run)] = sequence;
    sift_down(place_[index(run)], {key, run});
  }

  /// Takes out a run. O(log size).
  /// \pre It is contained.
  void erase(RunId run) {
    const std::size_t hole = place_[index(run)];
    place_[index(run)] = kAbsent;
    const Entry last = entries_.back();
    entries_.pop_back();
    if (hole == entries_.size()) return;
    if (hole > 0 && before(last, entries_[parent(hole)])) {
      sift_up(hole, last);
    } else {
      sift_down(hole, last);
    }
  }

  /// Checks the order and the index. O(size).
  /// \throws IntegrityError unless both are right.
  void check_integrity() const {
    for (std::size_t place = 0; place < size(); ++place) {
      require_integrity(place_[index(entries_[place].run)] == place, "a heap's index points to another run");
      require_integrity(place == 0 || !before(entries_[place], entries_[parent(place)]), "a heap is out of order");
    }
    const auto indexed = static_cast<std::size_t>(
        std::count_if(place_.begin(), place_.end(), [](std::uint32_t place) { return place != kAbsent; }));
    require_integrity(indexed == size(), "a heap's index knows runs that the heap does not hold");
  }

 private:
  friend struct Damage;

  // Sequence numbers are needed on ties only. Outside the entries, they leave four children in 64 bytes.
  struct Entry {
    double key;
    RunId run;
  };

  static constexpr std::size_t kArity = 4;
  static constexpr std::uint32_t kAbsent = UINT32_MAX;

  static std::size_t parent(std::size_t place) { return (place - 1) / kArity; }

  bool before(const Entry& left, const Entry& right) const {
    if (left.key != right.key) return left.key < right.key;
    return sequence_[index(left.run)] < sequence_[index(right.run)];
  }

  void put(std::size_t place, const Entry& entry) {
    entries_[place] = entry;
    place_[index(entry.run)] = static_cast<std::uint32_t>(place);
  }

  void sift_up(std::size_t hole, const Entry entry) {
    while (hole > 0 && before(entry, entries_[parent(hole)])) {
      put(hole, entries_[parent(hole)]);
      hole = parent(hole);
    }
    put(hole, entry);
  }

  // Which child is the least is known too late to hide the wait for its own children, so all of them are asked for.
  void prefetch_children_of_siblings(std::size_t first) const {
    const std::size_t begin = first * kArity + 1;
    if (begin + kArity * kArity > size()) return;
    for (std::size_t sibling = 0; sibling < kArity; ++sibling) {
      __builtin_prefetch(&entries_[begin + sibling * kArity]);
    }
  }

  void sift_down(std::size_t hole, const Entry entry) {
    for (std::size_t first = hole * kArity + 1; first < size(); first = hole * kArity + 1) {
      const std::size_t end = std::min(first + kArity, size());
      prefetch_children_of_siblings(first);
      std::size_t least = first;
      for (std::size_t child = first + 1; child < end; ++child) {
        if (before(entries_[child], entries_[least])) least = child;
      }
      if (!before(entries_[least], entry)) break;
      put(hole, entries_[least]);
      hole = least;
    }
    put(hole, entry);
  }

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> place_;     // of each run in entries_
  std::vector<std::uint64_t> sequence_;  // of each run's first block
};

}  // namespace agentcache

// Groups by a lower bound of their score, so that few of them have to be scored to find the least.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/groups.hpp"

namespace agentcache {

/// A d-ary min-heap that finds every group's place. A bound that is too low costs time alone: it may stay until the
/// group is looked at.
class BoundHeap {
 public:
  /// A group with its bound.
  struct Entry {
    double bound;
    GroupId group;
  };

  /// Returns how many groups are contained; the bound of one. O(1).
  /// \pre `group` is contained.
  std::size_t size() const { return entries_.size(); }
  double bound_of(GroupId group) const { return entries_[place_[index(group)]].bound; }
  /// Tells whether a group is contained. O(1).
  bool holds(GroupId group) const { return index(group) < place_.size() && place_[index(group)] != kAbsent; }

  /// Takes out every group, and keeps the memory. O(size).
  void clear() {
    for (const Entry& entry : entries_) place_[index(entry.group)] = kAbsent;
    entries_.clear();
  }

  /// Adds a group without regard to the order, which `put_in_order` makes for all. O(1), O(size).
  /// \pre It is not contained.
  void append(GroupId group, double bound) {
    if (index(group) >= place_.size()) place_.resize(index(group) + 1, kAbsent);
    place_[index(group)] = static_cast<std::uint32_t>(entries_.size());
    entries_.push_back({bound, group});
  }
  void put_in_order() {
    for (std::size_t place = (entries_.size() + kArity - 1) / kArity; place-- > 0;) sift_down(place, entries_[place]);
  }

  /// Adds a group. O(log size).
  /// \pre It is not contained.
  void push(GroupId group, double bound) {
    append(group, bound);
    sift_up(entries_.size() - 1, entries_.back());
  }

  /// Gives a group another bound. O(log size).
  /// \pre It is contained.
  void move(GroupId group, double bound) { settle(place_[index(group)], {bound, group}); }

  /// Takes out a group. O(log size).
  /// \pre It is contained.
  void erase(GroupId group) {
    const std::size_t hole = place_[index(group)];
    place_[index(group)] = kAbsent;
    const Entry last = entries_.back();
    entries_.pop_back();
    if (hole < entries_.size()) settle(hole, last);
  }

  /// Visits groups by their bounds, the least first, without a change.
  class Walk {
   public:
    /// Starts anew on a heap that does not change meanwhile.
    void start(const BoundHeap& heap) {
      heap_ = &heap;
      ahead_.clear();
      if (heap.size() > 0) ahead_.push_back({heap.entries_[0].bound, 0});
    }
    /// Tells whether every group was visited; the bound of the next one.
    bool at_end() const { return ahead_.empty(); }
    double bound() const { return ahead_.front().first; }
    /// Returns the next group. Passes over those behind it whose bounds are above `limit`. O(log visited).
    GroupId next(double limit) {
      const std::uint32_t place = ahead_.front().second;
      std::pop_heap(ahead_.begin(), ahead_.end(), std::greater<>());
      ahead_.pop_back();
      const std::vector<Entry>& entries = heap_->entries_;
      const std::size_t end = std::min(place * kArity + 1 + kArity, entries.size());
      for (std::size_t child = place * kArity + 1; child < end; ++child) {
        if (entries[child].bound > limit) continue;
        ahead_.push_back({entries[child].bound, static_cast<std::uint32_t>(child)});
        std::push_heap(ahead_.begin(), ahead_.end(), std::greater<>());
      }
      return entries[place].group;
    }

   private:
    const BoundHeap* heap_ = nullptr;
    std::vector<std::pair<double, std::uint32_t>> ahead_;  // A heap of bounds and places whose parents were visited.
  };

  /// Checks the order and the index. O(size).
  /// \throws IntegrityError unless both are right.
  void check_integrity() const {
    for (std::size_t place = 0; place < size(); ++place) {
      require_integrity(place_[index(entries_[place].group)] == place, "a heap's index points to another group");
      require_integrity(place == 0 || entries_[parent(place)].bound <= entries_[place].bound,
                        "a heap of groups is out of order");
    }
    require_integrity(place_.size() == size() + static_cast<std::size_t>(std::ranges::count(place_, kAbsent)),
                      "a heap's index knows groups that the heap does not hold");
  }

 private:
  friend struct Damage;

  static constexpr std::size_t kArity = 4;
  static constexpr std::uint32_t kAbsent = UINT32_MAX;

  static std::size_t parent(std::size_t place) { return (place - 1) / kArity; }

  void put(std::size_t place, const Entry& entry) {
    entries_[place] = entry;
    place_[index(entry.group)] = static_cast<std::uint32_t>(place);
  }

  void settle(std::size_t hole, const Entry entry) {
    if (hole > 0 && entry.bound < entries_[parent(hole)].bound) {
      sift_up(hole, entry);
    } else {
      sift_down(hole, entry);
    }
  }

  void sift_up(std::size_t hole, const Entry entry) {
    for (; hole > 0 && entry.bound < entries_[parent(hole)].bound; hole = parent(hole)) {
      put(hole, entries_[parent(hole)]);
    }
    put(hole, entry);
  }

  void sift_down(std::size_t hole, const Entry entry) {
    for (std::size_t first = hole * kArity + 1; first < size(); first = hole * kArity + 1) {
      const std::size_t end = std::min(first + kArity, size());
      std::size_t least = first;
      for (std::size_t child = first + 1; child < end; ++child) {
        if (entries_[child].bound < entries_[least].bound) least = child;
      }
      if (!(entries_[least].bound < entry.bound)) break;
      put(hole, entries_[least]);
      hole = least;
    }
    put(hole, entry);
  }

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> place_;  // of each group in entries_
};

}  // namespace agentcache

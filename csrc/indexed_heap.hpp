// A d-ary min-heap that finds every block's place, so that any block can be taken out in O(log n).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "block.hpp"
#include "errors.hpp"

namespace agentcache {

class IndexedHeap {
 public:
  /// Blocks have the ids from 0 to `num_blocks` - 1.
  explicit IndexedHeap(std::size_t num_blocks) : place_(num_blocks, kAbsent), sequence_(num_blocks) {
    entries_.reserve(num_blocks);
  }

  std::size_t size() const { return entries_.size(); }
  bool contains(BlockId id) const { return place_[index(id)] != kAbsent; }

  /// The block that goes first. The heap must not be empty.
  Ranked top() const { return ranked(entries_.front()); }

  /// Every block, in no order.
  std::vector<Ranked> items() const {
    std::vector<Ranked> items;
    items.reserve(size());
    for (const Entry& entry : entries_) items.push_back(ranked(entry));
    return items;
  }

  /// `id` must not be contained yet.
  void push(const Ranked& block) {
    sequence_[index(block.id)] = block.sequence;
    entries_.push_back({block.key, block.id});
    sift_up(entries_.size() - 1, entries_.back());
  }

  /// `id` must be contained.
  void erase(BlockId id) {
    const std::size_t hole = place_[index(id)];
    place_[index(id)] = kAbsent;
    const Entry last = entries_.back();
    entries_.pop_back();
    if (hole == entries_.size()) return;
    if (hole > 0 && before(last, entries_[parent(hole)])) {
      sift_up(hole, last);
    } else {
      sift_down(hole, last);
    }
  }

  /// Throws IntegrityError unless the order and the index are right.
  void check_integrity() const {
    for (std::size_t place = 0; place < size(); ++place) {
      require_integrity(place_[index(entries_[place].id)] == place, "a heap's index points to another block");
      require_integrity(place == 0 || !before(entries_[place], entries_[parent(place)]), "a heap is out of order");
    }
    const auto indexed = static_cast<std::size_t>(
        std::count_if(place_.begin(), place_.end(), [](std::uint32_t place) { return place != kAbsent; }));
    require_integrity(indexed == size(), "a heap's index knows blocks that the heap does not hold");
  }

 protected:
  // Sequence numbers are needed on ties only. Outside the entries, they leave four children in 64 bytes.
  struct Entry {
    double key;
    BlockId id;
  };
  std::vector<Entry> entries_;

 private:
  static constexpr std::size_t kArity = 4;
  static constexpr std::uint32_t kAbsent = UINT32_MAX;

  static std::size_t index(BlockId id) { return static_cast<std::size_t>(id); }
  static std::size_t parent(std::size_t place) { return (place - 1) / kArity; }
  Ranked ranked(const Entry& entry) const { return {entry.key, sequence_[index(entry.id)], entry.id}; }

  bool before(const Entry& left, const Entry& right) const {
    if (left.key != right.key) return left.key < right.key;
    return sequence_[index(left.id)] < sequence_[index(right.id)];
  }

  void put(std::size_t place, const Entry& entry) {
    entries_[place] = entry;
    place_[index(entry.id)] = static_cast<std::uint32_t>(place);
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

  std::vector<std::uint32_t> place_;     // of each block in entries_
  std::vector<std::uint64_t> sequence_;  // of each block
};

}  // namespace agentcache

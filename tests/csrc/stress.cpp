// Random calls on every evictor, checked step by step; built with sanitizers by test_csrc.py. Prints "ok" at the end.
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "asymcache.hpp"
#include "asymcache_linear.hpp"
#include "free_queue.hpp"
#include "grouped.hpp"
#include "lru.hpp"
#include "max_score.hpp"
#include "pensieve.hpp"

using namespace agentcache;

namespace {

constexpr int kBlocks = 200;
constexpr int kSteps = 2000;

void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what.c_str());
  std::exit(1);
}

const ReuseFrequency kFrequency(14.4, 0.36, 9.75);
const RecomputeCost kCost(1e-9, 2e-5, 1e-7);
// So few that what was learnt is often halved.
const Learning kLearning{20, 0.5, 1.0};

class Stress {
 public:
  Stress(Evictor& evictor, unsigned seed) : evictor_(evictor), chance_(seed) {
    for (BlockId id = 0; id < kBlocks; ++id) taken_.insert(id);
  }

  /// The victims, in order.
  std::vector<BlockId> run() {
    for (int step = 0; step < kSteps; ++step) {
      now_s_ += 0.01 * draw(200);
      (this->*kCalls[draw(std::size(kCalls))])();
      evictor_.check_integrity();
      expect(evictor_.size() + taken_.size() == kBlocks, "the number of free blocks");
    }
    return victims_;
  }

 private:
  std::size_t draw(std::size_t end) { return chance_() % end; }

  std::vector<BlockId> draw_taken() {
    std::vector<BlockId> ids;
    for (const BlockId id : taken_) {
      if (draw(8) == 0) ids.push_back(id);
    }
    for (const BlockId id : ids) taken_.erase(id);
    return ids;
  }

  void add() {
    const std::vector<BlockId> ids = draw_taken();
    std::vector<std::int64_t> positions(ids.size());
    for (auto& position : positions) position = static_cast<std::int64_t>(16 * draw(50));
    evictor_.add_n(ids, positions, now_s_, draw(4) == 0 ? 0.5 : 1.0, static_cast<EndClass>(draw(3)));
  }

  void add_empty() {
    if (draw(4) == 0) evictor_.add_empty_n(draw_taken());
  }

  void evict() {
    const std::size_t count = draw(evictor_.size() / 2 + 1);
    const std::vector<BlockId> order = evictor_.order(now_s_);
    const std::vector<BlockId> victims = evictor_.evict_n(static_cast<std::int64_t>(count), now_s_);
    expect(std::equal(victims.begin(), victims.end(), order.begin()), "victims are the first of the order");
    taken_.insert(victims.begin(), victims.end());
    victims_.insert(victims_.end(), victims.begin(), victims.end());
  }

  void evict_too_many() {
    try {
      evictor_.evict_n(static_cast<std::int64_t>(evictor_.size()) + 1, now_s_);
    } catch (const std::invalid_argument&) {
      return;
    }
    expect(false, "evicting too many must throw");
  }

  void remove() {
    const auto id = static_cast<std::int64_t>(draw(kBlocks + 2)) - 1;
    const bool is_free = id >= 0 && id < kBlocks && !taken_.contains(static_cast<BlockId>(id));
    try {
      evictor_.remove(id);
      expect(is_free, "removing a taken block must throw");
      taken_.insert(static_cast<BlockId>(id));
    } catch (const NotFree&) {
      expect(!is_free, "a free block can be removed");
    }
  }

  void check_queue() {
    // The queue adds nothing to the order: what it gives away and forgets is what the evictor lists.
    FreeQueue queue(kBlocks, evictor_, true);
    const std::vector<BlockId> order = evictor_.order(now_s_);
    if (draw(20) == 0) queue.forget_kv(now_s_);
    expect(queue.order(now_s_) == order, "to forget keeps the order");
    expect(queue.by_reset().blocks == 0, "the queue saw no block freed");
  }

  static constexpr void (Stress::* kCalls[])() = {
      &Stress::add,    &Stress::add,        &Stress::add_empty, &Stress::evict, &Stress::evict_too_many,
      &Stress::remove, &Stress::check_queue};

  Evictor& evictor_;
  std::mt19937 chance_;
  double now_s_ = 3e7;
  std::set<BlockId> taken_;
  std::vector<BlockId> victims_;
};

struct BrokenHeap : IndexedHeap {
  BrokenHeap() : IndexedHeap(4) {
    for (RunId run = 0; run < 4; ++run) push(run, 1.0 * run, static_cast<std::uint64_t>(run));
  }
  void raise_key() { entries_[0].key = 9.0; }
  void swap_places() { std::swap(entries_[2], entries_[3]); }
  void lose_one() { entries_.pop_back(); }
};

struct BrokenList : BlockList {
  BrokenList() : BlockList(4) { append(std::vector<BlockId>{0, 1, 2}); }
  void count_one_more() { ++size_; }
  void count_two_less() { size_ -= 2; }
};

struct BrokenRuns : Runs {
  BrokenRuns() : Runs(4) {
    begin(std::vector<Ranked>{{1.0, 1, 0}, {2.0, 0, 1}}, {0.0, 0.0});
    begin(std::vector<Ranked>{{3.0, 2, 2}}, {0.0, 0.0});
  }
  void swap_values() { std::swap(values_[0], values_[1]); }
  void tie_values() { values_[1].log_value = 1.0; }
  void move_to_other_run() { links_[1].run = 1; }
  void lose_previous() { links_[1].previous = 1; }
  void end_one_more() { ended_.push_back(0); }
};

struct BrokenAsymCache : AsymCache {
  BrokenAsymCache() : AsymCache(4, kFrequency, kCost) {
    add_n(std::vector<BlockId>{0, 1}, std::vector<std::int64_t>{16, 32}, 0.0, 1.0);
    add_n(std::vector<BlockId>{2}, std::vector<std::int64_t>{16}, 1.0, 1.0);
  }
  void lose_run() { late_.erase(0); }
  void keep_old_key() { runs_.erase(0); }
  void lose_block() { AsymCache::erase(1); }
};

struct BrokenGroups : Groups {
  BrokenGroups() : Groups(4) {
    add(std::vector<Ranked>{{1.0, 1, 0}, {2.0, 0, 1}}, 0.0, 1.0, 0);
    add(std::vector<Ranked>{{3.0, 2, 2}}, 0.0, 1.0, 0);
  }
  void swap_costs() { std::swap(costs_[0], costs_[1]); }
  void raise_cost() { costs_[0].cost_s = 9.0; }
  void put_out_of_order() { costs_[1].cost_s = 0.5; }
  void swap_places() { std::swap(place_[0], place_[1]); }
  void move_to_other_group() { links_[1].group = 1; }
  void lose_previous() { links_[1].previous = 1; }
  void lose_group() { groups_.pop_back(); }
};

struct BrokenGrouped : Grouped {
  BrokenGrouped() : Grouped(4, kCost, kLearning) {
    add_n(std::vector<BlockId>{0, 1}, std::vector<std::int64_t>{16, 32}, 0.0, 1.0);
  }
  void lose_block() { Grouped::erase(1); }
};

struct BrokenLru : Lru {
  BrokenLru() { add_n(std::vector<BlockId>{3, 1}, std::vector<std::int64_t>{16, 32}, 0.0, 1.0); }
  void lose_block() { Lru::erase(1); }
  void swap_block() {
    Lru::erase(1);
    const std::vector<BlockId> other{2};
    Lru::insert({other, {}, 0.0, 1.0, 0, 0});
  }
};

struct BrokenTable : UseTable {
  BrokenTable() : UseTable(4) {
    for (BlockId id = 0; id < 3; ++id) insert({id, 16, 0.0, 1.0, 0});
  }
  void swap_places() { std::swap(uses_[0], uses_[1]); }
  void lose_one() { uses_.pop_back(); }
};

template <typename Broken>
void expect_found(void (Broken::*damage)(), const char* what) {
  Broken broken;
  broken.check_integrity();
  (broken.*damage)();
  try {
    broken.check_integrity();
  } catch (const IntegrityError&) {
    return;
  }
  expect(false, what);
}

void check_that_damage_is_found() {
  expect_found(&BrokenHeap::raise_key, "a heap out of order");
  expect_found(&BrokenHeap::swap_places, "a heap's index that points elsewhere");
  expect_found(&BrokenHeap::lose_one, "a heap's index with one block too many");
  expect_found(&BrokenList::count_one_more, "a list shorter than its size");
  expect_found(&BrokenList::count_two_less, "a list longer than its size");
  expect_found(&BrokenRuns::swap_values, "a run out of order");
  expect_found(&BrokenRuns::tie_values, "a run out of order by sequence");
  expect_found(&BrokenRuns::move_to_other_run, "a block that names another run");
  expect_found(&BrokenRuns::lose_previous, "links that disagree");
  expect_found(&BrokenRuns::end_one_more, "a run that ended and did not");
  expect_found(&BrokenAsymCache::lose_run, "heaps of different sizes");
  expect_found(&BrokenAsymCache::keep_old_key, "a heap with the key of a block that is gone");
  expect_found(&BrokenAsymCache::lose_block, "a free block that no run has");
  expect_found(&BrokenGroups::swap_costs, "a group that goes by another block's cost");
  expect_found(&BrokenGroups::raise_cost, "a group with an old cost");
  expect_found(&BrokenGroups::put_out_of_order, "a group out of order");
  expect_found(&BrokenGroups::swap_places, "an index of the groups that points elsewhere");
  expect_found(&BrokenGroups::move_to_other_group, "a block that names another group");
  expect_found(&BrokenGroups::lose_previous, "links of a group that disagree");
  expect_found(&BrokenGroups::lose_group, "a group that is gone and did not end");
  expect_found(&BrokenGrouped::lose_block, "a free block that no group has");
  expect_found(&BrokenLru::lose_block, "a free block that the list lacks");
  expect_found(&BrokenLru::swap_block, "a taken block in the list");
  expect_found(&BrokenTable::swap_places, "a table's index that points elsewhere");
  expect_found(&BrokenTable::lose_one, "a table's index with one block too many");
}

}  // namespace

int main() {
  check_that_damage_is_found();
  for (unsigned seed = 0; seed < 2; ++seed) {
    AsymCache asymcache(kBlocks, kFrequency, kCost);
    AsymCacheLinear linear(kBlocks, kFrequency, kCost);
    expect(Stress(asymcache, seed).run() == Stress(linear, seed).run(), "heaps and scan take the same victims");
    Grouped grouped(kBlocks, kCost, kLearning);
    Stress(grouped, seed).run();
    Lru lru;
    Stress(lru, seed).run();
    MaxScore max_score(kBlocks, kFrequency);
    Stress(max_score, seed).run();
    Pensieve pensieve(kBlocks, kCost);
    Stress(pensieve, seed).run();
  }
  std::puts("ok");
}

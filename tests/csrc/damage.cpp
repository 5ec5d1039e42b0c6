// Records that are damaged on purpose: check_integrity must find it.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "evictors/asymcache.hpp"
#include "evictors/lru.hpp"
#include "evictors/return_time.hpp"
#include "evictors/use_table.hpp"
#include "pins/pinned.hpp"
#include "shared.hpp"

namespace agentcache {

/// A friend of every class with records of its own.
struct Damage {
  static void check_that_it_is_found() {
    damage_heap();
    damage_bounds();
    damage_list();
    damage_runs();
    damage_asymcache();
    damage_groups();
    damage_return_time();
    damage_ranking();
    damage_pins();
    damage_reservations();
    damage_pinned();
    damage_lru();
    damage_table();
  }

 private:
  using Ids = std::vector<BlockId>;
  using Positions = std::vector<std::int64_t>;

  template <typename Make, typename DoDamage>
  static void expect_found(const char* what, const Make& make, const DoDamage& do_damage) {
    const auto records = make();
    records->check_integrity();
    do_damage(*records);
    try {
      records->check_integrity();
    } catch (const IntegrityError&) {
      return;
    }
    expect(false, what);
  }

  static void damage_heap() {
    const auto make = [] {
      auto heap = std::make_unique<IndexedHeap>(4);
      for (RunId run = 0; run < 4; ++run) heap->push(run, 1.0 * run, static_cast<std::uint64_t>(run));
      return heap;
    };
    expect_found("a heap out of order", make, [](auto& heap) { heap.entries_[0].key = 9.0; });
    expect_found("a heap's index that points elsewhere", make,
                 [](auto& heap) { std::swap(heap.entries_[2], heap.entries_[3]); });
    expect_found("a heap's index with one block too many", make, [](auto& heap) { heap.entries_.pop_back(); });
  }

  static void damage_bounds() {
    const auto make = [] {
      auto heap = std::make_unique<BoundHeap>();
      for (GroupId group = 0; group < 6; ++group) heap->push(group, 1.0 * group);
      return heap;
    };
    expect_found("a heap of bounds out of order", make, [](auto& heap) { heap.entries_[0].bound = 9.0; });
    expect_found("a heap of bounds whose index points elsewhere", make,
                 [](auto& heap) { std::swap(heap.entries_[2], heap.entries_[3]); });
    expect_found("a heap of bounds whose index knows too many", make, [](auto& heap) { heap.entries_.pop_back(); });
  }

  static void damage_list() {
    const auto make = [] {
      auto list = std::make_unique<BlockList>(4);
      list->append(Ids{0, 1, 2});
      return list;
    };
    expect_found("a list shorter than its size", make, [](auto& list) { ++list.size_; });
    expect_found("a list longer than its size", make, [](auto& list) { list.size_ -= 2; });
  }

  static void damage_runs() {
    const auto make = [] {
      auto runs = std::make_unique<Runs>(4);
      runs->begin(std::vector<Ranked>{{1.0, 1, 0}, {2.0, 0, 1}}, {0.0, 0.0});
      runs->begin(std::vector<Ranked>{{3.0, 2, 2}}, {0.0, 0.0});
      return runs;
    };
    expect_found("a run out of order", make,
                 [](auto& runs) { std::swap(runs.lists_.ranks_[0], runs.lists_.ranks_[1]); });
    expect_found("a run out of order by sequence", make, [](auto& runs) { runs.lists_.ranks_[1].key = 1.0; });
    expect_found("a block that names another run", make, [](auto& runs) { runs.lists_.links_[1].list = 1; });
    expect_found("links that disagree", make, [](auto& runs) { runs.lists_.links_[1].previous = 1; });
    expect_found("a run that ended and did not", make, [](auto& runs) { runs.lists_.ended_.push_back(0); });
  }

  static void damage_asymcache() {
    const auto make = [] {
      auto asymcache = std::make_unique<AsymCacheEvictor>(4, kFrequency, kCost);
      asymcache->add(Ids{0, 1}, Positions{16, 32}, 0.0);
      asymcache->add(Ids{2}, Positions{16}, 1.0);
      return asymcache;
    };
    expect_found("heaps of different sizes", make, [](auto& asymcache) { asymcache.late_.erase(0); });
    expect_found("a heap with the key of a block that is gone", make,
                 [](auto& asymcache) { asymcache.runs_.erase(0); });
    expect_found("a free block that no run has", make, [](auto& asymcache) { asymcache.erase(1); });
  }

  static void damage_groups() {
    const auto make = [] {
      auto groups = std::make_unique<Groups>(4);
      groups->add(std::vector<Ranked>{{1.0, 1, 0}, {2.0, 0, 1}}, 0.0, {});
      groups->add(std::vector<Ranked>{{3.0, 2, 2}}, 0.0, {});
      return groups;
    };
    expect_found("a group that goes by another block's cost", make,
                 [](auto& groups) { std::swap(groups.lists_.ranks_[0], groups.lists_.ranks_[1]); });
    expect_found("a group with an old cost", make, [](auto& groups) { groups.lists_.ranks_[0].key = 9.0; });
    expect_found("a group out of order", make, [](auto& groups) { groups.lists_.ranks_[1].key = 0.5; });
    expect_found("an index of the groups that points elsewhere", make,
                 [](auto& groups) { std::swap(groups.place_[0], groups.place_[1]); });
    expect_found("a block that names another group", make, [](auto& groups) { groups.lists_.links_[1].list = 1; });
    expect_found("links of a group that disagree", make, [](auto& groups) { groups.lists_.links_[1].previous = 1; });
    expect_found("a group that is gone and did not end", make, [](auto& groups) { groups.groups_.pop_back(); });
  }

  static void damage_return_time() {
    const auto make = [] {
      auto return_time = std::make_unique<ReturnTimeEvictor>(4, kCost, waits);
      return_time->add(Ids{0, 1}, Positions{16, 32}, 0.0);
      return return_time;
    };
    expect_found("a free block that no group has", make, [](auto& return_time) { return_time.erase(1); });
    expect_found("a job whose group is another's", make,
                 [](auto& return_time) { return_time.owners_.begin_group(7, 0); });
  }

  static void damage_ranking() {
    const auto make = [] {
      auto return_time = std::make_unique<ReturnTimeEvictor>(300, kCost, waits);
      for (BlockId id = 0; id < 300; ++id) return_time->add(Ids{id}, Positions{16 + 4096 * id}, 0.0);
      for (int call = 0; call < 3; ++call) return_time->evict(1, 1.0);
      return return_time;
    };
    expect_found("a bound above a score", make, [](auto& return_time) { return_time.ranking_.bounds_.move(200, 1.0); });
    expect_found("a group without a bound", make, [](auto& return_time) { return_time.ranking_.bounds_.erase(200); });
    expect_found("a bound of another group", make, [](auto& return_time) {
      return_time.ranking_.bounds_.erase(200);
      return_time.ranking_.bounds_.push(300, 0.0);
    });
  }

  static void damage_pins() {
    const auto make = [] {
      auto pins = std::make_unique<Pins>(4, false);
      const Ids ids{0, 1};
      const Positions positions{16, 32};
      pins->add(7, {ids, positions, 0.0, {}, 0}, Origin::kOwn);
      pins->set_value(8, 1.0);
      return pins;
    };
    expect_found("a group that names another pin", make, [](auto& pins) { pins.owners_[0].pin = &pins.pins_.at(8); });
    expect_found("a wrong number of pinned blocks", make, [](auto& pins) { ++pins.size_; });
    expect_found("a wrong number of adopted blocks", make, [](auto& pins) { ++pins.adopted_; });
    expect_found("a pinned block that no group has", make, [](auto& pins) { pins.groups_.erase(1); });
  }

  static void damage_reservations() {
    const auto make = [] {
      auto reservations = std::make_unique<PinReservations>(4);
      reservations->add(7, Ids{0});
      reservations->add(8, Ids{0, 1});
      return reservations;
    };
    expect_found("a block that its set does not know", make,
                 [](auto& reservations) { reservations.places_[2].set = 1; });
    expect_found("a block that is in another set", make, [](auto& reservations) { reservations.places_[0].set = 0; });
    expect_found("a set without pins", make, [](auto& reservations) { reservations.sets_.back().pins.clear(); });
    expect_found("a pin that is in a set twice", make,
                 [](auto& reservations) { reservations.sets_.back().pins.push_back(8); });
    expect_found("a wrong number of entries", make, [](auto& reservations) { ++reservations.entries_; });
  }

  struct PinnedLru {
    LruEvictor lru;
    PinnedEvictor pinned{lru, 4, true};

    void check_integrity() const { pinned.check_integrity(); }
  };

  static void damage_pinned() {
    const auto make = [] {
      auto both = std::make_unique<PinnedLru>();
      both->pinned.add(Ids{0, 1}, Positions{16, 32}, 0.0, {{}, 7});
      both->pinned.add(Ids{2}, Positions{16}, 0.0);
      return both;
    };
    expect_found("a free block that no pin has", make, [](auto& both) { both.pinned.pins_.erase(0); });
    expect_found("a free block that the inner evictor lacks", make, [](auto& both) { both.lru.remove(2); });
    expect_found("a pinned block that no pin has", make, [](auto& both) { both.pinned.held_.set_pinned(2, true); });
    expect_found("a block of a pin that is not pinned", make,
                 [](auto& both) { both.pinned.held_.set_pinned(0, false); });
    expect_found("a free block that is reserved for a pin and not in it", make,
                 [](auto& both) { both.pinned.reservations_.add(7, Ids{2}); });
  }

  static void damage_lru() {
    const auto make = [] {
      auto lru = std::make_unique<LruEvictor>();
      lru->add(Ids{3, 1}, Positions{16, 32}, 0.0);
      return lru;
    };
    expect_found("a free block that the list lacks", make, [](auto& lru) { lru.erase(1); });
    expect_found("a taken block in the list", make, [](auto& lru) {
      lru.erase(1);
      lru.insert({Ids{2}, {}, 0.0, {}, 0});
    });
  }

  static void damage_table() {
    const auto make = [] {
      auto table = std::make_unique<UseTable>(4);
      for (BlockId id = 0; id < 3; ++id) table->insert({id, 16, 0.0, 1.0, 0});
      return table;
    };
    expect_found("a table's index that points elsewhere", make,
                 [](auto& table) { std::swap(table.uses_[0], table.uses_[1]); });
    expect_found("a table's index with one block too many", make, [](auto& table) { table.uses_.pop_back(); });
  }
};

void check_that_damage_is_found() {
  Damage::check_that_it_is_found();
}

}  // namespace agentcache

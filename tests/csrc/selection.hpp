// The least few of many items are those that sorting puts first, whatever the sample sees.
#pragma once

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#include "evictors/select_k.hpp"
#include "shared.hpp"

namespace agentcache {

struct Item {
  double score;
  int sequence;

  bool operator<(const Item& other) const {
    return score < other.score || (score == other.score && sequence < other.sequence);
  }
  bool operator==(const Item&) const = default;
};

/// Even scores; many ties; nothing but ties; ascending ones; a sample that sees the least; one that sees the greatest.
inline double draw_score(int kind, std::size_t place, std::size_t size, std::mt19937& chance) {
  const bool is_sampled = place % std::max<std::size_t>(size / 64, 1) == 0;
  switch (kind) {
    case 0:
      return static_cast<double>(chance());
    case 1:
      return static_cast<double>(chance() % 5);
    case 2:
      return 1.0;
    case 3:
      return static_cast<double>(place);
    default:
      return (is_sampled == (kind == 4) ? 0.0 : 1e3) + static_cast<double>(chance() % 100);
  }
}

inline void check_selection() {
  std::mt19937 chance(0);
  std::vector<Item> spare;
  for (int round = 0; round < 1200; ++round) {
    const std::size_t size = round % 4 == 0 ? 64 * (1 + chance() % 20) : 2 + chance() % 2000;
    std::vector<Item> items(size);
    for (std::size_t i = 0; i < size; ++i) items[i] = {draw_score(round % 6, i, size, chance), static_cast<int>(i)};
    std::shuffle(items.begin(), items.begin() + (round % 6 < 3 ? static_cast<std::ptrdiff_t>(size) : 0), chance);
    const std::size_t count = 1 + chance() % (round % 2 == 0 ? size - 1 : std::min<std::size_t>(size - 1, 20));
    std::vector<Item> expected = items;
    std::sort(expected.begin(), expected.end());
    expected.resize(count);
    select_least(items, count, spare);
    std::sort(items.begin(), items.end());
    expect(items == expected, "the least few of many");
  }
}

}  // namespace agentcache

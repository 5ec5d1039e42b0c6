// An evictor written in Python, seen from C++.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "evictor.hpp"

namespace agentcache {

/// Calls the methods of agentcache.policy.evictor.Evictor, which is not told how requests ended.
class PythonEvictor : public Evictor {
 public:
  explicit PythonEvictor(pybind11::object evictor) : evictor_(std::move(evictor)) {}

  std::size_t size() const override { return pybind11::len(evictor_); }

  void add_n(std::span<const BlockId> ids, std::span<const std::int64_t> positions, double now_s,
             const Ending& ending = {}) override {
    evictor_.attr("add")(to_list(ids), to_list(positions), now_s, ending.factor);
  }

  void add_empty_n(std::span<const BlockId> ids) override { evictor_.attr("add_empty")(to_list(ids)); }

  std::vector<BlockId> evict_n(std::int64_t count, double now_s) override {
    return evictor_.attr("evict")(count, now_s).cast<std::vector<BlockId>>();
  }

  void remove(std::int64_t id) override {
    try {
      evictor_.attr("remove")(id);
    } catch (const pybind11::error_already_set& error) {
      if (error.matches(PyExc_KeyError)) throw NotFree(std::to_string(id));
      throw;
    }
  }

  std::vector<BlockId> order(double now_s) const override {
    const pybind11::gil_scoped_acquire locked;  // C++ evictors sort without it.
    return pybind11::list(evictor_.attr("order")(now_s)).cast<std::vector<BlockId>>();
  }

  void check_integrity() const override { evictor_.attr("check_integrity")(); }

 private:
  template <typename Integer>
  static pybind11::list to_list(std::span<const Integer> integers) {
    return pybind11::cast(std::vector<Integer>(integers.begin(), integers.end()));
  }

  pybind11::object evictor_;
};

}  // namespace agentcache

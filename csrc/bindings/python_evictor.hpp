// An evictor written in Python, seen from C++.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/evictor.hpp"

namespace agentcache {

/// Calls the methods of the same names of agentcache.policy.evictor.Evictor.
/// \note The GIL must be held, but for `order`, which takes it. What Python raises comes out as error_already_set.
class PythonEvictor : public Evictor {
 public:
  /// Keeps a reference to `evictor`.
  explicit PythonEvictor(pybind11::object evictor) : evictor_(std::move(evictor)) {}

  std::size_t size() const override { return pybind11::len(evictor_); }

  void add(std::span<const BlockId> ids, std::span<const std::int64_t> positions, double now_s,
           const FreeContext& context = {}) override {
    evictor_.attr("add")(to_list(ids), to_list(positions), now_s, context);
  }

  void add_empty(std::span<const BlockId> ids) override { evictor_.attr("add_empty")(to_list(ids)); }

  std::vector<BlockId> evict(std::int64_t count, double now_s) override {
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

  void settle(double now_s) override { evictor_.attr("settle")(now_s); }

  void observe_return(FinishClass finish_class, double age_s, double share) override {
    evictor_.attr("observe_return")(finish_class, age_s, share);
  }

  void observe_eviction(FinishClass finish_class, double age_s, double share) override {
    evictor_.attr("observe_eviction")(finish_class, age_s, share);
  }

  void reprice(std::span<const BlockId> ids, double cost_s) override { evictor_.attr("reprice")(to_list(ids), cost_s); }

  void forget(BlockId id) override { evictor_.attr("forget")(id); }

  void check_integrity() const override { evictor_.attr("check_integrity")(); }

 private:
  template <typename Integer>
  static pybind11::list to_list(std::span<const Integer> integers) {
    return pybind11::cast(std::vector<Integer>(integers.begin(), integers.end()));
  }

  pybind11::object evictor_;
};

}  // namespace agentcache

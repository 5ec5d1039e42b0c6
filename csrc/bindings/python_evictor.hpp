// Evictors written in Python, as C++ calls them.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "core/evictor.hpp"

namespace agentcache {

/// Calls the methods of the same names of the Python class that derives from it.
/// \note The GIL must be held, but for `order`, which takes it. What Python raises comes out as error_already_set.
class PythonEvictor : public Evictor {
 public:
  std::size_t size() const override { return ask("__len__").cast<std::size_t>(); }

  void add(std::span<const BlockId> ids, std::span<const std::int64_t> positions, double now_s,
           const FreeContext& context = {}) override {
    ask("add", to_list(ids), to_list(positions), now_s, context);
  }

  void add_empty(std::span<const BlockId> ids) override { ask("add_empty", to_list(ids)); }

  std::vector<BlockId> evict(std::int64_t count, double now_s) override {
    return ask("evict", count, now_s).cast<std::vector<BlockId>>();
  }

  void remove(std::int64_t id) override {
    try {
      ask("remove", id);
    } catch (const pybind11::error_already_set& error) {
      if (error.matches(PyExc_KeyError)) throw NotFree(std::to_string(id));
      throw;
    }
  }

  std::vector<BlockId> order(double now_s) const override {
    const pybind11::gil_scoped_acquire locked;  // C++ evictors sort without it.
    return ask("order", now_s).cast<std::vector<BlockId>>();
  }

  void observe_reuse(double idle_s) override { tell("observe_reuse", idle_s); }
  bool learns_reuse() const override { return static_cast<bool>(pybind11::get_override(this, "observe_reuse")); }

  void reprice(std::span<const BlockId> ids, double cost_s) override { tell("reprice", to_list(ids), cost_s); }

  void forget(BlockId id) override { tell("forget", id); }

  void check_integrity() const override { ask("check_integrity"); }

 private:
  template <typename... Arguments>
  pybind11::object ask(const char* name, const Arguments&... arguments) const {
    const pybind11::function method = pybind11::get_override(this, name);
    if (method) return method(arguments...);
    PyErr_Format(PyExc_NotImplementedError, "an evictor written in Python must define %s", name);
    throw pybind11::error_already_set();
  }

  // Most policies need no such call, and define no method for it.
  template <typename... Arguments>
  void tell(const char* name, const Arguments&... arguments) const {
    if (const pybind11::function method = pybind11::get_override(this, name)) method(arguments...);
  }

  template <typename Integer>
  static pybind11::list to_list(std::span<const Integer> integers) {
    return pybind11::cast(std::vector<Integer>(integers.begin(), integers.end()));
  }
};

}  // namespace agentcache

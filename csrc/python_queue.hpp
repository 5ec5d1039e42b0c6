// The queue of free blocks for Python: blocks are objects there, known here by their id.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <utility>
#include <vector>

#include "free_queue.hpp"
#include "python_attribute.hpp"
#include "python_sequence.hpp"
#include "scanned_evictor.hpp"

namespace agentcache {

namespace py = pybind11;

/// Translates objects to ids and back, and asks the clock. `blocks[i]` has the id i.
class PythonQueue {
 public:
  /// `observe_reuse` is called with the seconds that reused blocks had been free, unless it is None.
  PythonQueue(py::list blocks, py::object evictor, py::object clock, py::object observe_reuse, py::type block_type,
              py::str id_attribute, py::str position_attribute)
      : clock(std::move(clock)),
        blocks_(std::move(blocks)),
        evictor_(std::move(evictor)),
        observe_reuse_(std::move(observe_reuse)),
        id_(block_type, std::move(id_attribute)),
        position_(block_type, std::move(position_attribute)),
        scans_(dynamic_cast<ScannedEvictor*>(evictor_.cast<Evictor*>()) != nullptr),
        queue_(blocks_.size(), *evictor_.cast<Evictor*>(), !observe_reuse_.is_none()) {}

  std::size_t size() const { return queue_.size(); }

  void append(const py::handle& block) {
    const BlockId id = read_id(block);
    const std::int64_t position = read_position(block);
    queue_.append_n({&id, 1}, {&position, 1}, tell_time());
  }

  void append_n(const py::object& blocks) {
    const Items items(blocks);
    if (items.size() == 0) return;
    const std::vector<BlockId> ids = read_ids(items);
    std::vector<std::int64_t> positions;
    positions.reserve(items.size());
    for (PyObject* block : items) positions.push_back(read_position(block));
    queue_.append_n(ids, positions, tell_time());
  }

  void prepend_n(const py::object& blocks) { queue_.prepend_n(read_ids(Items(blocks))); }

  py::list popleft_n(std::int64_t count) {
    const double now_s = tell_time();
    std::vector<BlockId> ids;
    {
      // Scans take long enough to let other threads run; the heaps' microseconds do not.
      std::optional<py::gil_scoped_release> unlocked;
      if (scans_) unlocked.emplace();
      ids = queue_.popleft_n(count, now_s);
    }
    return find_blocks(ids);
  }

  void remove(const py::handle& block) { queue_.remove(read_id(block)); }

  void forget_kv() { queue_.forget_kv(tell_time()); }

  py::list free_blocks() const { return find_blocks(queue_.order(ask_clock())); }

  double factor() const { return queue_.ending.factor; }
  void set_factor(double factor) { queue_.ending.factor = factor; }
  EndClass end_class() const { return queue_.ending.end_class; }
  void set_end_class(EndClass end_class) { queue_.ending.end_class = end_class; }
  JobNumber job() const { return queue_.ending.job; }
  void set_job(JobNumber job) { queue_.ending.job = job; }

  const Evictions& by_capacity() const { return queue_.by_capacity(); }
  const Evictions& by_reset() const { return queue_.by_reset(); }

  /// For Python's garbage collector: blocks know their pool, and that this queue.
  int traverse(visitproc visit, void* arg) const {
    for (const py::object* object : {&clock, static_cast<const py::object*>(&blocks_), &evictor_, &observe_reuse_}) {
      Py_VISIT(object->ptr());
    }
    return 0;
  }

  py::object clock;  ///< Gives seconds when it is called.

 private:
  BlockId read_id(py::handle block) const { return to_integer<BlockId>(id_.of(block.ptr()).ptr()); }

  // Without a hash, a block comes here only from a connector that may still read it: nothing to recompute.
  std::int64_t read_position(py::handle block) const {
    const py::object position = position_.of(block.ptr());
    return position.is_none() ? 0 : to_integer<std::int64_t>(position.ptr());
  }

  std::vector<BlockId> read_ids(const Items& blocks) const {
    std::vector<BlockId> ids;
    ids.reserve(blocks.size());
    for (PyObject* block : blocks) ids.push_back(read_id(block));
    return ids;
  }

  py::list find_blocks(const std::vector<BlockId>& ids) const {
    py::list found(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || index(ids[i]) >= blocks_.size())
        throw py::index_error("no block has the id " + std::to_string(ids[i]));
      PyObject* block = PyList_GET_ITEM(blocks_.ptr(), ids[i]);
      Py_INCREF(block);
      PyList_SET_ITEM(found.ptr(), static_cast<Py_ssize_t>(i), block);
    }
    return found;
  }

  double ask_clock() const { return clock().cast<double>(); }

  // Reuse is told late by less than a step: a removal is followed by the allocation for the same request.
  double tell_time() {
    const double now_s = ask_clock();
    for (const double idle_s : queue_.take_reuses(now_s)) observe_reuse_(idle_s);
    return now_s;
  }

  py::list blocks_;
  py::object evictor_;
  py::object observe_reuse_;
  Attribute id_;
  Attribute position_;
  bool scans_;
  FreeQueue queue_;
};

}  // namespace agentcache

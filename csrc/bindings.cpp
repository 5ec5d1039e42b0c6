// The Python module agentcache._evictor.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>

#include "asymcache.hpp"
#include "asymcache_linear.hpp"
#include "grouped.hpp"
#include "lru.hpp"
#include "max_score.hpp"
#include "pensieve.hpp"
#include "pinned.hpp"
#include "python_evictor.hpp"
#include "python_queue.hpp"
#include "python_sequence.hpp"

namespace py = pybind11;
using namespace agentcache;

namespace {

// Scans take long enough to let other threads run; the heaps' microseconds do not.
template <typename Class>
void bind_heap_evict(Class& bound) {
  bound.def("evict_n", &Evictor::evict_n, py::arg("count"), py::arg("now_s"));
}

template <typename Class>
void bind_scan_evict(Class& bound) {
  bound.def("evict_n", &Evictor::evict_n, py::arg("count"), py::arg("now_s"), py::call_guard<py::gil_scoped_release>());
}

template <typename Policy, typename Class>
void bind_asymcache(Class& bound) {
  bound.def(py::init([](std::int64_t num_blocks, double alpha_s, double beta_s, double tau0_s, double slope_s,
                        double base_s, double floor_s) {
              return std::make_unique<Policy>(num_blocks, ReuseFrequency(alpha_s, beta_s, tau0_s),
                                              RecomputeCost(slope_s, base_s, floor_s));
            }),
            py::kw_only(), py::arg("num_blocks"), py::arg("alpha_s"), py::arg("beta_s"), py::arg("tau0_s"),
            py::arg("slope_s"), py::arg("base_s"), py::arg("floor_s"));
  bound.def("set_lambda", &Policy::set_lambda, py::arg("value"));
}

void bind_evictor(py::module_& module) {
  py::class_<Evictor>(module, "Evictor")
      .def(
          "add_n",
          [](Evictor& evictor, const py::object& ids, const py::object& positions, double now_s, double factor,
             EndClass end_class, JobNumber job) {
            evictor.add_n(to_integers<BlockId>(ids), to_integers<std::int64_t>(positions), now_s,
                          {factor, end_class, job});
          },
          py::arg("block_ids"), py::arg("positions"), py::arg("now_s"), py::arg("factor"), py::arg("end_class") = 0,
          py::arg("job") = kNoJob)
      .def(
          "add_empty_n",
          [](Evictor& evictor, const py::object& ids) { evictor.add_empty_n(to_integers<BlockId>(ids)); },
          py::arg("block_ids"))
      .def("remove", &Evictor::remove, py::arg("block_id"))
      .def("order", &Evictor::order, py::arg("now_s"), py::call_guard<py::gil_scoped_release>())
      .def("__len__", &Evictor::size)
      .def("check_integrity", &Evictor::check_integrity);
}

void bind_pinned(py::module_& module) {
  py::class_<Pinned, Evictor> pinned(module, "Pinned");
  pinned
      .def(py::init<Evictor&, std::int64_t, bool>(), py::keep_alive<1, 2>(), py::arg("inner"), py::kw_only(),
           py::arg("num_blocks"), py::arg("cheapest_first"))
      .def("pin_next", &Pinned::pin_next, py::arg("pin"))
      .def(
          "claim", [](Pinned& evictor, PinId pin, const std::vector<BlockId>& ids) { evictor.claim(pin, ids); },
          py::arg("pin"), py::arg("block_ids"))
      .def("set_value", &Pinned::set_value, py::arg("pin"), py::arg("value"))
      .def("release_some", &Pinned::release_some, py::arg("pin"), py::arg("count"), py::arg("now_s"))
      .def("release", &Pinned::release, py::arg("pin"), py::arg("now_s"))
      .def(
          "adopt",
          [](Pinned& evictor, PinId pin, const py::object& ids, double now_s) {
            return evictor.adopt(pin, to_integers<BlockId>(ids), now_s);
          },
          py::arg("pin"), py::arg("block_ids"), py::arg("now_s"))
      .def("size_of", &Pinned::size_of, py::arg("pin"))
      .def("claimed_by", &Pinned::claimed_by, py::arg("pin"))
      .def_property_readonly("pinned", &Pinned::pinned)
      .def_property_readonly("adopted", &Pinned::adopted)
      .def("take_losses", &Pinned::take_losses);
  bind_heap_evict(pinned);
}

py::tuple to_tuple(const Evictions& evictions) {
  return py::make_tuple(evictions.blocks, evictions.age_s);
}

PythonQueue& queue_of(PyObject* self) {
  return *static_cast<PythonQueue*>(reinterpret_cast<py::detail::instance*>(self)->get_value_and_holder().value_ptr());
}

// vLLM removes blocks one by one; pybind11 would take as long to find this function as it takes to run.
PyObject* remove_block(PyObject* self, PyObject* block) {
  try {
    queue_of(self).remove(block);
    Py_RETURN_NONE;
  } catch (const NotFree&) {
    PyErr_Format(PyExc_RuntimeError, "remove() called on an invalid block: %S", block);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

void bind_queue(py::module_& module) {
  // Blocks know their pool and that its queue: a circle that Python must be able to see.
  const auto collectable = [](PyHeapTypeObject* heap_type) {
    PyTypeObject& type = heap_type->ht_type;
    type.tp_flags |= Py_TPFLAGS_HAVE_GC;
    type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
      Py_VISIT(Py_TYPE(self));
      return py::detail::is_holder_constructed(self) ? py::cast<PythonQueue&>(py::handle(self)).traverse(visit, arg)
                                                     : 0;
    };
  };
  py::class_<PythonQueue> queue(module, "FreeQueue", py::custom_type_setup(collectable));
  queue
      .def(py::init<py::list, py::object, py::object, py::object, py::type, py::str, py::str>(), py::kw_only(),
           py::arg("blocks"), py::arg("evictor"), py::arg("clock"), py::arg("observe_reuse"), py::arg("block_type"),
           py::arg("id_attribute"), py::arg("position_attribute"))
      .def_readwrite("clock", &PythonQueue::clock)
      .def_property("factor", &PythonQueue::factor, &PythonQueue::set_factor)
      .def_property("end_class", &PythonQueue::end_class, &PythonQueue::set_end_class)
      .def_property("job", &PythonQueue::job, &PythonQueue::set_job)
      .def_property_readonly("num_free_blocks", &PythonQueue::size)
      .def("append", &PythonQueue::append)
      .def("append_n", &PythonQueue::append_n)
      .def("prepend_n", &PythonQueue::prepend_n)
      .def("popleft_n", &PythonQueue::popleft_n)
      .def_property_readonly("by_capacity", [](const PythonQueue& queue) { return to_tuple(queue.by_capacity()); })
      .def_property_readonly("by_reset", [](const PythonQueue& queue) { return to_tuple(queue.by_reset()); })
      .def("forget_kv", &PythonQueue::forget_kv)
      .def("get_all_free_blocks", &PythonQueue::free_blocks);
  static PyMethodDef remove{"remove", remove_block, METH_O, nullptr};
  queue.attr("remove") =
      py::reinterpret_steal<py::object>(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(queue.ptr()), &remove));
}

}  // namespace

PYBIND11_MODULE(_evictor, module) {
  module.doc() = "Evictors in C++; agentcache.policy has one class for each.";
  py::register_exception<IntegrityError>(module, "IntegrityError",
                                         py::module_::import("agentcache.errors").attr("IntegrityError"));
  py::register_exception<NotFree>(module, "NotFreeError", PyExc_KeyError);
  bind_evictor(module);
  bind_queue(module);

  py::class_<Lru, Evictor> lru(module, "Lru");
  lru.def(py::init<>());
  bind_heap_evict(lru);

  py::class_<PythonEvictor, Evictor>(module, "PythonEvictor").def(py::init<py::object>());

  py::class_<AsymCache, Evictor> asymcache(module, "AsymCache");
  bind_asymcache<AsymCache>(asymcache);
  bind_heap_evict(asymcache);

  py::class_<AsymCacheLinear, Evictor> asymcache_linear(module, "AsymCacheLinear");
  bind_asymcache<AsymCacheLinear>(asymcache_linear);
  bind_scan_evict(asymcache_linear);

  py::class_<Grouped, Evictor> grouped(module, "Grouped");
  grouped.def(py::init([](std::int64_t num_blocks, double slope_s, double base_s, double floor_s, double window,
                          double prior_returns, double least_wait_s) {
                return std::make_unique<Grouped>(num_blocks, RecomputeCost(slope_s, base_s, floor_s),
                                                 Learning{window, prior_returns, least_wait_s});
              }),
              py::kw_only(), py::arg("num_blocks"), py::arg("slope_s"), py::arg("base_s"), py::arg("floor_s"),
              py::arg("window"), py::arg("prior_returns"), py::arg("least_wait_s"));
  bind_heap_evict(grouped);

  py::class_<MaxScore, Evictor> max_score(module, "MaxScore");
  max_score.def(py::init([](std::int64_t num_blocks, double alpha_s, double beta_s, double tau0_s) {
                  return std::make_unique<MaxScore>(num_blocks, ReuseFrequency(alpha_s, beta_s, tau0_s));
                }),
                py::kw_only(), py::arg("num_blocks"), py::arg("alpha_s"), py::arg("beta_s"), py::arg("tau0_s"));
  bind_scan_evict(max_score);

  py::class_<Pensieve, Evictor> pensieve(module, "Pensieve");
  pensieve.def(py::init([](std::int64_t num_blocks, double slope_s, double base_s, double floor_s) {
                 return std::make_unique<Pensieve>(num_blocks, RecomputeCost(slope_s, base_s, floor_s));
               }),
               py::kw_only(), py::arg("num_blocks"), py::arg("slope_s"), py::arg("base_s"), py::arg("floor_s"));
  bind_scan_evict(pensieve);

  bind_pinned(module);
}

// The Python module agentcache._evictor.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "asymcache.hpp"
#include "asymcache_linear.hpp"
#include "max_score.hpp"
#include "pensieve.hpp"

namespace py = pybind11;
using namespace agentcache;

namespace {

// pybind11's own conversion of a list takes several times as long, which shows at 100 blocks a call.
template <typename Integer>
std::vector<Integer> to_vector(const py::object& sequence) {
  const auto items = py::reinterpret_steal<py::object>(PySequence_Fast(sequence.ptr(), "expected a sequence of int"));
  if (!items) throw py::error_already_set();
  std::vector<Integer> integers(static_cast<std::size_t>(PySequence_Fast_GET_SIZE(items.ptr())));
  PyObject** item = PySequence_Fast_ITEMS(items.ptr());
  for (Integer& integer : integers) {
    const long long value = PyLong_AsLongLong(*item++);
    if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
    if (!std::in_range<Integer>(value)) throw std::invalid_argument("out of range: " + std::to_string(value));
    integer = static_cast<Integer>(value);
  }
  return integers;
}

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
          [](Evictor& evictor, const py::object& ids, const py::object& positions, double now_s, double factor) {
            evictor.add_n(to_vector<BlockId>(ids), to_vector<std::int64_t>(positions), now_s, factor);
          },
          py::arg("block_ids"), py::arg("positions"), py::arg("now_s"), py::arg("factor"))
      .def(
          "add_empty_n", [](Evictor& evictor, const py::object& ids) { evictor.add_empty_n(to_vector<BlockId>(ids)); },
          py::arg("block_ids"))
      .def("remove", &Evictor::remove, py::arg("block_id"))
      .def("order", &Evictor::order, py::arg("now_s"), py::call_guard<py::gil_scoped_release>())
      .def("__len__", &Evictor::size)
      .def("check_integrity", &Evictor::check_integrity);
}

}  // namespace

PYBIND11_MODULE(_evictor, module) {
  module.doc() = "Evictors in C++; agentcache.policy has one class for each.";
  py::register_exception<IntegrityError>(module, "IntegrityError",
                                         py::module_::import("agentcache.errors").attr("IntegrityError"));
  py::register_exception<NotFree>(module, "NotFreeError", PyExc_KeyError);
  bind_evictor(module);

  py::class_<AsymCache, Evictor> asymcache(module, "AsymCache");
  bind_asymcache<AsymCache>(asymcache);
  bind_heap_evict(asymcache);

  py::class_<AsymCacheLinear, Evictor> asymcache_linear(module, "AsymCacheLinear");
  bind_asymcache<AsymCacheLinear>(asymcache_linear);
  bind_scan_evict(asymcache_linear);

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
}

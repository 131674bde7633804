// lockstep.native: training and prediction by the library, from Python. What is said about arrays
// and their copies is in arrays.h, about options in options.h. The interpreter's lock is given up
// while the library works.

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "lockstep/backend/backend.h"
#include "lockstep/core/check.h"
#include "lockstep/nn/predictor.h"
#include "lockstep/parallel/data_parallel.h"
#include "options.h"

namespace lockstep::python {
namespace {

using namespace nb::literals;

using WithoutLock = nb::gil_scoped_release;

/// Where an object was made. Its threads are there alone: a child that a process forks has the
/// object without them, and would wait for them for ever.
class Home {
 public:
  /// Throws Error in a forked child; `what`: whose home it is.
  void expect(const char* what) const {
    if (is_here()) return;
    throw Error(concat("this ", what, " was made in process ", process_,
                       ", and its threads are not in ", "this forked child, process ", getpid(),
                       ": make one in the child, or start ",
                       "children by multiprocessing.get_context(\"spawn\")"));
  }
  bool is_here() const { return getpid() == process_; }

 private:
  const pid_t process_ = getpid();
};

/// What train_step() tells.
struct Step {
  double loss = 0;
  std::vector<double> losses;
  double grad_norm = 0;
};

/// A DataParallel, its architecture, and how many steps it has done.
class Training {
 public:
  Training(const std::string& devices, const std::string& arch,
           const std::array<std::int64_t, 4>& input, std::int64_t num_classes, nb::handle losses,
           nb::handle optimizer, nb::handle bn, nb::handle model, std::uint64_t seed,
           int ignore_index, int accumulate, double stall_timeout, bool tf32)
      : architecture_(architecture_of(arch, num_classes, model)), ignore_index_(ignore_index) {
    DataParallelOptions options;
    options.devices = parse_devices(devices);
    options.model = architecture_.model;
    options.norm = norm_of(bn, static_cast<int>(options.devices.size()));
    options.input = {input[0], input[2], input[3], input[1]};
    options.losses = losses_of(losses, ignore_index);
    options.optimizer = optimizer_of(optimizer);
    options.seed = seed;
    options.accumulate = accumulate;
    options.backend.tf32 = tf32;
    check_number("stall_timeout", stall_timeout, limits::kNotNegative);
    options.communicator.stall_timeout =
        std::chrono::milliseconds(static_cast<std::int64_t>(stall_timeout * 1e3));
    learning_rate_ = base_learning_rate(options.optimizer);
    const WithoutLock without_lock;
    net_ = std::make_unique<DataParallel>(std::move(options));
  }
  /// In a forked child the network stays: there is no thread to end.
  ~Training() {
    if (!home_.is_here()) static_cast<void>(net_.release());
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  Step train_step(nb::handle images, nb::handle labels, std::optional<float> lr) {
    home_.expect("DataParallel");
    const Array image_array = array_of(images, "images"), label_array = array_of(labels, "labels");
    check_images(image_array);
    const Shape shape = image_shape(image_array);
    check_input(shape);
    check_labels(label_array,
                 architecture_.task == Task::kClassification
                     ? std::vector<std::int64_t>{shape.batch()}
                     : std::vector<std::int64_t>{shape.batch(), shape.height(), shape.width()});
    StepResult result;
    {
      const WithoutLock without_lock;
      const Images read = read_images(image_array);
      const Labels read_as_labels = read_labels(label_array, ignore_index_);
      Batch batch;
      batch.image_view = read.values;
      batch.layout = read.layout;
      batch.label_view = read_as_labels.values;
      batch.size = {static_cast<int>(shape.height()), static_cast<int>(shape.width())};
      batch.samples.resize(static_cast<std::size_t>(shape.batch()));
      std::iota(batch.samples.begin(), batch.samples.end(), std::int64_t{0});
      result = net_->train_step(batch, steps, lr.value_or(learning_rate_));
    }
    ++steps;
    const auto first = result.losses.begin();
    return {result.loss,
            {first, first + static_cast<std::ptrdiff_t>(net_->options().losses.size())},
            result.grad_norm};
  }

  nb::dict state_dict() {
    home_.expect("DataParallel");
    TensorMap tensors;
    {
      const WithoutLock without_lock;
      tensors = net_->state_dict();
    }
    return arrays_of(std::move(tensors));
  }

  ImportSummary load_state_dict(nb::handle state_dict, bool strict) {
    home_.expect("DataParallel");
    const TensorMap tensors = tensors_of(state_dict);
    const WithoutLock without_lock;
    return net_->load_state_dict(tensors, strict);
  }

  std::string describe() const {
    std::string devices;
    for (const Device& device : net_->options().devices) {
      devices += (devices.empty() ? "" : ", ") + to_string(device);
    }
    return concat("<DataParallel: ", architecture_.description, ", ", net_->parameter_count(),
                  " parameters, on ", devices, ">");
  }
  std::int64_t parameter_count() const { return net_->parameter_count(); }
  int size() const { return net_->size(); }
  std::string placement_obstacle() const { return net_->placement_obstacle(); }

  std::int64_t steps = 0;

 private:
  /// A sample of another shape may have as many values.
  void check_input(const Shape& shape) const {
    const Shape& input = net_->options().input;
    if (shape.with_batch(1) == input.with_batch(1)) return;
    throw Error(concat("images: expected [N, ", input.channels(), ", ", input.height(), ", ",
                       input.width(), "] with N up to ", input.batch(), ", as in DataParallel's ",
                       "input, got [", shape.batch(), ", ", shape.channels(), ", ", shape.height(),
                       ", ", shape.width(), "]"));
  }

  const Home home_;
  const Architecture architecture_;
  const int ignore_index_;
  float learning_rate_ = 0;
  std::unique_ptr<DataParallel> net_;
};

/// A Predictor for several threads, which take turns.
class SharedPredictor {
 public:
  SharedPredictor(const std::string& arch, nb::handle weights, std::int64_t num_classes,
                  nb::handle model, nb::handle bn, const std::string& device, int threads,
                  const std::string& output, bool own_statistics, bool tf32) {
    const std::vector<Device> devices = parse_devices(device);
    if (devices.size() != 1) {
      throw ConfigError(
          concat("device: expected one device, such as 'cpu:1' or 'cuda:0', got '", device, "'"));
    }
    if (threads < 0) throw ConfigError(concat("threads: expected 0 or more, got ", threads));
    Model network = architecture_of(arch, num_classes, model).model;
    if (own_statistics) network = normalize_by_image(std::move(network));
    const PredictorOptions options{.device = devices.front(),
                                   .threads = threads,
                                   .output = output,
                                   .norm = norm_of(bn, 1),
                                   .backend = {.tf32 = tf32}};
    predictor_ = std::make_unique<Predictor>(std::move(network), tensors_of(weights), options);
  }

  /// In a forked child the network stays: there is no thread to end.
  ~SharedPredictor() {
    if (!home_.is_here()) static_cast<void>(predictor_.release());
  }
  SharedPredictor(const SharedPredictor&) = delete;
  SharedPredictor& operator=(const SharedPredictor&) = delete;

  nb::tuple predict(nb::handle images) {
    home_.expect("Predictor");
    const Array array = array_of(images, "images");
    check_images(array);
    Shape shape;
    std::vector<float> logits;
    std::vector<std::int32_t> classes;
    {
      const WithoutLock without_lock;
      const Images read = read_images(array);
      const std::lock_guard turn(mutex_);
      const auto prediction = predictor_->predict(read.values, image_shape(array), read.layout);
      shape = prediction.shape;
      logits.assign(prediction.logits.begin(), prediction.logits.end());
      classes.assign(prediction.classes.begin(), prediction.classes.end());
    }
    const auto extent = [&](int d) { return static_cast<std::size_t>(shape[d]); };
    if (shape.rank() == 2) {
      return nb::make_tuple(to_numpy(std::move(classes), {extent(0)}),
                            to_numpy(std::move(logits), {extent(0), extent(1)}));
    }
    const std::int64_t channels = shape.channels(), row = shape.width() * channels;
    return nb::make_tuple(to_numpy(std::move(classes), {extent(0), extent(1), extent(2)}),
                          to_numpy(std::move(logits), {extent(0), extent(3), extent(1), extent(2)},
                                   {shape.height() * row, 1, row, channels}));
  }

 private:
  const Home home_;
  std::mutex mutex_;
  std::unique_ptr<Predictor> predictor_;
};

/// The library's errors as those of the package, by the exit codes that they have in a program.
void translate(const std::exception_ptr& failure, void*) {
  const auto raise = [](int exit_code, const char* message) {
    const nb::module_ errors = nb::module_::import_("lockstep.errors");
    const nb::object error = exit_code == 1
                                 ? errors.attr("LockstepError")(message)
                                 : errors.attr("error_for")(exit_code, message, nb::list());
    PyErr_SetObject(error.type().ptr(), error.ptr());
  };
  try {
    std::rethrow_exception(failure);
  } catch (const ConfigError& error) {
    raise(2, error.what());
  } catch (const DataError& error) {
    raise(3, error.what());
  } catch (const NonFiniteError& error) {
    raise(4, error.what());
  } catch (const ReplicaError& error) {
    raise(5, error.what());
  } catch (const Error& error) {
    raise(1, error.what());
  }
}

void define_training(nb::module_& module) {
  nb::class_<Step>(module, "StepResult", "What a step came to.")
      .def_ro("loss", &Step::loss,
              "The sum of all losses, each a mean over the batch times its weight.")
      .def_ro("losses", &Step::losses, "Each of them, in their order.")
      .def_ro("grad_norm", &Step::grad_norm, "Euclidean, of the whole batch's gradient.")
      .def("__repr__", [](const Step& step) {
        return concat("StepResult(loss=", step.loss, ", grad_norm=", step.grad_norm, ")");
      });

  nb::class_<ImportSummary>(module, "ImportSummary", "What load_state_dict() found.")
      .def_ro("loaded", &ImportSummary::loaded, "How many tensors.")
      .def_ro("skipped", &ImportSummary::skipped, "Those of another shape, with both shapes.")
      .def_ro("missing", &ImportSummary::missing, "Names of the network's that did not come.")
      .def_ro("unexpected", &ImportSummary::unexpected, "Names that the network has not.")
      .def("__str__", &describe_import);

  nb::class_<Training>(module, "DataParallel",
                       "Trains a network on all its devices. Used by one thread at a time.")
      .def(nb::init<const std::string&, const std::string&, const std::array<std::int64_t, 4>&,
                    std::int64_t, nb::handle, nb::handle, nb::handle, nb::handle, std::uint64_t,
                    int, int, double, bool>(),
           "devices"_a, "arch"_a, "input"_a, "num_classes"_a, nb::kw_only(),
           "losses"_a = "cross_entropy", "optimizer"_a = "sgd", "bn"_a = "sync",
           "model"_a = nb::none(), "seed"_a = 0, "ignore_index"_a = 255, "accumulate"_a = 1,
           "stall_timeout"_a = 60.0, "tf32"_a = true,
           nb::sig("def __init__(self, devices: str, arch: str, input: tuple[int, int, int, int], "
                   "num_classes: int, *, losses: Options | Sequence[Options] = 'cross_entropy', "
                   "optimizer: Options = 'sgd', bn: Options = 'sync', "
                   "model: Mapping[str, object] | None = None, seed: int = 0, "
                   "ignore_index: int = 255, accumulate: int = 1, stall_timeout: float = 60.0, "
                   "tf32: bool = True) -> None"),
           "devices: 'cpu:4' for four virtual devices of the processor, 'cuda:0,1' for GPUs.\n"
           "input: [N, C, H, W] of the largest batch that will come.\n"
           "losses, optimizer, bn: a word, or a dictionary with the keys of a configuration's "
           "table,\n"
           "such as {'type': 'sgd', 'lr': 0.1}; model: the keys of [model], such as {'width': 8}.\n"
           "A loss may also have an 'output', 'out' or 'aux'. tf32: run.tf32, of GPUs.")
      .def(
          "train_step", &Training::train_step, "images"_a, "labels"_a, "lr"_a = nb::none(),
          nb::sig("def train_step(self, images: Array, labels: Array, lr: float | None = None) "
                  "-> StepResult"),
          "One step on a batch: float32 images [N, C, H, W], and a class for each pixel [N, H, W]\n"
          "or image [N]. lr: in place of the optimizer's.")
      .def_rw("steps", &Training::steps,
              "Steps that are done. Set it where a training goes on: bias corrections and dropout\n"
              "go by it.")
      .def("state_dict", &Training::state_dict,
           nb::sig("def state_dict(self) -> dict[str, NDArray[Any]]"),
           "Parameters and running statistics under PyTorch's names: copies.")
      .def("load_state_dict", &Training::load_state_dict, "state_dict"_a, "strict"_a = true,
           nb::sig("def load_state_dict(self, state_dict: Mapping[str, Array], "
                   "strict: bool = True) -> ImportSummary"),
           "Gives them to all devices. strict: anything missing, left over or of another shape is\n"
           "an error, and nothing is loaded.")
      .def_prop_ro("size", &Training::size, "The number of devices.")
      .def_prop_ro("parameter_count", &Training::parameter_count, "Learnable numbers.")
      .def_prop_ro("placement_obstacle", &Training::placement_obstacle,
                   "Why another number of devices comes to other bits; '' where it does not.")
      .def("__repr__", &Training::describe);
}

void define_prediction(nb::module_& module) {
  nb::class_<SharedPredictor>(
      module, "Predictor",
      "Runs a trained network on one device, by its running statistics or by each image's own. "
      "Threads take turns.")
      .def(
          nb::init<const std::string&, nb::handle, std::int64_t, nb::handle, nb::handle,
                   const std::string&, int, const std::string&, bool, bool>(),
          "arch"_a, "weights"_a, "num_classes"_a, nb::kw_only(), "model"_a = nb::none(),
          "bn"_a = nb::none(), "device"_a = "cpu:1", "threads"_a = 0, "output"_a = "out",
          "own_statistics"_a = false, "tf32"_a = true,
          nb::sig("def __init__(self, arch: str, weights: Mapping[str, Array], num_classes: int, "
                  "*, model: Mapping[str, object] | None = None, bn: Options | None = None, "
                  "device: str = 'cpu:1', threads: int = 0, output: str = 'out', "
                  "own_statistics: bool = False, tf32: bool = True) -> None"),
          "weights: a state_dict() of the network. model and bn as in training: bn's eps counts.\n"
          "threads: of the processor; 0: all. own_statistics: every image is normalised by its own "
          "mean\nand variance (bn.eval_stats = \"own\"). tf32: run.tf32, of GPUs.")
      .def("predict", &SharedPredictor::predict, "images"_a,
           nb::sig("def predict(self, images: Array) -> tuple[NDArray[numpy.int32], "
                   "NDArray[numpy.float32]]"),
           "The classes [N, H, W] and the logits [N, num_classes, H, W] of float32 images\n"
           "[N, C, H, W]; of a classification [N] and [N, num_classes].");
}

void define_files(nb::module_& module) {
  module.def(
      "load_weights",
      [](const std::filesystem::path& path) {
        TensorMap tensors;
        {
          const WithoutLock without_lock;
          tensors = load_weights(path);
        }
        return arrays_of(std::move(tensors));
      },
      "path"_a,
      nb::sig("def load_weights(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]"),
      "The tensors of a safetensors file, or of one that torch.save has written.");
  module.def(
      "save_safetensors",
      [](const std::filesystem::path& path, nb::handle state_dict) {
        const TensorMap tensors = tensors_of(state_dict);
        const WithoutLock without_lock;
        save_safetensors(path, tensors);
      },
      "path"_a, "state_dict"_a,
      nb::sig("def save_safetensors(path: str | os.PathLike[str], "
              "state_dict: Mapping[str, Array]) -> None"),
      "Writes a file of weights, whole or not at all.");
}

NB_MODULE(lockstep_native, module) {
  module.doc() = "Training and prediction by Lockstep's library, in this process.";
  module.attr("__name__") = "lockstep.native";  // where users import it from
  nb::register_exception_translator(translate);
  define_training(module);
  define_prediction(module);
  define_files(module);
  module.attr("__name__") = "lockstep_native";
}

}  // namespace
}  // namespace lockstep::python

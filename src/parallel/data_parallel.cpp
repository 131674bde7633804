#include "lockstep/parallel/data_parallel.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <thread>

#include "lockstep/core/check.h"
#include "parallel/data_parallel_impl.h"

namespace lockstep {

int threads_per_replica(int replicas) {
  int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const char* limit = std::getenv("OMP_NUM_THREADS");
  if (limit != nullptr && std::atoi(limit) > 0) cores = std::min(cores, std::atoi(limit));
  return std::max(1, cores / replicas);
}

namespace {

CommunicatorOptions communicator_options(const DataParallelOptions& options,
                                         const GradientExchangeChoice& exchange) {
  CommunicatorOptions result = options.communicator;
  result.all_reduce = exchange.kind == "all_reduce";
  result.sync_group = options.bn.mode == BatchNormMode::kSync ? options.bn.sync_group : 0;
  return result;
}

}  // namespace

DataParallel::Impl::Impl(const DataParallelOptions& run_options,
                         const NetworkFactory& network_factory)
    : options(run_options),
      factory(network_factory),
      exchange(choose_gradient_exchange(options.gradient_exchange.kind, options.devices)),
      communicators(make_communicators(options.devices, communicator_options(options, exchange))),
      replicas(options.devices.size()),
      states(options.devices.size()) {
  for (auto& slot : outcomes) slot.resize(options.devices.size());
  check_options();
  check_recording();
  group = std::make_unique<ReplicaGroup>(options.devices, *communicators);
}

void DataParallel::Impl::check_options() const {
  LOCKSTEP_CHECK(options.global_batch > 0, "expected a global batch of at least 1, got ",
                 options.global_batch);
  LOCKSTEP_CHECK(options.num_classes > 0, "expected at least 1 class, got ", options.num_classes);
  check_precision();
  check_loss_scale();
  const std::size_t weights = options.class_weight.size();
  if (weights == 0 || weights == static_cast<std::size_t>(options.num_classes)) return;
  throw ConfigError(concat("loss.class_weight has ", weights, " values for ", options.num_classes,
                           " classes; give one per class, or none"));
}

void DataParallel::Impl::check_precision() const {
  if (options.activations == DType::kFloat32) return;
  for (const Device& device : options.devices) {
    if (device.kind != DeviceKind::kCpu) continue;
    throw ConfigError(concat("run.precision = \"", to_string(options.activations),
                             "\" needs GPUs, but ", to_string(device),
                             " is asked for, and the CPU computes in fp32; use ",
                             "run.precision = \"fp32\", or -d cuda:all"));
  }
}

void DataParallel::Impl::check_loss_scale() const {
  if (!options.loss_scale) return;
  int exponent = 0;
  const float initial = options.loss_scale->initial;
  LOCKSTEP_CHECK(initial >= 1 && std::isfinite(initial) && std::frexp(initial, &exponent) == 0.5F,
                 "the initial loss scale must be a power of two and at least 1, is ", initial);
  LOCKSTEP_CHECK(options.loss_scale->growth_interval > 0,
                 "expected a growth interval of at least 1 step, got ",
                 options.loss_scale->growth_interval);
}

void DataParallel::Impl::check_recording() const {
  if (!options.cuda_graph) return;
  if (!communicators->at(0).can_record()) {
    throw ConfigError(
        "run.cuda_graph = true needs replicas on GPUs and the transport 'event'; set it to false");
  }
  if (exchange.kind == "all_reduce") {
    throw ConfigError(concat(
        "run.cuda_graph = true needs run.gradient_exchange = \"owner\"; it is \"all_reduce\" (",
        exchange.reason, ")"));
  }
  if (!options.bn.momentum) {
    throw ConfigError(
        "run.cuda_graph = true replays every step with one momentum: bn.momentum = \"cumulative\" "
        "changes from step to step; give a number, or set run.cuda_graph to false");
  }
  if (options.communicator.hook) {
    throw ConfigError(
        "run.cuda_graph = true replays exchanges without the host, so that nothing can be injected "
        "into them; set it to false");
  }
}

void DataParallel::Impl::build() {
  const int threads = threads_per_replica(ranks());
  group->run([this, threads](int rank) { build_rank(rank, threads); });
  group->run([this](int rank) {
    states[rank].gradients = make_gradients(rank);
    if (rank == 0) initialize_parameters(replicas[0].store, *replicas[0].backend, options.seed);
  });
}

std::unique_ptr<GradientExchange> DataParallel::Impl::make_gradients(int rank) {
  std::unique_ptr<BucketedSum> sums;
  if (exchange.kind == "all_reduce") {
    const Replica& replica = replicas[rank];
    sums = std::make_unique<BucketedSum>(
        communicators->at(rank), replica.store.grads(),
        plan_gradient_buckets(*replica.network, options.gradient_exchange));
  }
  StepMemory memory{&scalars(rank).lr, {}, &step_sums(rank).squared_norm};
  if (options.loss_scale) memory.grad_scale = &step_sums(rank).scale.inverse;
  for (int peer = 0; peer < ranks(); ++peer) {
    const StepSums& added_up = step_sums(peer);
    memory.losses.push_back(options.loss_scale ? &added_up.guard : &added_up.loss);
  }
  if (options.loss_scale) states[rank].guards = memory.losses;
  return std::make_unique<GradientExchange>(replicas, rank, options.sgd, std::move(memory),
                                            std::move(sums));
}

void DataParallel::Impl::build_rank(int rank, int threads) {
  communicators->progress().enter(rank, "building", "the replica");
  Replica& replica = replicas[rank];
  RankState& state = states[rank];
  replica.rank = rank;
  replica.backend = make_backend(options.devices[rank], threads, options.backend);
  Backend& backend = *replica.backend;
  communicators->at(rank).attach(backend);
  const std::int64_t batch = shard_of(options.global_batch, ranks(), 0).count;
  const Shape input{batch, options.size.height, options.size.width, 3};
  replica.network = factory(input, {.training = true, .activations = options.activations}, backend,
                            replica.store);
  state.labels = backend.allocate(static_cast<std::size_t>(input.rows()));
  if (stages(rank)) {
    state.staged_images =
        backend.allocate(sizeof(float) * static_cast<std::size_t>(input.elements()));
    state.staged_labels = backend.allocate(static_cast<std::size_t>(input.rows()));
  }
  state.sums = backend.allocate(sizeof(StepSums));
  state.readback = backend.make_readback(outcome_tensor(rank), kStepSlots);
  state.scalars = backend.allocate(sizeof(StepScalars));
  const auto classes = static_cast<std::size_t>(options.num_classes);
  state.confusion = backend.allocate(classes * classes * sizeof(std::int64_t));
  if (options.class_weight.empty()) return;
  state.class_weight = backend.allocate(classes * sizeof(float));
  backend.upload(Tensor(state.class_weight.data(), Shape{1, options.num_classes}),
                 options.class_weight.data());
  backend.synchronize();
}

DataParallel::DataParallel(const DataParallelOptions& options, const NetworkFactory& factory)
    : impl_(std::make_unique<Impl>(options, factory)) {
  try {
    impl_->build();
    replicate();
    if (options.loss_scale) set_loss_scale({.scale = options.loss_scale->initial});
  } catch (...) {
    leave_stuck_threads();
    throw;
  }
}

// Replicas read each other's memory on the device: none of it goes before all have done what they
// were given, also in a run that failed.
DataParallel::~DataParallel() {
  leave_stuck_threads();
  if (!impl_) return;
  for (const Replica& replica : impl_->replicas) {
    try {
      if (replica.backend) replica.backend->synchronize();
    } catch (const std::exception&) {  // of a device that is broken: it does nothing any more
    }
  }
}

void DataParallel::leave_stuck_threads() {
  // A thread that could not be stopped still works on the replicas: they must outlive it, so they
  // stay.
  if (impl_->group->has_stuck_thread()) static_cast<void>(impl_.release());
}

int DataParallel::steps_ahead() const {
  return impl_->replicas[0].backend->asynchronous() ? kStepSlots - 1 : 0;
}

int DataParallel::size() const { return impl_->ranks(); }
Replica& DataParallel::replica(int rank) { return impl_->replicas[rank]; }
ReplicaGroup& DataParallel::group() { return *impl_->group; }
CommunicatorGroup& DataParallel::communicators() { return *impl_->communicators; }
const GradientExchangeChoice& DataParallel::gradient_exchange() const { return impl_->exchange; }
const DataParallelOptions& DataParallel::options() const { return impl_->options; }

}  // namespace lockstep

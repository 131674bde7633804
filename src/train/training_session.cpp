#include "train/training_session.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "backend/cpu_kernels.h"
#include "backend/host_threads.h"
#include "backend/probe.h"
#include "core/words.h"
#include "data/data_warnings.h"
#include "lockstep/core/check.h"
#include "run/choices.h"
#include "run/environment.h"
#include "run/summary.h"
#include "step/replica.h"
#include "step/scatter.h"
#include "sync/transport.h"
#include "train/before_training.h"
#include "train/plan.h"
#include "train/training.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

std::string fault_of(const TrainRequest& request) {
  if (!request.fault.empty()) return request.fault;
  const char* from_environment = std::getenv("LOCKSTEP_FAULT");
  return from_environment == nullptr ? "" : from_environment;
}

/// Nothing where there is one.
std::string describe_processes(const RankLayout& layout) {
  std::string text;
  for (int process = 0; layout.processes() > 1 && process < layout.processes(); ++process) {
    text += (process == 0 ? "" : ", ") + layout.describe(process);
  }
  return text;
}

/// What multiplies bf16 numbers, where CPU devices may; else empty.
std::string bf16_products(const RunOptions& run, const Device& device) {
  const bool may = run.precision == DType::kBFloat16;
  return may && device.kind == DeviceKind::kCpu ? cpu_kernels().bf16_products() : "";
}

bool rounds_to_tf32(const RunOptions& run, const Device& device) {
  return run.tf32 && run.precision == DType::kFloat32 && device.kind == DeviceKind::kCuda;
}

// Nobody has named the run: one that has ended goes on for more steps, but not as another one.
void check_is_same(const std::filesystem::path& newest, const Config& config) {
  const auto ended = read_summary(newest);
  if (!ended || ended->config_hash == config_hash(config)) return;
  Config there = load_config(RunFolder{newest}.config(), {}, nullptr, *config.tables);
  there.run.max_iters = config.run.max_iters;
  there.run.epochs = config.run.epochs;
  there.data.root = config.data.root;
  const std::string difference = config_difference(there, config);
  if (difference.empty()) return;
  throw ConfigError(concat("--resume: the newest run of this name, ", newest.string(),
                           ", has ended and had another configuration: ", difference,
                           "; begin a new run without --resume, or name one with -o"));
}

}  // namespace

TrainingSession::TrainingSession(const TrainRequest& asked)
    : request(asked),
      config(asked.config),
      world(asked.world),
      warnings(asked.warnings),
      classes(class_names(config.data)),
      devices_text(devices_or_default(asked.devices)),
      devices(parse_devices(devices_text)),
      layout(make_rank_layout(world, devices)),
      fault(fault_of(asked)),
      started(asked.notes) {
  begin_computing(config, devices);
  check_processes();
  check_can_be_written(config);
  choose_folder();
  resume = ResumePoint(world, request.resume, folder, warnings);
  make_loader();
  make_alike_replicas();
  evaluator = std::make_unique<Evaluator>(config, *replicas);
  warn_of_data();
  if (const auto text =
          window_warning(config, config.bn.eval_stats, replicas->own_replica().network())) {
    warnings.push_back(*text);
  }
  read_data();
  if (resume.found()) {
    resume.restore(*replicas, config, *data, folder, world, warnings);
  } else {
    load_initial_weights();
    warn_of_few_values();
  }
  world.on_first([this] { data->write(folder.data()); });
  if (fault.active()) warnings.push_back("faults are injected (LOCKSTEP_FAULT)");
}

// What would make the processes train different things, or to other bits than one process.
void TrainingSession::check_processes() {
  if (world.size() == 1) return;  // the program's hash takes a moment
  if (const auto other = world.first_to_differ(program_hash())) {
    throw ConfigError(concat(layout.describe(*other), " runs another program than ",
                             layout.describe(0), "; copy one build of it to all machines"));
  }
  if (const auto other = world.first_to_differ(config_hash(config))) {
    throw ConfigError(concat(layout.describe(*other), " has another configuration than ",
                             layout.describe(0), " (lockstep config show tells it); give all ",
                             "processes the same file and the same -s"));
  }
  const std::string bf16_by = bf16_products(config.run, devices.front());
  if (const auto other = world.first_to_differ(bf16_by)) {
    throw ConfigError(concat(layout.describe(*other), " does not multiply bf16 numbers by what ",
                             layout.describe(0), " does (", bf16_by.empty() ? "nothing" : bf16_by,
                             "); leave run.precision out, or take processors that are alike"));
  }
  if (const auto other = world.first_to_differ(cpu_kernels().name)) {
    throw ConfigError(concat(layout.describe(*other), " computes with other instructions than ",
                             layout.describe(0), ", which has '", cpu_kernels().name,
                             "': give all processes the same LOCKSTEP_CPU (avx2 runs everywhere), ",
                             "or set run.portable = true"));
  }
  const std::string processor = config.run.portable ? "" : processor_name();
  if (const auto other = world.first_to_differ(processor)) {
    warnings.push_back(concat(layout.describe(*other), " has another processor than ",
                              layout.describe(0), ": results may differ from those of other ",
                              "placements in their last bits"));
  }
  const int online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  if (host_threads() < online && std::getenv("OMP_NUM_THREADS") == nullptr) {
    warnings.push_back(concat("this process may use ", host_threads(), " of the ", online,
                              " cores of its machine; give mpirun --bind-to none"));
  }
}

// Process 0 knows: the others write beside it what is theirs.
void TrainingSession::choose_folder() {
  const fs::path root = world.from_first([this] {
    find_folder();
    return folder.root.string();
  });
  if (!world.first()) folder.root = root / "processes" / std::to_string(world.process());
}

void TrainingSession::find_folder() {
  folder.root = request.output;
  if (folder.root.empty() && request.resume) {
    folder = resumes_newest(*request.resume) ? newest_run_folder(config)
                                             : RunFolder{run_of(*request.resume)};
    if (resumes_newest(*request.resume) && !folder.root.empty()) check_is_same(folder.root, config);
  }
  lock_folder();
  if (folder.holds_run() && !request.resume) {
    throw ConfigError(concat(
        folder.root.string(),
        " already holds a run: continue it with --resume, or choose another folder with -o"));
  }
}

// Trainings that begin in the same second find the same new name: all but one look again.
void TrainingSession::lock_folder() {
  if (!folder.root.empty()) lock.emplace(folder.root);
  while (!lock) {
    folder = new_run_folder(config);
    try {
      lock.emplace(folder.root);
    } catch (const ConfigError&) {
      continue;
    }
  }
}

void TrainingSession::make_loader() {
  LoaderOptions options = loader_options(config, config.global_batch(layout.ranks()));
  options.first_batch = resume.step();
  if (world.size() > 1) {
    options.own_places = [own = layout, accumulate = config.micro_batches()](std::int64_t count) {
      return own_places(count, accumulate, own);
    };
  }
  loader = std::make_unique<TrainLoader>(config.data, options);
  max_iters = config.max_iters(loader->batches_per_epoch());
  resume.check_steps(max_iters);
  for (std::string& text :
       check_training(config, devices, world,
                      {loader->size(), loader->samples_per_epoch(), loader->batches_per_epoch()}))
    warnings.push_back(std::move(text));
}

// Where processes have chosen other convolutions than the first they take its choices, and all make
// their replicas once more: a step's bits are those of one choice.
void TrainingSession::make_alike_replicas() {
  const Config own = with_steps(config, max_iters);
  const auto make = [&] {
    replicas.reset();
    replicas = make_replicas(own, devices, config.global_batch(layout.ranks()), loader->size(),
                             fault.hook(), world);
  };
  make();
  const std::vector<int> changed = follow_first_process(world);
  if (std::accumulate(changed.begin(), changed.end(), 0) > 0) make();
}

// A mistake in the data costs hours; a look at some of them a second.
void TrainingSession::warn_of_data() {
  for (const Dataset* dataset : {&loader->dataset(), &evaluator->dataset()})
    warn_of_skipped(*dataset, warnings);
  warn_of_padding(loader->unpadded_size(), loader->size(), warnings);
  if (resume.found()) return;
  for (std::string& text : look_at_data(config, loader->dataset(), evaluator->dataset()))
    warnings.push_back(std::move(text));
}

void TrainingSession::read_data() {
  data.emplace(loader->dataset(), evaluator->dataset(), config.data);
  if (world.size() == 1) return;
  if (const auto other = world.first_to_differ(data->hash())) {
    throw DataError(concat(layout.describe(*other), " has other data than ", layout.describe(0),
                           " in ", config.data.root.string(), "; give all processes the same"));
  }
}

// One image's statistics are no batch's; and of fewer values than 32 a variance is off by a
// quarter, sqrt(2 / 31), by chance alone.
void TrainingSession::warn_of_few_values() {
  constexpr std::int64_t kFewValues = 32;
  const bool own = config.bn.statistics() == StatisticsOf::kDevice && !config.bn.corrects();
  if (!own || layout.ranks() == 1) return;
  const std::vector<NormPlan> norms =
      plan_norms(config.bn, chunk_sizes(config.micro_batch(layout.ranks()), layout.ranks()),
                 replicas->own_replica().network());
  const auto fewest =
      std::min_element(norms.begin(), norms.end(),
                       [](const NormPlan& a, const NormPlan& b) { return a.local < b.local; });
  if (fewest == norms.end()) return;
  const std::int64_t images = fewest->local / (fewest->height * fewest->width);
  if (images > 1 && fewest->local >= kFewValues) return;
  warnings.push_back(concat("every device normalises by statistics of ", count_of(images, "image"),
                            " (", fewest->local, " values per channel at ", fewest->layers.front(),
                            "); lockstep diagnose ", folder.config().string(),
                            " says whether that matters"));
}

void TrainingSession::load_initial_weights() {
  if (!config.model.backbone_weights.empty()) {
    // The heads are missing from such a file, and its own classifier is left over.
    import_initial("model.backbone_weights", config.model.backbone_weights);
  }
  if (request.init.empty()) return;
  const ImportSummary summary = import_initial("--init", request.init);
  const bool whole =
      summary.skipped.empty() && summary.missing.empty() && summary.unexpected.empty();
  if (whole || !world.first()) return;
  warnings.push_back(started.back());
  started.pop_back();
}

ImportSummary TrainingSession::import_initial(const char* asked_by, const fs::path& path) {
  if (!world.first()) return replicas->load_state_dict({}, false);
  std::vector<std::string> notes;
  const ImportSummary summary = import_weights(*replicas, path, config, &notes);
  for (std::string& text : notes) started.push_back(std::move(text));
  started.push_back(concat(asked_by, " ", path.string(), ": ", describe_import(summary)));
  return summary;
}

RunDescription TrainingSession::describe() const {
  const GradientExchangeChoice& exchange = replicas->gradient_exchange();
  Backend& backend = replicas->own_replica().backend();
  return {.config = config,
          .folder = folder,
          .console = world.first() ? request.console : Console::kQuiet,
          .first_process = world.first(),
          .devices = devices_text,
          .tf32 = rounds_to_tf32(config.run, backend.device()),
          .bf16_products = bf16_products(config.run, backend.device()),
          .devices_by_default = request.devices.empty(),
          .device_count = layout.ranks(),
          .threads = backend.device().kind == DeviceKind::kCpu ? describe_host_threads() : "",
          .processes = describe_processes(layout),
          .cell = request.cell,
          .transport = to_string(resolve_transport(config.run.transport, layout)),
          .gradient_exchange = to_string(exchange.kind),
          .exchange_reason = exchange.reason,
          .convolutions = summarize_choices(),
          .environment = describe_environment(devices),
          .data = data->hash().empty() ? Json()
                                       : Json{{"hash", data->hash()}, {"files", data->files()}},
          .algorithms = backend.convolutions().conv2d_algorithms(),
          .size = loader->size(),
          .parameters = replicas->parameter_count(),
          .step = resume.step(),
          .max_iters = max_iters,
          .steps_per_epoch = loader->batches_per_epoch(),
          .best_score = resume.state().best_score,
          .resumed = resume.path(),
          .started = started};
}

}  // namespace lockstep

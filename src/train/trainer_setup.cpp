#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <sstream>
#include <utility>

#include "backend/processor.h"
#include "core/json.h"
#include "data/data_check.h"
#include "io/atomic_file.h"
#include "lockstep/backend/backend.h"
#include "lockstep/core/check.h"
#include "lockstep/io/weights.h"
#include "run/choices.h"
#include "run/environment.h"
#include "run/shared_checkpoint.h"
#include "step/replica.h"
#include "step/scatter.h"
#include "train/trainer_impl.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

std::string fault_of(const TrainRequest& request) {
  if (!request.fault.empty()) return request.fault;
  const char* from_environment = std::getenv("LOCKSTEP_FAULT");
  return from_environment == nullptr ? "" : from_environment;
}

bool is_auto(const std::string& resume) { return resume.empty() || resume == "auto"; }

// The run folder of RUN/ckpt/NAME.safetensors; empty for a checkpoint that lies elsewhere.
fs::path run_of(const fs::path& checkpoint) {
  const fs::path parent = fs::absolute(checkpoint).parent_path();
  return parent.filename() == "ckpt" ? parent.parent_path() : fs::path();
}

// The step that a checkpoint holds; nullopt when it cannot be loaded.
std::optional<std::int64_t> loadable_step(const fs::path& checkpoint) {
  try {
    return load_checkpoint(checkpoint).state.iteration;
  } catch (const DataError&) {
    return std::nullopt;
  }
}

}  // namespace

Trainer::Trainer(const TrainRequest& request)
    : request_(request),
      world_(request.world),
      config_(request_.config),
      warnings_(request.warnings),
      devices_text_(request.devices.empty() ? default_devices() : request.devices),
      devices_(parse_devices(devices_text_)),
      layout_(make_rank_layout(request.world, devices_)),
      fault_(fault_of(request)),
      lap_ranks_(layout_.devices),
      all_ranks_(layout_.devices) {
  check_processes();
  check_can_be_written(config_);
  choose_folder();
  load_resume_point();
  build();
  if (resumed_) {
    restore();
  } else {
    load_initial_weights();
  }
  open_folder();
  log_start();
}

// What would make the processes train different things, or to other bits than one process.
void Trainer::check_processes() {
  if (world_.size() == 1) return;  // the program's hash takes a moment
  if (const auto other = world_.first_to_differ(program_hash())) {
    throw ConfigError(concat(layout_.describe(*other), " runs another program than ",
                             layout_.describe(0), "; copy one build of it to all machines"));
  }
  if (const auto other = world_.first_to_differ(config_hash(config_))) {
    throw ConfigError(concat(layout_.describe(*other), " has another configuration than ",
                             layout_.describe(0), " (lockstep config show tells it); give all ",
                             "processes the same file and the same -s"));
  }
  if (const auto other = world_.first_to_differ(processor_name())) {
    warnings_.push_back(concat(layout_.describe(*other), " has another processor than ",
                               layout_.describe(0), ": results may differ from those of other ",
                               "placements in their last bits"));
  }
  const int online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  if (host_threads() < online && std::getenv("OMP_NUM_THREADS") == nullptr) {
    warnings_.push_back(concat("this process may use ", host_threads(), " of the ", online,
                               " cores of its machine; give mpirun --bind-to none"));
  }
}

// Process 0 knows: the others write beside it what is theirs.
void Trainer::choose_folder() {
  const fs::path root = world_.from_first([this] {
    find_folder();
    return folder_.root.string();
  });
  if (!world_.first()) folder_.root = root / "processes" / std::to_string(world_.process());
}

void Trainer::find_folder() {
  if (!config_.run.metrics_file.empty()) check_metrics_file(config_.run.metrics_file);
  folder_.root = request_.output;
  if (folder_.root.empty() && request_.resume) {
    folder_ = is_auto(*request_.resume) ? newest_run_folder(config_)
                                        : RunFolder{run_of(*request_.resume)};
  }
  lock_folder();
  if (folder_.holds_run() && !request_.resume) {
    throw ConfigError(concat(
        folder_.root.string(),
        " already holds a run: continue it with --resume, or choose another folder with -o"));
  }
}

// Trainings that begin in the same second find the same new name: all but one look again.
void Trainer::lock_folder() {
  if (!folder_.root.empty()) lock_.emplace(folder_.root);
  while (!lock_) {
    folder_ = new_run_folder(config_);
    try {
      lock_.emplace(folder_.root);
    } catch (const ConfigError&) {
      continue;
    }
  }
}

void Trainer::load_resume_point() {
  const std::string path = world_.from_first([this] {
    find_resume_point();
    return resumed_ ? resumed_->path.string() : std::string();
  });
  if (path.empty()) return;
  const SharedCheckpoint shared(world_, path);
  if (!resumed_) resumed_ = FoundCheckpoint{path, load_checkpoint(shared.path())};
}

void Trainer::find_resume_point() {
  if (!request_.resume) return;
  if (is_auto(*request_.resume)) {
    resumed_ = find_newest_checkpoint(folder_.checkpoints(), warnings_);
    if (!resumed_) {
      warnings_.push_back(
          concat("nothing to resume in ", folder_.root.string(), ": starting from step 0"));
    }
    return;
  }
  const fs::path path = *request_.resume;
  if (!fs::exists(path)) throw ConfigError(concat("--resume: there is no file ", path.string()));
  resumed_ = FoundCheckpoint{path, load_checkpoint(path)};
}

void Trainer::build() {
  const std::int64_t batch = config_.global_batch(layout_.ranks());
  iteration_ = resumed_ ? resumed_->checkpoint.state.iteration : 0;
  begun_ = iteration_;
  logged_iteration_ = iteration_;
  LoaderOptions options{.batch = batch,
                        .drop_last = config_.batch.drop_last,
                        .seed = config_.run.seed,
                        .first_batch = iteration_};
  if (world_.size() > 1) {
    options.own_places = [layout = layout_, accumulate = config_.batch.accumulate](
                             std::int64_t count) { return own_places(count, accumulate, layout); };
  }
  loader_ = std::make_unique<TrainLoader>(config_.data, options);
  max_iters_ = config_.max_iters(loader_->batches_per_epoch());
  if (iteration_ > max_iters_) {
    throw ConfigError(concat(resumed_->path.string(), " is of step ", iteration_, ", beyond the ",
                             max_iters_, " steps of this run"));
  }
  make_alike_replicas();
  evaluator_ = std::make_unique<Evaluator>(config_, *replicas_);
  warn_of_data();
  classes_ = class_names(config_.data);
  losses_.reserve(static_cast<std::size_t>(max_iters_));
  seconds_.reserve(static_cast<std::size_t>(max_iters_));
  // The first steps warm caches and allocators up: a quarter at most.
  warm_up_ = std::min<std::int64_t>(5, (max_iters_ - iteration_) / 4);
}

// Where processes have chosen other convolutions than the first they take its choices, and all make
// their replicas once more: a step's bits are those of one choice.
void Trainer::make_alike_replicas() {
  const std::int64_t batch = config_.global_batch(layout_.ranks());
  const auto make = [&] {
    replicas_.reset();
    replicas_ = make_replicas(config_, devices_, batch, loader_->size(), fault_.hook(), world_);
  };
  make();
  const std::vector<int> changed = follow_first_process(world_);
  if (std::accumulate(changed.begin(), changed.end(), 0) > 0) make();
}

// A mistake in the data costs hours; a look at some of them a second.
void Trainer::warn_of_data() {
  constexpr std::int64_t kLookedAt = 64;
  for (const Dataset* dataset : {&loader_->dataset(), &evaluator_->dataset()})
    warn_of_skipped(*dataset, warnings_);
  if (find_layout(config_.data).generated || resumed_) return;
  const std::vector<std::int64_t> samples = sample_evenly(loader_->dataset(), kLookedAt);
  const SplitReport report =
      examine_split(loader_->dataset(), config_.data, Split::kTrain, samples, config_.data.workers);
  for (const std::string& text : data_warnings(report, config_.data)) warnings_.push_back(text);
}

// Newer ones would be overwritten, and count as the newest when the next resume looks.
void Trainer::set_aside_newer_checkpoints() {
  if (!world_.first()) return;
  for (const fs::path& path : numbered_checkpoints(folder_.checkpoints())) {
    if (*checkpoint_iteration(path) <= iteration_) return;
    if (!is_auto(*request_.resume)) {
      throw ConfigError(
          concat(folder_.root.string(), " has a newer checkpoint, ", path.filename().string(),
                 ": continue from it with --resume auto, or train into another folder with -o"));
    }
    // The newest that could be loaded is the one that was found: this one is damaged, or its name
    // is not that of the step it holds.
    const auto held = loadable_step(path);
    const std::string reason =
        held ? concat("holds step ", *held, ", not that of its name") : "cannot be used";
    for (const fs::path& file : {path, state_path(path)}) {
      if (!fs::exists(file)) continue;
      const fs::path aside = fs::path(file).concat(held ? ".misnamed" : ".damaged");
      fs::rename(file, aside);
      warnings_.push_back(
          concat(file.filename().string(), " ", reason, ": kept as ", aside.filename().string()));
    }
  }
}

void Trainer::restore() {
  const TrainingState& state = resumed_->checkpoint.state;
  if (run_of(resumed_->path) == fs::absolute(folder_.root).lexically_normal())
    set_aside_newer_checkpoints();
  if (state.config_hash != config_hash(config_)) {
    warnings_.push_back(concat("the configuration is not the one that ", resumed_->path.string(),
                               " was trained with: the result will be that of neither"));
  }
  if (const fs::path run = run_of(resumed_->path); !run.empty()) {
    const auto changed = changed_choices(RunFolder{run}.environment());
    if (changed) warnings_.push_back(*changed);
  }
  restore_checkpoint(*replicas_, resumed_->checkpoint, config_.bn, warnings_);
  losses_ = state.losses;
  losses_.reserve(static_cast<std::size_t>(max_iters_));
  best_score_ = state.best_score;
  best_iter_ = state.best_iter;
  // A log line covers the steps since the last one, also when the run was cut in between.
  logged_iteration_ = iteration_ / config_.run.log_every * config_.run.log_every;
}

void Trainer::load_initial_weights() {
  if (!config_.model.backbone_weights.empty()) {
    // The heads are missing from such a file, and its own classifier is left over.
    import_initial("model.backbone_weights", config_.model.backbone_weights);
  }
  if (request_.init.empty()) return;
  const ImportSummary summary = import_initial("--init", request_.init);
  const bool whole =
      summary.skipped.empty() && summary.missing.empty() && summary.unexpected.empty();
  if (whole || !world_.first()) return;
  warnings_.push_back(initial_weights_.back());
  initial_weights_.pop_back();
}

ImportSummary Trainer::import_initial(const char* asked_by, const fs::path& path) {
  if (!world_.first()) return replicas_->load_state_dict({}, false);
  const ImportSummary summary = import_weights(*replicas_, path);
  initial_weights_.push_back(concat(asked_by, " ", path.string(), ": ", describe_import(summary)));
  return summary;
}

// Of a peer that has gone this process's own threads need not live to tell: MPI may end it at once,
// and a launcher does so a second or two later.
void Trainer::listen_for_failures() {
  failure_listener_.emplace(world_, [this](const std::string& heard) {
    std::string text = replicas_->sync_group().explain_failure(heard);
    if (!recorded_error_.exchange(true)) log_->record_error(text);
    return text;
  });
}

void Trainer::open_folder() {
  open_metrics_file();
  folder_.create(config_.run.rank_logs);
  int trimmed = 0;
  if (folder_.holds_run()) {
    remove_unfinished_files(folder_.checkpoints());
    remove_unfinished_files(folder_.root);
    trimmed = trim_json_lines(folder_.scalars(), iteration_);
    trim_json_lines(folder_.timing(), iteration_);
    trim_rank_logs(folder_, iteration_);
    trim_cut_line(folder_.events());  // what these say of later steps has happened
    recorded_validation_ = last_validated_step(folder_.scalars());
  }
  const int rank_logs = config_.run.rank_logs ? layout_.ranks() : 0;
  log_ = std::make_unique<RunLog>(
      folder_, world_.first() ? request_.console : Console::kQuiet, rank_logs,
      config_.run.tensorboard && world_.first() ? std::optional<std::int64_t>(iteration_ + 1)
                                                : std::nullopt);
  if (trimmed > 0) {
    log_->warning(fmt::format(
        "{} lines of scalars.json after step {} are taken back: these steps are trained again",
        trimmed, iteration_));
  }
  listen_for_failures();
  write_config();
  if (!fs::exists(folder_.environment())) {
    Json environment = describe_environment(devices_);
    const auto algorithms = replicas_->replica(layout_.first_rank()).backend().conv2d_algorithms();
    if (!algorithms.empty()) environment["convolutions"] = algorithms;
    write_file_atomically(folder_.environment(), json_text(environment, 2) + "\n");
  }
}

void Trainer::open_metrics_file() {
  if (config_.run.metrics_file.empty() || !world_.first()) return;
  metrics_.run = config_.run.name;
  metrics_.bn_mode = to_string(config_.bn.mode);
  metrics_.devices = devices_text_;
  metrics_.config_hash = config_hash(config_);
  metrics_.seed = config_.run.seed;
  metrics_.device_count = layout_.ranks();
  metrics_.steps = iteration_;
  metrics_.planned_steps = max_iters_;
  metrics_.score = config_.architecture().task == Task::kSegmentation ? "miou" : "top1";
  metrics_.best_score = best_score_;
  metrics_file_.emplace(config_.run.metrics_file, metrics_);
}

// An earlier part of the run may have had another configuration; it stays beside the present one.
void Trainer::write_config() {
  const std::string text = to_toml(config_);
  std::ostringstream earlier;
  earlier << std::ifstream(folder_.config(), std::ios::binary).rdbuf();
  if (earlier.str() == text) return;
  if (fs::exists(folder_.config())) {
    fs::rename(folder_.config(), folder_.root / fmt::format("config.until_{}.toml", iteration_));
  }
  write_file_atomically(folder_.config(), text);
}

}  // namespace lockstep

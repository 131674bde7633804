#include "train/resume_point.h"

#include "lockstep/core/check.h"
#include "run/choices.h"
#include "train/training.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

// The step that a checkpoint holds; nullopt when it cannot be loaded.
std::optional<std::int64_t> loadable_step(const fs::path& checkpoint) {
  try {
    return load_checkpoint(checkpoint).state.iteration;
  } catch (const DataError&) {
    return std::nullopt;
  }
}

// The newest that could be loaded is the one that was found: this one is damaged, or its name is
// not that of the step it holds.
void set_aside(const fs::path& checkpoint, std::vector<std::string>& warnings) {
  const auto held = loadable_step(checkpoint);
  const std::string reason =
      held ? concat("holds step ", *held, ", not that of its name") : "cannot be used";
  for (const fs::path& file : {checkpoint, state_path(checkpoint)}) {
    if (!fs::exists(file)) continue;
    const fs::path aside = fs::path(file).concat(held ? ".misnamed" : ".damaged");
    fs::rename(file, aside);
    warnings.push_back(
        concat(file.filename().string(), " ", reason, ": kept as ", aside.filename().string()));
  }
}

// The same data under another path are the same data.
bool differs_in_root_alone(const fs::path& run, const std::string& hash, Config config) {
  try {
    config.data.root = load_config(RunFolder{run}.config(), {}, nullptr, *config.tables).data.root;
  } catch (const Error&) {
    return false;
  }
  return hash == config_hash(config);
}

}  // namespace

bool resumes_newest(const std::string& resume) { return resume.empty() || resume == "auto"; }

fs::path run_of(const fs::path& checkpoint) {
  const fs::path parent = fs::absolute(checkpoint).parent_path();
  return parent.filename() == "ckpt" ? parent.parent_path() : fs::path();
}

ResumePoint::ResumePoint(World& world, const std::optional<std::string>& resume,
                         const RunFolder& folder, std::vector<std::string>& warnings) {
  path_ = world.from_first([&] {
    if (resume) find(*resume, folder, warnings);
    return path_.string();
  });
  if (!found()) return;
  const SharedCheckpoint shared(world, path_, [&] { return read_checkpoint_files(path_); });
  if (!world.first()) checkpoint_ = load_checkpoint(shared.path());
}

void ResumePoint::find(const std::string& resume, const RunFolder& folder,
                       std::vector<std::string>& warnings) {
  newest_ = resumes_newest(resume);
  if (!newest_) {
    path_ = resume;
    if (!fs::exists(path_)) throw ConfigError(concat("--resume: there is no file ", resume));
    checkpoint_ = load_checkpoint(path_);
    return;
  }
  auto newest = find_newest_checkpoint(folder.checkpoints(), warnings);
  if (!newest) {
    warnings.push_back(
        concat("nothing to resume in ", folder.root.string(), ": starting from step 0"));
    return;
  }
  path_ = newest->path;
  checkpoint_ = std::move(newest->checkpoint);
}

void ResumePoint::check_steps(std::int64_t max_iters) const {
  if (step() <= max_iters) return;
  throw ConfigError(concat(path_.string(), " is of step ", step(), ", beyond the ", max_iters,
                           " steps of this run"));
}

// Newer ones would be overwritten, and count as the newest when the next resume looks.
void ResumePoint::set_aside_newer(const RunFolder& folder,
                                  std::vector<std::string>& warnings) const {
  for (const fs::path& path : numbered_checkpoints(folder.checkpoints())) {
    if (*checkpoint_iteration(path) <= step()) return;
    if (!newest_) {
      throw ConfigError(
          concat(folder.root.string(), " has a newer checkpoint, ", path.filename().string(),
                 ": continue from it with --resume auto, or train into another folder with -o"));
    }
    set_aside(path, warnings);
  }
}

// A run that an earlier version wrote says it once: what is saved from here on knows.
void ResumePoint::compare_data(const Fingerprint& data, std::vector<std::string>& warnings) const {
  if (data.hash() == state().data_hash) return;
  if (state().data_hash.empty()) {
    warnings.push_back(concat(path_.string(),
                              " does not say what data it was trained with, so that ",
                              "whether they have changed is not known"));
    return;
  }
  const fs::path run = run_of(path_);
  warnings.push_back(concat("the data are not those that ", path_.string(),
                            " was trained with: ", data.changes_since(RunFolder{run}.data()),
                            "; the result will be that of neither"));
}

void ResumePoint::restore(DataParallel& replicas, const Config& config, const Fingerprint& data,
                          const RunFolder& folder, World& world,
                          std::vector<std::string>& warnings) const {
  const fs::path run = run_of(path_);
  if (run == fs::absolute(folder.root).lexically_normal()) {
    world.on_first([&] { set_aside_newer(folder, warnings); });
  }
  world.on_first([&] { compare_data(data, warnings); });
  const bool same_data = !data.hash().empty() && data.hash() == state().data_hash;
  if (state().config_hash != config_hash(config) &&
      !(same_data && differs_in_root_alone(run, state().config_hash, config))) {
    warnings.push_back(concat("the configuration is not the one that ", path_.string(),
                              " was trained with: the result will be that of neither"));
  }
  if (!run.empty()) {
    const auto changed = changed_choices(RunFolder{run}.environment());
    if (changed) warnings.push_back(*changed);
  }
  restore_checkpoint(replicas, checkpoint_, config.bn, warnings);
}

}  // namespace lockstep

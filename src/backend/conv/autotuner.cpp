#include "backend/conv/autotuner.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <tuple>

#include "core/home_path.h"
#include "io/atomic_file.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Raised when the meaning of a machine's, problem's or implementation's name changes.
constexpr int kVersion = 1;

/// Machine -> problem -> choice; empty for a file that is none of ours.
Json read_choices(const fs::path& path) {
  std::ifstream stream(path);
  std::ostringstream text;
  text << stream.rdbuf();  // a failure to read ends the text, and never throws
  Json root = Json::parse(text.str(), nullptr, false);
  if (!root.is_object() || root["version"] != kVersion) return Json::object();
  return std::move(root["choices"]);
}

struct Kept {
  std::string chosen;
  double milliseconds = 0;
};

std::optional<Kept> find_in(const Json& choices, const std::string& machine,
                            const std::string& problem) {
  try {
    const Json& entry = choices.at(machine).at(problem);
    const std::string chosen = entry.at("choice");
    return Kept{chosen, entry.at("milliseconds").value(chosen, 0.0)};
  } catch (const Json::exception&) {  // not there, or not what we write
    return std::nullopt;
  }
}

/// Puts the choice where find_in looks for it, in place of whatever else is there.
void insert(Json& choices, const ChoiceRequest& request, const Measurement& measured) {
  if (!choices.is_object()) choices = Json::object();
  Json& problems = choices[request.machine];
  if (!problems.is_object()) problems = Json::object();
  Json times = Json::object();
  for (const auto& [name, milliseconds] : measured.milliseconds) times[name] = milliseconds;
  problems[request.problem] = {{"choice", measured.fastest}, {"milliseconds", times}};
}

/// In one piece: a reader sees the old file or the new one. Whether it could be written.
bool write_choices(const fs::path& path, const Json& choices) {
  const std::string text = Json{{"version", kVersion}, {"choices", choices}}.dump(1) + '\n';
  const std::string_view bytes = text;
  try {
    write_parts(path, {&bytes, 1});
  } catch (const Error&) {
    return false;
  }
  return true;
}

/// Keeps other processes from writing between our reading and our writing. Where that cannot be
/// had, files stay whole all the same, and at worst a choice is lost.
class FileLock {
 public:
  explicit FileLock(const fs::path& path)
      : descriptor_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (descriptor_ >= 0) static_cast<void>(flock(descriptor_, LOCK_EX));
  }
  ~FileLock() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_;
};

double milliseconds_of(const std::string& name, const Measurement& measured) {
  for (const auto& [candidate, milliseconds] : measured.milliseconds) {
    if (candidate == name) return milliseconds;
  }
  return 0;
}

/// Which file lies there, and as it was written when: writers put a new one in its place. Nothing
/// where none is.
using FileState = std::optional<std::tuple<ino_t, off_t, time_t, long>>;

FileState state_of(const fs::path& path) {
  struct stat file {};
  if (stat(path.c_str(), &file) != 0) return std::nullopt;
  return FileState({file.st_ino, file.st_size, file.st_mtim.tv_sec, file.st_mtim.tv_nsec});
}

}  // namespace

/// The file's choices. They are parsed again only where the file has changed: a network has a
/// hundred problems for each size of its images, and the file thousands.
class Autotuner::ChoiceFile {
 public:
  explicit ChoiceFile(const fs::path& path) : path_(path) {}

  std::optional<Kept> find(const ChoiceRequest& request) {
    const FileState present = state_of(path_);
    if (!present || present != state_) choices_ = read_choices(path_);
    state_ = present;
    return find_in(choices_, request.machine, request.problem);
  }

  /// Keeps what was measured, unless another process has kept something usable since: the first one
  /// counts, and is returned.
  Kept settle(const ChoiceRequest& request, const Measurement& measured, bool& kept) {
    std::error_code ignored;
    fs::create_directories(path_.parent_path(), ignored);
    const FileLock lock(path_.string() + ".lock");
    const auto other = find(request);
    if (other && request.usable(other->chosen)) return *other;
    insert(choices_, request, measured);
    const bool written = write_choices(path_, choices_);
    if (written) state_ = state_of(path_);
    kept = written && kept;
    return {measured.fastest, milliseconds_of(measured.fastest, measured)};
  }

 private:
  const fs::path path_;
  FileState state_;  // of what was parsed
  Json choices_ = Json::object();
};

Autotuner::Autotuner(fs::path file)
    : file_(std::move(file)), kept_(std::make_unique<ChoiceFile>(file_)) {}

Autotuner::~Autotuner() = default;

Autotuner& Autotuner::of(const fs::path& file) {
  static std::mutex mutex;
  static std::map<fs::path, std::unique_ptr<Autotuner>> all;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Autotuner>& own = all[file];
  if (!own) own = std::make_unique<Autotuner>(file);
  return *own;
}

fs::path Autotuner::default_file() {
  return cache_path("LOCKSTEP_AUTOTUNE", fs::path("lockstep") / "autotune.json");
}

std::string Autotuner::why_no_file() {
  return std::getenv("LOCKSTEP_AUTOTUNE") != nullptr ? "LOCKSTEP_AUTOTUNE is empty"
                                                     : "LOCKSTEP_AUTOTUNE, XDG_CACHE_HOME and HOME "
                                                       "are not set: there is no place for choices";
}

Choice Autotuner::choose(const ChoiceRequest& request) {
  const std::lock_guard lock(mutex_);
  const std::pair<std::string, std::string> asked{request.machine, request.problem};
  if (request.measure) by_rule_.erase(asked);
  const auto known = by_rule_.find(asked);
  if (known != by_rule_.end() && !request.forced) return known->second;
  for (const Choice& choice : choices_) {
    if (choice.machine != request.machine || choice.problem != request.problem) continue;
    const bool forced = choice.origin == ChoiceOrigin::kForced;
    if (request.forced ? choice.chosen == *request.forced : !forced) return choice;
  }
  const Choice choice = decide(request);
  if (!request.measure && choice.origin == ChoiceOrigin::kRule) {
    by_rule_.emplace(asked, choice);
  } else {
    choices_.push_back(choice);
  }
  return choice;
}

void Autotuner::adopt(std::span<const Choice> choices) {
  const std::lock_guard lock(mutex_);
  for (const Choice& choice : choices) {
    by_rule_.erase({choice.machine, choice.problem});
    std::erase_if(choices_, [&](const Choice& own) {
      return own.machine == choice.machine && own.problem == choice.problem &&
             own.origin != ChoiceOrigin::kForced;
    });
    choices_.push_back(choice);
    choices_.back().origin = ChoiceOrigin::kAdopted;
  }
}

Choice Autotuner::decide(const ChoiceRequest& request) {
  const auto answer = [&](ChoiceOrigin origin, const Kept& kept) {
    return Choice{request.machine, request.problem, kept.chosen, origin, kept.milliseconds};
  };
  if (request.forced) return answer(ChoiceOrigin::kForced, {*request.forced});
  if (file_.empty()) return answer(ChoiceOrigin::kRule, {request.rule()});
  const auto kept = kept_->find(request);
  if (kept && request.usable(kept->chosen)) return answer(ChoiceOrigin::kFile, *kept);
  if (!request.measure) return answer(ChoiceOrigin::kRule, {request.rule()});
  const auto measured = std::count_if(choices_.begin(), choices_.end(), [](const Choice& choice) {
    return choice.origin == ChoiceOrigin::kMeasured;
  });
  show_progress({"measuring implementations", "problems", measured, 0, request.problem});
  const Measurement found = request.measure();
  clear_progress();
  if (found.milliseconds.empty()) return answer(ChoiceOrigin::kRule, {found.fastest});
  return answer(ChoiceOrigin::kMeasured, kept_->settle(request, found, all_kept_));
}

std::vector<Choice> Autotuner::choices() const {
  const std::lock_guard lock(mutex_);
  std::vector<Choice> all = choices_;
  for (const auto& [problem, choice] : by_rule_) all.push_back(choice);
  return all;
}

std::vector<std::pair<std::string, std::string>> Autotuner::kept(const std::string& machine) const {
  std::vector<std::pair<std::string, std::string>> found;
  const Json choices = read_choices(file_);
  if (!choices.is_object() || !choices.contains(machine)) return found;
  for (const auto& entry : choices.at(machine).items()) {
    if (const auto choice = find_in(choices, machine, entry.key())) {
      found.emplace_back(entry.key(), choice->chosen);
    }
  }
  return found;
}

bool Autotuner::all_kept() const {
  const std::lock_guard lock(mutex_);
  return all_kept_;
}

}  // namespace lockstep

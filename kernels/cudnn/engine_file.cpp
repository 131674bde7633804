#include "kernels/cudnn/engine_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace lockstep::gpu {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Raised when find_engines lists other engines or in another order: an index then means another.
constexpr int kVersion = 1;

constexpr const char* kOrderNames[] = {"out_in_taps", "out_taps_in"};  // [WeightOrder]

/// Model -> problem -> choice; empty for a file that is none of ours.
Json read_choices(const fs::path& path) {
  std::ifstream stream(path);
  std::ostringstream text;
  text << stream.rdbuf();  // a failure to read ends the text, and never throws
  Json root = Json::parse(text.str(), nullptr, false);
  if (!root.is_object() || root["version"] != kVersion) return Json::object();
  return std::move(root["choices"]);
}

std::optional<EngineChoice> find_in(const Json& choices, const std::string& model,
                                    const std::string& problem) {
  try {
    const Json& entry = choices.at(model).at(problem);
    const std::string order = entry.at("weights");
    if (order != kOrderNames[0] && order != kOrderNames[1]) return std::nullopt;
    return EngineChoice{order == kOrderNames[0] ? WeightOrder::kOutInTaps : WeightOrder::kOutTapsIn,
                        entry.at("fallback").get<bool>(), entry.at("engine").get<std::size_t>()};
  } catch (const Json::exception&) {  // not there, or not what we write
    return std::nullopt;
  }
}

/// Puts the choice where find_in looks for it, in place of whatever else is there.
void insert(Json& choices, const std::string& model, const std::string& problem,
            const EngineChoice& choice) {
  if (!choices.is_object()) choices = Json::object();
  Json& problems = choices[model];
  if (!problems.is_object()) problems = Json::object();
  problems[problem] = {{"weights", kOrderNames[static_cast<std::size_t>(choice.order)]},
                       {"fallback", choice.fallback},
                       {"engine", choice.index}};
}

/// In one piece: a reader sees the old file or the new one.
void write_choices(const fs::path& path, const Json& choices) {
  const fs::path fresh = path.string() + "." + std::to_string(getpid()) + ".tmp";
  std::error_code failed;
  std::ofstream stream(fresh);
  stream << Json{{"version", kVersion}, {"choices", choices}}.dump(1) << '\n';
  stream.close();
  if (stream) fs::rename(fresh, path, failed);
  if (!stream || failed) fs::remove(fresh, failed);
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

}  // namespace

fs::path EngineFile::default_path() {
  if (const char* chosen = std::getenv("LOCKSTEP_CUDNN_ENGINES")) return chosen;
  const fs::path file = fs::path("lockstep") / "cudnn_engines.json";
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return cache / file;
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return home / (".cache" / file);
  return {};
}

std::optional<EngineChoice> EngineFile::find(const std::string& model,
                                             const std::string& problem) const {
  if (path_.empty()) return std::nullopt;
  return find_in(read_choices(path_), model, problem);
}

EngineChoice EngineFile::settle(const std::string& model, const std::string& problem,
                                const EngineChoice& choice,
                                const std::optional<EngineChoice>& unusable) const {
  if (path_.empty()) return choice;
  std::error_code ignored;
  fs::create_directories(path_.parent_path(), ignored);
  const FileLock lock(path_.string() + ".lock");
  Json choices = read_choices(path_);
  const std::optional<EngineChoice> kept = find_in(choices, model, problem);
  if (kept && kept != unusable) return *kept;
  insert(choices, model, problem, choice);
  write_choices(path_, choices);
  return choice;
}

}  // namespace lockstep::gpu

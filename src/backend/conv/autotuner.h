#pragma once
// Which implementation of an operation is the fastest on this machine: found by the clock once, and
// kept on the disk. Another implementation may round otherwise, so that only runs with the same
// choices give the same bits; hence a choice that was made stays. Problems are described without
// threads and batch sizes, which must not matter to the bits.

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/options.h"

namespace lockstep {

/// How a choice came about.
enum class ChoiceOrigin : std::uint8_t {
  kMeasured,  // by the clock of this process
  kFile,      // by that of an earlier one
  kRule,      // without a clock, because there is no file
  kForced,    // by the user
  kAdopted,   // by the process that leads
};
constexpr std::array<Named<ChoiceOrigin>, 5> names_of(ChoiceOrigin) {
  return {{{"measured", ChoiceOrigin::kMeasured},
           {"file", ChoiceOrigin::kFile},
           {"rule", ChoiceOrigin::kRule},
           {"forced", ChoiceOrigin::kForced},
           {"adopted", ChoiceOrigin::kAdopted}}};
}

/// One problem's implementation.
struct Choice {
  std::string machine;  // processor or GPU, and the version of the library
  std::string problem;  // operation, pass and shapes
  std::string chosen;   // the implementation
  ChoiceOrigin origin = ChoiceOrigin::kMeasured;
  double milliseconds = 0;  // what it took when it was timed; 0: not timed

  friend bool operator==(const Choice&, const Choice&) = default;
};

/// What the clock said.
struct Measurement {
  std::string fastest;
  std::vector<std::pair<std::string, double>> milliseconds;  // of every candidate, for people
};

/// A problem, and the ways to solve the question.
struct ChoiceRequest {
  std::string machine, problem;
  std::optional<std::string> forced;
  /// Whether this process has the implementation: the file may come from another build.
  std::function<bool(const std::string& chosen)> usable;
  std::function<std::string()> rule;
  /// Null: where the file has nothing, the rule decides. A result without times is no choice of the
  /// clock's, and is not kept.
  std::function<Measurement()> measure;
};

/// The choices of this process, and a file of choices by machine and problem that processes share.
/// Any thread may call; one problem is timed at a time, so that clocks do not disturb each other,
/// and whoever asks for the same one meanwhile gets the same answer. Nothing that is wrong with the
/// file is an error: choices are then made anew, and replace what cannot be read.
class Autotuner {
 public:
  /// `file` empty: nothing is timed, and rules decide.
  explicit Autotuner(std::filesystem::path file);
  ~Autotuner();

  /// The process's own for this file.
  static Autotuner& of(const std::filesystem::path& file);

  /// $LOCKSTEP_AUTOTUNE where it is set (to nothing: no file), else lockstep/autotune.json in
  /// $XDG_CACHE_HOME or ~/.cache.
  static std::filesystem::path default_file();
  /// Why that is none: which variables of the environment leave it open.
  static std::string why_no_file();

  /// The problem's implementation: what was answered before, what the user forces, what the
  /// file has, what the clock says. An answer by rule, where nobody asks the clock, holds until
  /// somebody does. Throws what the request's functions throw.
  Choice choose(const ChoiceRequest& request);

  /// These, which another process has made, are the answers from now on where nothing is forced, in
  /// place of what was answered before: then both compute alike.
  void adopt(std::span<const Choice> choices);

  /// What `choose` has answered in this process, in the order of the first questions; answers by
  /// rule to who did not ask the clock come last.
  std::vector<Choice> choices() const;
  /// What the file has for a machine, as (problem, implementation).
  std::vector<std::pair<std::string, std::string>> kept(const std::string& machine) const;

  const std::filesystem::path& file() const { return file_; }
  /// Whether all that was measured here could be written to the file.
  bool all_kept() const;

 private:
  class ChoiceFile;
  Choice decide(const ChoiceRequest& request);

  const std::filesystem::path file_;
  mutable std::mutex mutex_;  // of all below
  const std::unique_ptr<ChoiceFile> kept_;
  std::vector<Choice> choices_;
  std::map<std::pair<std::string, std::string>, Choice> by_rule_;  // nobody has asked the clock
  bool all_kept_ = true;
};

}  // namespace lockstep

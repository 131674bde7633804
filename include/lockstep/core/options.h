#pragma once
// How a struct of options says what may be told it: `visit_options`, a member template that calls a
// visitor once per key, with its name, its field, one sentence, and what else holds for it. From
// that a configuration is read, checked, written, hashed, completed and documented; nothing else
// lists keys.
//
//   struct Sgd {
//     static constexpr const char* kName = "sgd";
//     float lr = 0.01F;
//     template <typename Visitor>
//     void visit_options(Visitor& v) {
//       v("lr", lr, "", {.in = limits::kNotNegative});
//     }
//   };
//
// A visitor has more calls: `v.section(name, options)` for a struct, or an optional one, with a
// section of its own, `v.sections(name, list)` for a section that may be a list of them, and
// `v.alternatives(key, variant)` for one of several structs, which the key chooses by their kName
// and whose keys lie beside it. Fields may be changed by the call: who only looks visits a copy.

#include <limits>
#include <string>
#include <vector>

namespace lockstep {

/// Bounds of a number. They belong to the range unless `above` or `below` excludes them.
struct Limits {
  double lo = -std::numeric_limits<double>::infinity();
  double hi = std::numeric_limits<double>::infinity();
  bool above = false, below = false;
};

namespace limits {
inline constexpr Limits kPositive{.lo = 0, .above = true};
inline constexpr Limits kNotNegative{.lo = 0};
inline constexpr Limits kAtLeastOne{.lo = 1};
inline constexpr Limits kShare{.lo = 0, .hi = 1};
inline constexpr Limits kBelowOne{.lo = 0, .hi = 1, .below = true};
}  // namespace limits

/// Whether a number is finite and within.
bool contains(const Limits& limits, double value);
/// "a number >= 0 and < 1", of the kind "a number".
std::string describe(const Limits& limits, const std::string& kind);
/// Throws ConfigError saying what `what` must be, and is, unless the limits contain it.
void check_number(const std::string& what, double value, const Limits& limits);

/// What holds for a key besides its name, field and sentence.
struct Option {
  Limits in = {};               // of the number, or of each number of a list
  std::vector<int> among = {};  // the only values of an integer; empty: all within `in`
  const char* none = "";        // the word for an optional number that there is not
  const char* what = "";        // a text is expected to be this: "a folder"
  void (*check)(const std::string& text) = nullptr;  // of each text of a list; throws ConfigError
  bool (*alone)(const std::string& text) = nullptr;  // whether it may stand for a whole list
  bool counts = true;       // it can change trained weights or final metrics, and is hashed
  bool written = true;      // false: beside the other options it says nothing, and is not written
  bool even_empty = false;  // a text is written though it is empty
  const char* after = "";   // the key that it follows in a file; empty: the one declared before it
  const char* akin = "";    // the key of another alternative that means most nearly the same
  /// Its default, as written, in versions that had another: the hash leaves this one out, so that
  /// runs from then go on.
  const char* former_default = "";
};

/// A value of an enumeration and the word for it. `names_of(E)`, beside the enumeration, returns an
/// array of them.
template <typename Enumeration>
struct Named {
  const char* name;
  Enumeration value;
  /// Its word before it was renamed: still read, and hashed, so that runs from before go on.
  const char* former = "";
};

/// The word for a value of an enumeration that has `names_of`; "?" for a value without one.
template <typename Enumeration>
requires requires(Enumeration value) { names_of(value); }
constexpr const char* to_string(Enumeration value) {
  for (const Named<Enumeration>& named : names_of(value)) {
    if (named.value == value) return named.name;
  }
  return "?";
}

}  // namespace lockstep

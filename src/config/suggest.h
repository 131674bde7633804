#pragma once
// "Did you mean": the known word nearest to a misspelt one.

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (optimal
/// string alignment distance).
int edit_distance(std::string_view a, std::string_view b);

/// The nearest of `known` (the first of equals) when it lies within a third of the word's length
/// (at least 1, at most 3 edits), or is completed by `word`; nullopt otherwise.
std::optional<std::string> nearest_word(std::string_view word, std::span<const std::string> known);

}  // namespace lockstep

#include "config/suggest.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace lockstep {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> cost(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) cost[i][0] = static_cast<int>(i);
  for (std::size_t j = 0; j <= b.size(); ++j) cost[0][j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int substitution = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, substitution});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

std::optional<std::string> nearest_word(std::string_view word, std::span<const std::string> known) {
  const int allowed = std::clamp(static_cast<int>(word.size()) / 3, 1, 3);
  std::optional<std::string> best;
  int best_distance = allowed + 1;
  for (const std::string& candidate : known) {
    const auto longer = static_cast<int>(word.size()) - static_cast<int>(candidate.size());
    if (std::abs(longer) >= best_distance) continue;  // as many edits at least
    const int distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  if (best || word.size() < 3) return best;
  const auto completed = std::ranges::find_if(
      known, [&](const std::string& candidate) { return candidate.starts_with(word); });
  return completed == known.end() ? std::nullopt : std::optional(*completed);
}

}  // namespace lockstep

#include "config/suggest.h"

#include <doctest/doctest.h>

#include <vector>

namespace lockstep {

TEST_CASE("edit distance counts insertions, deletions, substitutions and swaps") {
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("momentum", "momentum") == 0);
  CHECK(edit_distance("momntum", "momentum") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("snyc", "sync") == 1);
}

TEST_CASE("the nearest word is close, or begins with what was written") {
  const std::vector<std::string> known{"train", "compare", "eval", "bench"};
  CHECK(nearest_word("trian", known) == "train");
  CHECK(nearest_word("comp", known) == "compare");
  CHECK(nearest_word("evl", known) == "eval");
  CHECK_FALSE(nearest_word("xyzzy", known));
  CHECK_FALSE(nearest_word("", known));
}

}  // namespace lockstep

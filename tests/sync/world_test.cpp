#include "lockstep/sync/world.h"

#include <doctest/doctest.h>

#include <vector>

namespace lockstep {
namespace {

/// Of processes with so many devices each.
RankLayout layout_of_counts(const std::vector<int>& devices) {
  RankLayout layout{0, {0}, {}, std::vector<std::string>(devices.size(), "hosta")};
  for (const int count : devices) layout.first.push_back(layout.first.back() + count);
  layout.devices.resize(static_cast<std::size_t>(layout.ranks()));
  return layout;
}

}  // namespace

TEST_CASE("a placement names this process's devices and how many processes there are") {
  CHECK(layout_of_counts({4}).placement("cpu:4") == "cpu:4");
  CHECK(layout_of_counts({2, 2}).placement("cpu:2") == "cpu:2 in each of 2 processes");
  CHECK(layout_of_counts({1, 3}).placement("cpu:1") == "cpu:1 and others in 2 processes");
}

TEST_CASE("a placement in which others only add up to the same number is not alike") {
  CHECK(layout_of_counts({2, 1, 3}).placement("cpu:2") == "cpu:2 and others in 3 processes");
}

}  // namespace lockstep

#pragma once
// Sums over the images of a batch in a binary tree over their indices,
//
//   S[a, a + 2^j) = S[a, a + 2^(j-1)) + S[a + 2^(j-1), a + 2^j)     for a a multiple of 2^j,
//
// where a half without images is left out. Each image's values are computed by themselves, so that
// neither the number of threads nor the order in which they finish shows in a bit of the sum.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

namespace lockstep {

/// Images [begin, end) that are a node of the tree.
struct ImageNode {
  std::int64_t begin = 0, end = 0;
};

/// How much room the largest node has that begins at an image and holds only images of [begin,
/// end): a power of two, of which the images of the node are those before the end of the batch.
inline std::int64_t largest_node(std::int64_t begin, std::int64_t end, std::int64_t batch) {
  std::int64_t room = 1;
  while (begin % (2 * room) == 0 && std::min(begin + 2 * room, batch) <= end &&
         room < end - begin) {
    room *= 2;
  }
  return room;
}

/// The images of that node.
inline ImageNode largest_image_node(std::int64_t begin, std::int64_t end, std::int64_t images) {
  return {begin, std::min(begin + largest_node(begin, end, images), images)};
}

/// Whether two neighbours in the tree over `images` images make up a node. REQUIRES: nodes come in
/// order, so that a left one that is no left half has been joined to the half before it.
inline bool are_halves(const ImageNode& left, const ImageNode& right, std::int64_t images) {
  return right.end == std::min(left.begin + 2 * (left.end - left.begin), images);
}

/// Partial sums that wait for their other half, at most, while images are added in order.
inline std::int64_t image_tree_nodes(std::int64_t images) {
  return images <= 2 ? 1 : std::bit_width(static_cast<std::uint64_t>(images - 1));
}

/// Where an image goes; images come in order, from 0. Whole nodes of as much room go where images
/// of that number among them would. take(node, first): into this node, which it
/// begins where `first`. join(node): the node behind this one is complete and becomes part of it.
template <typename Take, typename Join>
void place_image(std::int64_t image, const Take& take, const Join& join) {
  // The halves that wait are the bits of the number of images that have been added; this one
  // completes as many of them as that number ends in ones.
  const auto added = static_cast<std::uint64_t>(image);
  int node = std::popcount(added);
  int completed = std::countr_one(added);
  if (completed == 0) return take(node, true);
  take(--node, false);
  while (--completed > 0) join(--node);
}

/// Behind the last of the images: all nodes become one, node 0.
template <typename Join>
void join_nodes(std::int64_t images, const Join& join) {
  for (int node = std::popcount(static_cast<std::uint64_t>(images)) - 1; node > 0;) join(--node);
}

/// to [count] += from [count].
inline void add_values(const float* __restrict from, std::int64_t count, float* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
}

/// Adds `count` values of an image; images come in order, from 0. Node i lies at nodes[i * stride].
inline void add_image(std::int64_t image, const float* values, std::int64_t count, float* nodes,
                      std::int64_t stride) {
  place_image(
      image,
      [&](int node, bool first) {
        float* to = nodes + node * stride;
        if (!first) return add_values(values, count, to);
        std::memcpy(to, values, static_cast<std::size_t>(count) * sizeof(float));
      },
      [&](int node) { add_values(nodes + (node + 1) * stride, count, nodes + node * stride); });
}

/// The sum of the `images` images that were added, in node 0.
inline const float* finish_image_tree(std::int64_t images, std::int64_t count, float* nodes,
                                      std::int64_t stride) {
  join_nodes(images, [&](int node) {
    add_values(nodes + (node + 1) * stride, count, nodes + node * stride);
  });
  return nodes;
}

}  // namespace lockstep

#pragma once
// The colours in which people look at classes.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep {

/// The colour of `label` where nothing else is known: Pascal VOC's rule, in which the bits of the
/// label, three at a time from the lowest, go to red, green and blue from the highest bit down.
Color voc_color(int label);

/// "#804080" as a colour. Throws ConfigError that says what was expected.
Color parse_color(const std::string& text);

/// "#804080".
std::string to_string(const Color& color);

/// A colour for each class: `options.palette`, or else those of the layout where it has
/// `num_classes` of them, or else VOC's. Throws ConfigError as class_count and parse_color do.
std::vector<Color> class_colors(const DataOptions& options);

/// The labels in colours; what is no class, such as ignore_index, in the colour of VOC's border.
Image paint(const LabelMap& labels, std::span<const Color> colors);

/// The labels' colours over the image, `opacity` of them in 0..1; what is no class stays as it is.
/// Both have one size.
Image overlay(const Image& image, const LabelMap& labels, std::span<const Color> colors,
              float opacity = 0.5F);

}  // namespace lockstep

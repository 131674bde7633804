#pragma once
// Scores of single images: the table of an evaluation, and its files.

#include <filesystem>
#include <string>

#include "train/evaluator.h"

namespace lockstep {

/// Mean, median and lowest tenth over the images, and the ten worst.
std::string format_images(const EvalReport& report);

/// Writes per_image.csv (a line for each image, a column for each class) into `folder`, which is
/// made, and worst_NN_NAME.png: the ten worst, each beside its labels and its prediction.
void write_images(const EvalReport& report, const std::filesystem::path& folder);

}  // namespace lockstep

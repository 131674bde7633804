#pragma once
// Predictions of classifiers as a file of comma-separated values.

#include "train/inference/predict_images.h"

namespace lockstep {

/// Writes report.table: the line "image,rank,class,name,probability", then a line for each of an
/// image's likeliest classes, rank 1 first. Throws DataError when it cannot be written.
void write_prediction_table(const PredictReport& report);

}  // namespace lockstep

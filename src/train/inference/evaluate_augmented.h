#pragma once
// Evaluation under test-time augmentation, in one piece or in windows.

#include <string>
#include <vector>

#include "run/summary.h"
#include "run/trained_model.h"
#include "train/inference/views.h"

namespace lockstep {

/// The validation split of the model's configuration, images as any evaluation takes them, by the
/// mean of the views' probabilities at the images' size. The loss is the mean of -log of the
/// label's probability. The result does not depend on the devices. `warnings` gets what
/// data.skip_broken left out. Throws DataError.
Evaluation evaluate_augmented(const TrainedModel& model, const TestTimeAugmentation& augmentation,
                              const std::vector<Device>& devices,
                              std::vector<std::string>& warnings);

}  // namespace lockstep

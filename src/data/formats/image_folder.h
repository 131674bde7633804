#pragma once
// Layout imagefolder, torchvision's ImageFolder: <root>/<split>/<class>/.../*.{jpg,jpeg,png}, a
// folder for each class, classes in the order of their folders' names.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep {

/// The folders of the training split, sorted: the classes of every split. Throws DataError when
/// there are none.
std::vector<std::string> image_folder_classes(const DataOptions& options);

/// The images of a split by class, then by path. A class may be without images in a split other
/// than training's; a folder that is no class of training is an error, because numbers counted
/// anew would shift. Throws DataError.
std::unique_ptr<Dataset> make_image_folder(const DataOptions& options, Split split,
                                           std::uint64_t seed);

}  // namespace lockstep

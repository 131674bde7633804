#pragma once
// The tensors of a model, out of what a PyTorch file's pickle describes and its storages hold.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "io/pth_pickle.h"
#include "lockstep/io/weights.h"

namespace lockstep {

/// The bytes of a storage, as many as it says; throws DataError when the file has others.
using ReadStorage = std::function<std::vector<std::byte>(const PickleValue& storage)>;

/// The tensors of a state dict, or of the state dict that a checkpoint has under "state_dict",
/// "model" or "model_state_dict"; rows contiguous, each storage read once, and none that the model
/// does not need. Throws DataError, without the file's name, where there are none, and for tensors
/// that reach outside of their storage. `file_bytes`, the file's length, bounds what is allocated.
TensorMap read_model_tensors(const PickleValue& root, std::uint64_t file_bytes,
                             const ReadStorage& read);

}  // namespace lockstep

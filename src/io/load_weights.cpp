#include "io/file_bytes.h"
#include "io/weight_file_kind.h"
#include "lockstep/core/check.h"
#include "lockstep/io/weights.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

std::vector<std::byte> head_of(const fs::path& path) {
  try {
    return FileBytes(path).head(kKindBytes);
  } catch (const DataError& error) {
    throw DataError(concat(path.string(), ": ", error.what()));
  }
}

}  // namespace

WeightFileKind weight_file_kind(const fs::path& path) { return kind_of(head_of(path)); }

TensorMap load_weights(const fs::path& path) {
  const std::vector<std::byte> head = head_of(path);
  switch (kind_of(head)) {
    case WeightFileKind::kSafetensors:
      return load_safetensors(path);
    case WeightFileKind::kZip:
    case WeightFileKind::kLegacyPth:
      return load_pth(path);
    case WeightFileKind::kOther:
      break;
  }
  throw DataError(concat(path.string(),
                         " holds no weights: expected a safetensors file or one of PyTorch's "
                         "torch.save (.pth), got ",
                         describe_content(head)));
}

}  // namespace lockstep

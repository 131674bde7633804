#include "step/root_cause.h"

#include "lockstep/core/check.h"
#include "sync/describe.h"

namespace lockstep {
namespace {

std::string prefix(const std::exception_ptr& cause, std::span<const std::exception_ptr> thrown,
                   const RankLayout& layout) {
  int throwers = 0;
  std::size_t thrower = 0;
  for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
    if (!thrown[rank] || (thrown[rank] != cause && describe(thrown[rank]) != describe(cause))) {
      continue;
    }
    thrower = rank;
    ++throwers;
  }
  if (throwers != 1) return "";
  return layout.describe_rank(layout.first_rank() + static_cast<int>(thrower)) + ": ";
}

}  // namespace

std::exception_ptr attribute_failure(const std::exception_ptr& cause,
                                     std::span<const std::exception_ptr> thrown,
                                     const RankLayout& layout, const std::string& remark) {
  const std::string text = prefix(cause, thrown, layout) + describe(cause) + remark;
  try {
    std::rethrow_exception(cause);
  } catch (const ConfigError&) {
    return std::make_exception_ptr(ConfigError(text));
  } catch (const DataError&) {
    return std::make_exception_ptr(DataError(text));
  } catch (const NonFiniteError&) {
    return std::make_exception_ptr(NonFiniteError(text));
  } catch (const StalledError&) {
    return std::make_exception_ptr(StalledError(text));
  } catch (...) {
    return std::make_exception_ptr(ReplicaError(text));
  }
}

}  // namespace lockstep

#include "step/statistics_backup.h"

namespace lockstep {

StatisticsBackup::StatisticsBackup(const ParameterStore& store, Backend& backend)
    : store_(store), backend_(backend) {
  for (Copy& copy : copies_) {
    copy.tracked.resize(store.batch_norms().size());
    if (store.statistics_elements() == 0) continue;
    copy.statistics =
        backend.allocate(static_cast<std::size_t>(store.statistics_elements()) * sizeof(float));
  }
}

Tensor StatisticsBackup::of(void* data) const {
  return {data, Shape{1, store_.statistics_elements()}};
}

void StatisticsBackup::save(int slot) {
  Copy& copy = copies_[static_cast<std::size_t>(slot)];
  for (std::size_t i = 0; i < copy.tracked.size(); ++i) {
    copy.tracked[i] = store_.batch_norms()[i]->num_batches_tracked;
  }
  if (copy.statistics.data() == nullptr) return;
  backend_.copy(of(store_.statistics()), of(copy.statistics.data()), false);
}

void StatisticsBackup::restore(int slot) {
  const Copy& copy = copies_[static_cast<std::size_t>(slot)];
  for (std::size_t i = 0; i < copy.tracked.size(); ++i) {
    store_.batch_norms()[i]->num_batches_tracked = copy.tracked[i];
  }
  if (copy.statistics.data() == nullptr) return;
  backend_.copy(of(copy.statistics.data()), of(store_.statistics()), false);
}

}  // namespace lockstep

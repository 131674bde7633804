#pragma once
// All that a training stands on before its first step: processes that agree, a run folder that is
// its own, data, replicas, and the state to go on from.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/loader.h"
#include "lockstep/parallel/data_parallel.h"
#include "run/run_lock.h"
#include "run/run_sink.h"
#include "train/evaluator.h"
#include "train/fault_injection.h"
#include "train/resume_point.h"
#include "train/trainer.h"

namespace lockstep {

/// Used by the trainer's thread. `request` outlives it.
class TrainingSession {
 public:
  /// Throws what train() says of configuration, data and folders.
  explicit TrainingSession(const TrainRequest& request);

  /// Whether every replica's part is recorded by itself.
  bool logs_replicas() const { return config.run.log_bn >= BatchNormLog::kDevices; }
  RunDescription describe() const;

  const TrainRequest& request;
  const Config& config;
  World& world;
  std::vector<std::string> warnings;
  const std::vector<std::string> classes;
  const std::string devices_text;
  const std::vector<Device> devices;  // of this process
  const RankLayout layout;            // and of the others
  RunFolder folder;
  std::optional<RunLock> lock;  // of process 0
  FaultInjection fault;
  ResumePoint resume;
  std::unique_ptr<TrainLoader> loader;
  std::unique_ptr<DataParallel> replicas;
  std::unique_ptr<Evaluator> evaluator;
  std::optional<Fingerprint> data;
  std::int64_t max_iters = 0;
  std::vector<std::string> started;  // from which weights, where they fitted

 private:
  void check_processes();
  void choose_folder();
  void find_folder();
  void lock_folder();
  void make_loader();
  void make_alike_replicas();
  void warn_of_data();
  void read_data();
  void warn_of_few_values();
  void load_initial_weights();
  ImportSummary import_initial(const char* asked_by, const std::filesystem::path& path);
};

}  // namespace lockstep

#pragma once
// The whole library in one header. Programs that know what they need include less.

#include "lockstep/cli/run_cli.h"
#include "lockstep/core/check.h"
#include "lockstep/core/device.h"
#include "lockstep/data/loader.h"
#include "lockstep/nn/layer.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/models/unet.h"
#include "lockstep/nn/network.h"
#include "lockstep/nn/norm_layer.h"
#include "lockstep/nn/weights.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/sync/communicator.h"
#include "lockstep/sync/sync_master.h"

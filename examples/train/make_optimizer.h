// The optimizer and the learning-rate schedule that options name, made of the classes of optim/.
#pragma once

#include "options.h"
#include "progress.h"

#include <tutti/optim/optimizer.h>
#include <tutti/optim/schedule.h>

#include <memory>

namespace tutti::examples {

/// Returns the names that --optimizer and --schedule take.
const std::vector<std::string>& optimizer_names();
const std::vector<std::string>& schedule_names();

/// Makes the optimizer of this name for the parameters. Without options.norm_decay those with one
/// dimension, which are the weights and biases of normalisation and the biases of other layers, are
/// a group of their own without weight decay (and without LARS's local rate). Throws a ValueError
/// for an unknown name.
std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerOptions& options,
                                                 const ScheduleOptions& schedule,
                                                 const std::vector<Tensor>& parameters);

/// Returns the factor on the learning rate, and the momentum where the schedule sets it (else an
/// empty function), for a run of this length. Throws a ValueError for an unknown name.
optim::Schedule make_schedule(const ScheduleOptions& options, const RunLength& length);
optim::Schedule make_momentum_schedule(const OptimizerOptions& options,
                                       const ScheduleOptions& schedule, const RunLength& length);

/// Returns the steps of the warm-up; 0 where there is none.
std::int64_t warmup_steps(const ScheduleOptions& options, const RunLength& length);

}  // namespace tutti::examples

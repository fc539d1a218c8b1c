// The thresholds and sentences of a BatchNormReport: what counts as trouble, and what to do then.
#pragma once

#include "report.h"

namespace tutti::nn {

/// Returns the warnings about these layers, one for each kind of trouble.
std::vector<std::string> batch_norm_advice(const std::vector<BatchNormReport::Layer>& layers);

}  // namespace tutti::nn

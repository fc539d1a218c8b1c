// Evaluation: mean loss and accuracy of a network on the test images, over all ranks.
#pragma once

#include "metric_sums.h"
#include "test_details.h"

#include <tutti/data/loader.h>
#include <tutti/nn/module.h>

namespace tutti::examples {

/// Evaluates `net` in evaluation mode on an epoch of `loader`, and puts it back into training mode.
/// Every rank calls it with its loader of the same test images; it communicates once, at its end.
/// `recorder` is given the answer to every image, unless it is null.
LossAndAccuracy evaluate(nn::Layer& net, data::DataLoader& loader, const ProcessGroup& group,
                         Device device, TestRecorder* recorder = nullptr);

}  // namespace tutti::examples

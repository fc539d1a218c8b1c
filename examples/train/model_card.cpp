#include "model_card.h"

namespace tutti::examples {

nn::ModelCard model_card(const TrainOptions& options, const TrainingData& data) {
  nn::ModelCard card{.model = options.model,
                     .classes = data.classes,
                     .channels = data.channels,
                     .class_names = data.class_names,
                     .mean = {data.mean.begin(), data.mean.end()},
                     .std = {data.deviation.begin(), data.deviation.end()},
                     .resize_size = data.resize_size,
                     .input_size = data.image_size};
  try {
    card.to_metadata();
  } catch (const ValueError& error) {
    fail<DataError>("{}: the weights file cannot describe these images: {}", options.dataset,
                    error.what());
  }
  return card;
}

}  // namespace tutti::examples

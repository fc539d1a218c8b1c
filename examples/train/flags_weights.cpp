#include "flag_values.h"
#include "flags.h"

namespace tutti::examples {

void add_weights_flags(CLI::App& app, TrainOptions& o) {
  app.add_option(
      "--weights", o.weights,
      "Begin with the weights of this safetensors file: of a run, of a checkpoint, or of "
      "import_torchvision.py; a head for another number of classes is replaced by a "
      "fresh one");
  app.add_option("--freeze", o.freeze,
                 "Do not train what matches these patterns, as in 'conv1.*,bn1.*,layer1.*'; batch "
                 "normalisation among it uses its running statistics; may be given several times")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->delimiter(',');
  app.add_flag("--test-only", o.test_only,
               "Print the loss and the accuracy of --weights, or else of the run folder's weights, "
               "on the test images, and exit without writing anything");
  app.add_flag("--keep-best", o.keep_best,
               "Keep the weights with the best test accuracy so far as best.safetensors");
  app.add_option("--keep-last", o.keep_last,
                 "Keep the checkpoints of this many last epochs, too, as "
                 "checkpoint-epoch-NNNN.safetensors; 0 for none")
      ->check(not_negative_whole<std::int64_t>())
      ->capture_default_str();
}

}  // namespace tutti::examples

#include "flag_values.h"
#include "flags.h"

namespace tutti::examples {

void add_optimizer_flags(CLI::App& app, TrainOptions& o) {
  app.add_option("--lr", o.optimizer.lr, "Learning rate at the peak of the one-cycle schedule")
      ->check(positive())
      ->capture_default_str();
  app.add_option("--momentum", o.optimizer.momentum,
                 "Momentum of SGD; 0 to cycle it against the rate, 0.95 to 0.85 and back")
      ->check(between(0.0, 0.9999))
      ->capture_default_str();
  app.add_flag("--nesterov,!--no-nesterov", o.optimizer.nesterov,
               "Nesterov's momentum (the default), or the plain one");
  app.add_option("--weight-decay", o.optimizer.weight_decay, "Weight decay of SGD")
      ->check(not_negative())
      ->capture_default_str();
  app.add_option("--seed", o.seed, "Seed of the weights, the shuffling and the augmentation")
      ->check(not_negative_whole<std::uint64_t>())
      ->capture_default_str();
}

}  // namespace tutti::examples

#include "flag_values.h"
#include "flags.h"
#include "make_optimizer.h"
#include "option_words.h"
#include "recipe.h"

#include <cmath>

namespace tutti::examples {
namespace {

void add_update_flags(CLI::App& app, OptimizerOptions& o) {
  app.add_option("--optimizer", o.name, "sgd, adam, adamw or lars")
      ->check(one_of(optimizer_names()))
      ->capture_default_str();
  app.add_option("--lr", o.lr,
                 "Highest learning rate of the schedule (default: 0.1; 0.001 for adam and adamw)")
      ->check(positive());
  app.add_option("--momentum", o.momentum,
                 "Momentum of sgd and lars; with --schedule one_cycle 0 cycles it against the "
                 "rate, 0.95 to 0.85 and back")
      ->check(between(0.0, 0.9999))
      ->capture_default_str();
  app.add_flag("--nesterov,!--no-nesterov", o.nesterov,
               "Nesterov's momentum in sgd (the default), or the plain one");
  app.add_option("--weight-decay", o.weight_decay,
                 "Weight decay (default: 0.0005; 0 for adam, 0.01 for adamw)")
      ->check(not_negative());
  app.add_flag("--norm-decay,!--no-norm-decay", o.norm_decay,
               "Weight decay of the weights of normalisation and of all biases, too (the "
               "default), or of the other weights only");
  app.add_option("--clip-norm", o.clip_norm,
                 "Largest norm of all gradients together, to which larger ones are scaled; 0 for "
                 "any")
      ->check(not_negative())
      ->capture_default_str();
  app.add_option("--ema", o.ema,
                 "Average the weights over the steps with this decay, such as 0.999; the averages "
                 "are tested and saved; 0 for none")
      ->check(in_range(0.0, std::nextafter(1.0, 0.0), "a number from 0 up to, but not, 1",
                       "in [0 - 1)"))
      ->capture_default_str();
}

void add_schedule_flags(CLI::App& app, ScheduleOptions& s) {
  app.add_option("--schedule", s.name,
                 "Learning rate over the run: one_cycle (up and down), cosine (down to 0), steps "
                 "(down by --gamma after each of --milestones), constant, or plateau (down by "
                 "--gamma where the test loss stays)")
      ->check(one_of(schedule_names()))
      ->capture_default_str();
  app.add_option("--warmup", s.warmup,
                 "Epochs in which the rate rises from a hundredth to --lr, with every schedule "
                 "but one_cycle")
      ->check(in_range<std::int64_t>(0, 1'000'000, "a whole number of 0 to 1000000", "NONNEGATIVE"))
      ->capture_default_str();
  add_parsed(
      app, "--milestones",
      [&s](const std::string& text) { s.milestones = milestones_from_string(text); },
      "With --schedule steps, the epochs after which the rate falls, as in 30,60,80");
  app.add_option("--gamma", s.gamma,
                 "With --schedule steps or plateau, the factor by which the rate falls")
      ->check(between(0.0, 0.9999))
      ->capture_default_str();
  app.add_option("--plateau-patience", s.plateau_patience,
                 "With --schedule plateau, the epochs without a better test loss that are "
                 "accepted before the rate falls")
      ->check(not_negative_whole<std::int64_t>())
      ->capture_default_str();
}

}  // namespace

void add_optimizer_flags(CLI::App& app, TrainOptions& o) {
  app.add_option("--recipe", o.recipe,
                 "Set the flags that are not given to those of a known recipe: imagenet, for "
                 "ResNet-50 (docs/train.md)")
      ->check(one_of(recipe_names()));
  add_update_flags(app, o.optimizer);
  add_schedule_flags(app, o.schedule);
  app.add_option("--seed", o.seed, "Seed of the weights, the shuffling and the augmentation")
      ->check(not_negative_whole<std::uint64_t>())
      ->capture_default_str();
}

}  // namespace tutti::examples

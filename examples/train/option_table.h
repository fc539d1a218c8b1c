// The table of the trainer's options: the flag, the member of TrainOptions, its range, the help,
// and whether a resumed run may have another value. The command line, the help text, config.json
// and what a checkpoint stores and --resume compares all follow from it (options.cpp).
#pragma once

#include "options.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <functional>

namespace tutti::examples {

/// Whether a resumed run may have another value than the run before.
enum class Resume {
  must_equal,    ///< The numbers of the run depend on it.
  may_change,    ///< They do, too, but the user may want the run to go on in another way.
  is_unchecked,  ///< No number depends on it. Checkpoints do not hold it.
  is_unsaved,    ///< It is about this call of the program. config.json does not hold it, either.
};

/// Whether an option has an effect on a program that only tests weights (--test-only).
enum class Use { always, training };

/// How the command line sets the member of an option, and how JSON shows it.
struct Value {
  std::function<CLI::Option*(CLI::App&, const std::string& flags, const std::string& help)> add;
  std::function<nlohmann::ordered_json()> to_json;
};

struct Option {
  std::string flags;  ///< "--lr", or "--nesterov,!--no-nesterov" with a flag for the opposite
  Value value;
  Resume resume;
  Use use;
  std::string help;

  /// Returns the flag without the one for the opposite.
  std::string flag() const { return flags.substr(0, flags.find(',')); }
  /// Returns the name in JSON: "sync_bn" for --sync-bn.
  std::string name() const;
};

/// Options that --help shows together.
struct OptionSection {
  std::string title;
  std::vector<Option> options;
};

/// Returns the table, whose values refer to `o`.
std::vector<OptionSection> option_table(TrainOptions& o);

}  // namespace tutti::examples

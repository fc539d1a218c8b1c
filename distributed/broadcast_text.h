// A text to every rank: what tensors are too stiff for, such as addresses and lists of names.
#pragma once

#include "process_group.h"

namespace tutti::distributed {

/// Collective, two broadcasts: rank 0's text, whatever the others pass. `name` stands in errors.
std::string broadcast_text(const ProcessGroup& group, const std::string& text,
                           const std::string& name);

}  // namespace tutti::distributed

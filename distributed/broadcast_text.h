// Broadcasts a string from rank 0, such as an address or a list of names.
#pragma once

#include "process_group.h"

namespace tutti::distributed {

/// Returns the `text` of rank 0 on every rank; what the other ranks pass is ignored. Every rank
/// calls it; it makes two broadcasts (one, where the text is empty). `name` stands in errors.
std::string broadcast_text(const ProcessGroup& group, const std::string& text,
                           const std::string& name);

}  // namespace tutti::distributed

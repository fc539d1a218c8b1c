// AtomicFile writes a file that appears whole or not at all, also after a crash.
#pragma once

#include "file_descriptor.h"

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>

namespace tutti {

/// AtomicFile writes a draft beside `path`, which commit() renames to `path` and the destructor
/// removes otherwise. Several threads and processes may write the same path: the last commit()
/// wins. Every member throws a FileError that names `path` and the system's reason if it fails.
///
/// - The draft has an unpredictable name, `path` followed by ".draft-" and 16 digits (a very long
///   name loses its end), and is created exclusively, so nobody can put a link or a file of their
///   own in its place.
/// - A file that exists keeps its permissions; a new one gets those that the umask allows.
/// - Folders, symbolic links, devices, pipes and sockets are refused. A link is not followed,
///   because in a shared folder another user may have made it.
/// - The constructor removes drafts of the same path whose writer has died. A writer locks its
///   draft (flock), and the system releases the lock when the process ends.
class AtomicFile {
 public:
  [[nodiscard]] explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  /// Brings the data to the disk and then renames the file. After a crash `path` holds either the
  /// old file or the whole new one.
  void commit();

 private:
  void open_folder();
  void examine_target();
  void create_draft();
  [[noreturn]] void fail_with_errno() const;

  std::string path_, name_, draft_;        // draft_ is empty unless it has to be removed
  std::optional<mode_t> old_permissions_;  // empty if there is no old file
  FileDescriptor folder_, file_;
};

/// Removes the drafts in `folder` whose writers have died, of whatever file, as a killed program
/// leaves them. Drafts of other users and of living writers stay. Errors are ignored.
void remove_dead_drafts(const std::string& folder);

/// Writes a file that holds `text`, through an AtomicFile.
void write_file_atomically(const std::string& path, const std::string& text);

}  // namespace tutti

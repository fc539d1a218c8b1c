// Identifies a process of any host, so that a file which it has left behind can be told from the
// file of a process that still runs.
#pragma once

#include <string>

namespace tutti::distributed::rendezvous {

/// Returns the name of this host.
std::string host_name();

/// Returns the random number that this host has drawn at its boot; empty where /proc does not say.
std::string boot_id();

/// Returns a text that only processes of this host, since its latest boot, have.
std::string host_identity();

/// A process: its host, which boot and which set of process numbers of it, its number and start.
struct ProcessIdentity {
  std::string host = {};
  std::string numbering = {};  ///< Where `pid` counts: the boot and the PID namespace, or empty.
  std::string pid = {};
  std::string started = {};  ///< In clock ticks since the boot; empty where /proc does not say.

  bool operator==(const ProcessIdentity&) const = default;
};

/// Returns the identity of this process.
ProcessIdentity own_identity();

/// Whether a process runs; `unknown` for one of another host, boot or container, and where the
/// system does not tell boots and containers apart.
enum class ProcessStatus { runs, ended, unknown };
ProcessStatus status_of(const ProcessIdentity& process);

}  // namespace tutti::distributed::rendezvous

// The file of a flight recorder: the last calls of one rank, written when its world fails.
// examples/flight_recorder.py reads the files of all ranks and shows where they part.
#pragma once

#include "flight_recorder.h"

namespace tutti::distributed {

/// Sets the folder where the ranks of this process write their flight recorders when their world
/// fails; they write nothing where it is empty. For a program that does not call this, the variable
/// TUTTI_FLIGHT_RECORDER names the folder.
void set_flight_recorder_folder(const std::string& folder);
/// Returns the folder; empty where there is none.
std::string flight_recorder_folder();

/// The rank whose calls a file holds, and why it is written.
struct FlightRecorderCause {
  int world_rank = 0;
  std::string backend = {};
  std::string failure = {};
};

/// Writes FOLDER/flight_recorder.BACKEND.RANK.jsonl: a line of JSON about the rank, then one for
/// each call, the oldest first. Times are seconds since 1970. Does nothing where there is no call.
/// Throws where the file cannot be written.
void write_flight_recorder(const std::string& folder, const FlightRecorder& recorder,
                           const FlightRecorderCause& cause);

}  // namespace tutti::distributed

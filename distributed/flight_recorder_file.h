// The file of a flight recorder: the last calls of one rank, written when its world fails.
// examples/flight_recorder.py reads the files of all ranks and shows where they part.
#pragma once

#include "flight_recorder.h"

#include <functional>

namespace tutti::distributed {

/// Sets the folder where the ranks of this process write their flight recorders when their world
/// fails; they write nothing where it is empty. For a program that does not call this, the variable
/// TUTTI_FLIGHT_RECORDER names the folder.
void set_flight_recorder_folder(const std::string& folder);
/// Returns the folder; empty where there is none.
std::string flight_recorder_folder();
/// Returns what the files say of the library that carries messages between the processes. Its
/// backend sets it before the first world is there; empty where there is none.
std::string& flight_recorder_library();

/// Writes FOLDER/flight_recorder.BACKEND.RANK.jsonl: a line of JSON about the rank and the
/// `failure` for which it is written, then one for each call, the oldest first. Times are seconds
/// since 1970. Does nothing where there is no call. Throws where the file cannot be written.
void write_flight_recorder(const std::string& folder, const FlightRecorder& recorder,
                           const std::string& failure);

/// Starts to write the recorders, where a folder is set, because of `failure`. Waits for no file. A
/// rank whose file cannot be written prints one line on stderr that says why, and leaves no part of
/// the file. The result waits until they are written, but only until five seconds after the
/// beginning, because a network file system may hang; it is empty where nothing is written.
std::function<void()> start_writing(std::vector<std::shared_ptr<FlightRecorder>> recorders,
                                    const std::string& failure) noexcept;

}  // namespace tutti::distributed

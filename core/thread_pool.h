// Threads that work through the shares of a loop beside their caller. Each thread that calls
// run_shares() has helpers of its own, which spin for some microseconds between loops and then
// sleep. What a share computes, and where it begins and ends, is decided by the caller.
#pragma once

#include <cstdint>

namespace tutti::detail {

using ShareBody = void (*)(int share, int shares, void* context);

/// Calls body(share, shares, context) once for each share, on the calling thread and on shares - 1
/// helpers at most. Whichever is free takes the next share, so that the call waits only for shares
/// that a helper has begun. Throws the first exception of a share after the others have ended.
void run_shares(int shares, ShareBody body, void* context);
/// Whether the calling thread works on a share, where loops are serial.
inline constinit thread_local bool in_share = false;
/// How many loops the calling thread has run with helpers, and in how many shares.
struct LoopCount {
  std::int64_t loops = 0, shares = 0;
};
inline constinit thread_local LoopCount loop_count;
/// Ends the helpers of the calling thread, which start anew with the next loop.
void end_helpers();

}  // namespace tutti::detail

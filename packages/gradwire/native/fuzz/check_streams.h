// Checks of the streams of a replay (replay/streams.h). They throw Failure.
#pragma once

#include "random.h"

namespace gradwire::fuzz {

// Compares streams that share ports with timelines computed by hand.
void check_timelines();

// Plays random streams between four hosts: no port may pass more than its rate, and none may be idle with work to do.
void check_streams(Random& random);

}  // namespace gradwire::fuzz

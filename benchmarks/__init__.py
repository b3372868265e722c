"""What is measured, side by side with a named peer, interleaved, reported as ratios pair by pair."""

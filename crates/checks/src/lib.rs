//! Whole protocols in the simulator: scenarios, and one file for each property that must hold.

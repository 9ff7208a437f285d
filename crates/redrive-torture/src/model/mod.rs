//! A model of the bus in plain maps, and the real one, driven by the same random operations.

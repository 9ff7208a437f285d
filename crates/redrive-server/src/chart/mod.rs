//! Drawing: scales with readable ticks, area plots in a terminal, and pictures as SVG. What is drawn is decided
//! by the commands.

pub(crate) mod scale;
pub(crate) mod svg;
pub(crate) mod terminal;

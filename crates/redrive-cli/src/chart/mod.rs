//! Drawing primitives: scales with readable ticks, area plots for the terminal, and SVG pictures.

pub(crate) mod scale;
pub(crate) mod svg;
pub(crate) mod terminal;

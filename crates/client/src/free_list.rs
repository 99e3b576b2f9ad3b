//! Free entries of a table.

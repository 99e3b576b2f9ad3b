//! Bringing a durable record into the tables.

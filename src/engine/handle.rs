//! The engine from outside: submit a request, get one bounded receiver per choice. Dropping a receiver cancels.
